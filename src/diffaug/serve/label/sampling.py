"""Which questions to ask: pairs drawn evenly from bands of similarity, so that easy and hard ones both occur.

Drawn at random, nearly all pairs of a corpus are unrelated, and their labels teach little. Sentences that are asked for
their class are chosen to represent all others (`design`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from diffaug.data.read import open_source
from diffaug.embedder import Embedder
from diffaug.inference.runner import Vectors
from diffaug.serve.label.design import choose, sentence_kernel
from diffaug.serve.label.kinds import Kind
from diffaug.serve.label.store import Store, same_text

BANDS = 5
_NEAR = 10  # most similar sentences of each sentence that are candidates, and as many random ones
_MAX_SENTENCES = 20_000  # of a larger corpus, so many random ones are compared
_MAX_CHOSEN_FROM = 4_000  # sentences among which those for classes are chosen
_MAX_USES = 3  # questions that a sentence may occur in, as long as there are others
_BLOCK = 256


@dataclass(frozen=True)
class Sampled:
    """A question: its sentences, and the cosine and band of the first two (None: there is one sentence)."""

    texts: tuple[str, ...]
    similarity: float | None = None
    band: int | None = None


def read_excluded(files: Iterable[str]) -> set[str]:
    """Every cell of text in these files, as `same_text`.

    Raises:
        DiffaugError: a file cannot be read.
    """
    found = set()
    for file in files:
        table, reporter = open_source(file, "error")
        found |= {
            same_text(cell) for _, cells in table.rows for cell in cells if isinstance(cell, str) and cell.strip()
        }
        if reporter.bad:
            reporter.finish(table.name, len(found))
    return found


def add_sampled(
    store: Store,
    sentences: Sequence[str],
    embedder: Embedder,
    count: int,
    *,
    overlap: float,
    excluded: set[str],
    seed: int = 0,
) -> None:
    """Sample questions and store them; two people are asked the share ``overlap`` of them. See `sample_questions`."""
    known = store.known()
    sampled = sample_questions(sentences, embedder, store.kind, count, known=known, excluded=excluded, seed=seed)
    twice = np.random.default_rng([seed, len(known)]).random(len(sampled)) < overlap
    store.add_questions([(one.texts, one.similarity, one.band) for one in sampled], (1 + twice).tolist())


def sample_questions(
    sentences: Sequence[str],
    embedder: Embedder,
    kind: Kind,
    count: int,
    *,
    known: set[tuple[str, ...]],
    excluded: set[str],
    seed: int = 0,
) -> list[Sampled]:
    """Up to ``count`` new questions.

    Args:
        sentences: the corpus.
        embedder: measures similarity.
        kind: what is asked.
        count: how many questions.
        known: the sentences of questions that there are already.
        excluded: texts that must not be asked about, as `same_text`.
        seed: decides the questions, together with the number of known ones.
    """
    rng = np.random.default_rng([seed, len(known)])
    distinct = list({same_text(text): text for text in sentences if same_text(text) not in excluded}.values())
    texts = [distinct[i] for i in rng.permutation(len(distinct))]
    if kind.name == "classes":
        return [Sampled((text,)) for text in _representative(texts, embedder, count, {text for (text,) in known})]
    texts = texts[:_MAX_SENTENCES]
    if len(texts) < len(kind.fields) or count < 1:
        return []
    candidates, cosines = _candidates(embedder.encode(texts), min(len(texts), max(200, 2 * count)), rng)
    bands = _bands(cosines)
    asked = {frozenset(texts) for texts in known}
    uses: Counter[int] = Counter()
    found: list[Sampled] = []
    # Row and column of the candidates of each band, in random order.
    queues = [rng.permutation(np.argwhere(bands == band)).tolist() for band in range(BANDS)]
    while len(found) < count and any(queues):
        for queue in queues:
            while queue and len(found) < count:
                row, column = queue.pop()
                chosen = [row, int(candidates[row, column])]
                if kind.name == "triplets" and not _add_third(chosen, row, column, candidates, bands, rng):
                    continue
                pair = tuple(texts[i] for i in chosen)
                if frozenset(pair) in asked or any(uses[i] >= _MAX_USES for i in chosen):
                    continue
                asked.add(frozenset(pair))
                uses.update(chosen)
                found.append(Sampled(pair, float(cosines[row, column]), int(bands[row, column])))
                break
    return [found[i] for i in rng.permutation(len(found))]


def _representative(texts: Sequence[str], embedder: Embedder, count: int, known: set[str]) -> list[str]:
    """Sentences that are typical of many others and differ from each other, the most useful first."""
    asked = [text for text in texts if text in known]
    new = [text for text in texts if text not in known]
    some = [*asked, *new][: max(_MAX_CHOSEN_FROM, len(asked))]
    if count < 1 or not new:
        return []
    chosen = choose(sentence_kernel(embedder.encode(some)), count, asked=range(len(asked)))
    return [*(some[i] for i in chosen), *new[len(some) - len(asked) :]][:count]


def _candidates(vectors: Vectors, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, Vectors]:
    """For each of the first ``rows`` sentences, the indices of some similar and some random ones, and their cosines."""
    total = len(vectors)
    near = min(_NEAR, total - 1)
    indices = np.empty((rows, 2 * near), dtype=np.int64)
    for start in range(0, rows, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, rows))
        scores = vectors[block] @ vectors.T
        scores[np.arange(len(block)), block] = -np.inf
        indices[block, :near] = np.argpartition(scores, -near, axis=1)[:, -near:]
    own = np.arange(rows)[:, None]
    indices[:, near:] = (own + rng.integers(1, total, size=(rows, near))) % total  # never the sentence itself
    return indices, np.einsum("rcd,rd->rc", vectors[indices], vectors[:rows])


def _bands(cosines: Vectors) -> np.ndarray:
    """The band of each cosine: of equal width, from where nearly all random pairs are above to nearly the highest."""
    low, high = np.percentile(cosines, [2, 99.5])
    inner = np.linspace(low, high, BANDS + 1)[1:-1]
    return np.digitize(cosines, inner)


def _add_third(
    chosen: list[int], row: int, column: int, candidates: np.ndarray, bands: np.ndarray, rng: np.random.Generator
) -> bool:
    """Add another candidate of the same sentence, of another band if there is one, at a random place after it."""
    others = [c for c in range(candidates.shape[1]) if candidates[row, c] not in chosen]
    others = [c for c in others if bands[row, c] != bands[row, column]] or others
    if not others:
        return False
    chosen.insert(int(rng.integers(1, 3)), int(candidates[row, rng.choice(others)]))
    return True
