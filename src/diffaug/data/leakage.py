"""Sentences and pairs of evaluation data that occur in the training data, exactly or nearly.

Sentences are compared by their words: without case, punctuation and the form of characters (NFKC). Two sentences are
*exactly* the same if their words are, and *nearly* the same if the Jaccard similarity of their shingles is at least
`THRESHOLD`. A shingle is a word and the next one, with marks for beginning and end, so that the order of words matters:
of ten words, one may be replaced.

The evaluation data is indexed, and the training data is read once. Few training sentences have so many shingles that
occur in the evaluation data at all that they can reach the threshold. These are compared with the evaluation sentences
with which they share one of the rarest shingles (prefix filtering).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, islice, product, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffaug.data.problems import quoted
from diffaug.data.records import Records

THRESHOLD = 0.6
"""The least Jaccard similarity of the shingles of two sentences that are nearly the same."""

# Of larger evaluation data, evenly spaced rows are compared, which bounds memory.
_MAX_ROWS = 100_000
# Likewise of the training data: this bounds time.
_MAX_SENTENCES = 5_000_000
# Comparisons of one training sentence with evaluation sentences that share a rare shingle, which bounds time.
_MAX_CANDIDATES = 50
# Rows that are searched at a time.
_BLOCK = 4096

_NO_WORD = re.compile(r"[\W_]+")
# The same for ASCII: lower case, and a space for everything but letters and digits.
_ASCII = "".join(chr(i).lower() if chr(i).isalnum() else " " for i in range(128))
# Before the first and after the last word. It is in no sentence, since it is not part of a word.
_EDGE = "\0"

Columns = Sequence[Sequence[str]]
"""Parallel columns of sentences, one or more."""
Shingle = tuple[str, str]


@dataclass(frozen=True)
class Leakage:
    """What evaluation data shares with training data.

    Attributes:
        sentences: the number of distinct sentences of the evaluation data that were compared.
        exact_sentences: how many of them occur in the training data.
        near_sentences: how many others nearly occur there.
        pairs: the number of distinct pairs that were compared; 0 if the data has no pairs.
        exact_pairs: how many of them are both in one row of the training data.
        near_pairs: how many others nearly are.
        example: a shared sentence, or both sentences of a shared pair, as in the evaluation data.
        compared: the share of the training data that was compared.
        threshold: the least similarity of sentences that are nearly the same.
    """

    sentences: int
    exact_sentences: int
    near_sentences: int
    pairs: int
    exact_pairs: int
    near_pairs: int
    example: tuple[str, ...] = ()
    compared: float = 1.0
    threshold: float = THRESHOLD

    def __bool__(self) -> bool:
        """Whether anything is shared."""
        return bool(self.example)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """One line for people."""
        part = "" if self.compared == 1 else f", compared with {100 * self.compared:.0f} % of the training data"
        if not self:
            return f"none of {self.sentences:,} sentences{part}"
        parts = [_counts(self.exact_sentences, self.near_sentences, self.sentences, "sentences")]
        if self.exact_pairs or self.near_pairs:
            parts.append(_counts(self.exact_pairs, self.near_pairs, self.pairs, "pairs"))
        example = " and ".join(quoted(text, 60) for text in self.example)
        return f"{' and '.join(parts)}{part}, for example {example}"


def _counts(exact: int, near: int, total: int, what: str) -> str:
    return f"{exact + near:,} of {total:,} {what} ({exact:,} exactly, {near:,} nearly)"


def sentence_columns(data: Any) -> Columns:
    """The sentences of any kind of data, without labels and scores."""
    return data.texts() if isinstance(data, Records) else (data,)


def find_leakage(evaluation: Mapping[str, Columns], training: Sequence[Columns]) -> dict[str, Leakage]:
    """Compare evaluation data with training data; takes a few seconds for a million training sentences.

    Args:
        evaluation: data by name, each of one or more columns. Its pairs are all those of two sentences in one row.
        training: data likewise.

    Returns:
        the result for each of the evaluation data.
    """
    index = _Index(evaluation.values())
    exact: set[int] = set()
    near: set[int] = set()
    exact_pairs: set[frozenset[int]] = set()
    near_pairs: set[frozenset[int]] = set()
    step = -(-sum(len(column) for columns in training for column in columns) // _MAX_SENTENCES) or 1
    for matches in (matches for columns in training for matches in index.search([c[::step] for c in columns])):
        for found in matches:
            for i, same in found.items():
                (exact if same else near).add(i)
        for first, second in combinations(matches, 2):
            for i, j in product(first, second):
                (exact_pairs if first[i] and second[j] else near_pairs).add(frozenset((i, j)))
    near -= exact
    near_pairs -= exact_pairs
    results = {}
    for name, (sentences, pairs) in zip(evaluation, index.members, strict=True):
        example: tuple[int, ...] = ()
        if shared_pairs := pairs & exact_pairs or pairs & near_pairs:
            example = tuple(sorted(min(shared_pairs, key=sorted)))
        elif shared := sentences & exact or sentences & near:
            # A long one: short ones occur everywhere.
            example = (max(shared, key=lambda i: (len(index.texts[i]), -i)),)
        results[name] = Leakage(
            sentences=len(sentences),
            exact_sentences=len(sentences & exact),
            near_sentences=len(sentences & near),
            pairs=len(pairs),
            exact_pairs=len(pairs & exact_pairs),
            near_pairs=len(pairs & near_pairs),
            example=tuple(index.texts[i] for i in example),
            compared=1 / step,
        )
    return results


class _Index:
    """The distinct sentences of evaluation data, found by their words and by their rarest shingles.

    Attributes:
        texts: the sentences.
        members: for each of the evaluation data, the indices of its sentences and of its pairs of sentences.
    """

    def __init__(self, evaluation: Iterable[Columns]) -> None:
        self.texts: list[str] = []
        self.members: list[tuple[set[int], set[frozenset[int]]]] = []
        self._by_words: dict[str, int] = {}
        self._shingles: list[frozenset[Shingle]] = []
        for columns in evaluation:
            step = -(-len(columns[0]) // _MAX_ROWS) or 1
            rows = [
                [i for sentence in row if (i := self._add(sentence)) is not None]
                for row in zip(*(column[::step] for column in columns), strict=True)
            ]
            pairs = {frozenset(pair) for row in rows for pair in combinations(row, 2)}
            self.members.append(({i for row in rows for i in row}, pairs))
        counts = Counter(shingle for shingles in self._shingles for shingle in shingles)
        self._by_shingle: dict[Shingle, list[int]] = {}
        for i, shingles in enumerate(self._shingles):
            # A sentence that has none of these has too few of the others.
            prefix = len(shingles) - math.ceil(THRESHOLD * len(shingles)) + 1
            for shingle in sorted(shingles, key=lambda shingle: (counts[shingle], shingle))[:prefix]:
                self._by_shingle.setdefault(shingle, []).append(i)
        words = dict.fromkeys(word for shingle in counts for word in shingle if word != _EDGE)
        self._ids = {_EDGE: 1, **{word: i for i, word in enumerate(words, start=2)}}
        self._known = np.zeros(1 << 24, bool)  # by the hash of a shingle
        ids = np.array([self._ids[word] for shingle in counts for word in shingle], np.int64).reshape(-1, 2)
        self._known[_hashes(ids[:, 0], ids[:, 1])] = True

    def _add(self, sentence: str) -> int | None:
        words = _normalise(sentence).split()
        if not words:
            return None
        key = " ".join(words)
        if key not in self._by_words:
            self._by_words[key] = len(self.texts)
            self.texts.append(sentence)
            self._shingles.append(_shingles(words))
        return self._by_words[key]

    def search(self, columns: Columns) -> Iterator[list[dict[int, bool]]]:
        """For each row with a sentence like one of the index: the result of `_matches` of its sentences."""
        for start in range(0, len(columns[0]), _BLOCK):
            block = [_normalise(text) for column in columns for text in column[start : start + _BLOCK]]
            rows = len(block) // len(columns)
            # One list of words for the whole block: working through single sentences would take several times longer.
            words = f"{_EDGE} {f' {_EDGE} '.join(block)} {_EDGE}".split()
            ids = np.fromiter(map(self._ids.get, words, repeat(0)), np.int64, len(words))
            edges = np.flatnonzero(ids == 1)
            known = np.add.reduceat(self._known[_hashes(ids[:-1], ids[1:])], edges[:-1], dtype=np.int64)
            by_row: dict[int, list[dict[int, bool]]] = {}
            for k in np.flatnonzero(known >= THRESHOLD * np.diff(edges)).tolist():
                if found := self._matches(block[k].split()):
                    by_row.setdefault(k % rows, []).append(found)
            yield from by_row.values()

    def _matches(self, words: list[str]) -> dict[int, bool]:
        """The sentences of the index like this one, and whether they are exactly like it."""
        exact = self._by_words.get(" ".join(words))
        found = {} if exact is None else {exact: True}
        shingles = _shingles(words)
        candidates = dict.fromkeys(i for shingle in shingles for i in self._by_shingle.get(shingle, ()))
        for i in islice(candidates, _MAX_CANDIDATES):
            other = self._shingles[i]
            if i == exact or min(len(shingles), len(other)) < THRESHOLD * max(len(shingles), len(other)):
                continue
            common = len(shingles & other)
            if common >= THRESHOLD * (len(shingles) + len(other) - common):
                found[i] = False
        return found


def _normalise(sentence: str) -> str:
    """Words separated by spaces, in lower case and without punctuation."""
    if sentence.isascii():
        return sentence.translate(_ASCII)
    return _NO_WORD.sub(" ", unicodedata.normalize("NFKC", sentence).casefold())


def _shingles(words: list[str]) -> frozenset[Shingle]:
    return frozenset(zip([_EDGE, *words], [*words, _EDGE], strict=True)) if words else frozenset()


def _hashes(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    return (first * 0x9E3779B1 + second * 0x85EBCA77) >> 7 & 0xFFFFFF
