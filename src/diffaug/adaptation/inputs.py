"""What `adapt` and `forecast` read: labels of any kind, dev labels, unlabelled text; and what they refuse."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from diffaug.adaptation.folds import Indices, normal, split_folds
from diffaug.data.columns import Columns
from diffaug.data.read import read_labelled, read_sentences
from diffaug.data.records import Classes, Labelled, LabelledPairs, ScoredPairs, Triplets
from diffaug.data.sampling import draw
from diffaug.data.table import Source
from diffaug.errors import DiffaugError
from diffaug.provenance import record_reads

_FEWEST, _FEWEST_OF_A_KIND = 20, 5


@dataclass(frozen=True)
class Inputs:
    """The data of a call.

    Attributes:
        labelled: what to learn from.
        held: labels that decide instead of cross-validation.
        text: distinct unlabelled sentences, none of which has a label.
        files: the SHA-256 of what was read, by role and name.
    """

    labelled: Labelled
    held: Labelled | None
    text: list[str]
    files: dict[str, dict[str, str]]

    def digest(self) -> str:
        """A hash of all rows."""
        rows = [list(part) for part in (self.labelled, self.held) if part is not None]
        return hashlib.sha256(json.dumps([rows, self.text], default=str).encode()).hexdigest()

    def splits(self, folds: int, seed: int) -> list[Indices]:
        """The rows that are held out in each fold; one empty fold if dev labels decide."""
        if self.held is not None:
            return [np.array([], np.int64)]
        return split_folds(self.labelled, folds, seed)

    def parts(self, rows: Indices) -> tuple[Labelled, Labelled]:
        """What is learned from and what is held out in the fold that holds out ``rows``."""
        if self.held is not None:
            return self.labelled, self.held
        rest = np.setdiff1d(np.arange(len(self.labelled)), rows)
        return self.labelled.take(rest.tolist()), self.labelled.take(rows.tolist())


def most_text(on_gpu: bool) -> int:
    """How many unlabelled sentences are used."""
    return 20_000 if on_gpu else 10_000


def read_inputs(
    labels: Source,
    text: Source | None,
    dev: Source | None,
    columns: Columns | None,
    most_text: int,
    seed: int,
    report: Callable[[str], None],
) -> Inputs:
    """Read and check everything.

    Args:
        labels, text, dev, columns: see `adapt`.
        most_text: the number of unlabelled sentences that are used; of more, a random part is drawn.
        seed: of that draw.
        report: called with what the user should know.

    Raises:
        DiffaugError: the data cannot decide anything.
    """
    files: dict[str, dict[str, str]] = {}
    with record_reads() as files["labels"]:
        labelled = _read(labels, columns, "the labels")
    held = None
    if dev is not None:
        with record_reads() as files["dev"]:
            held = _read(dev, columns, "the dev labels")
        _check_dev(labelled, held, report)
    raw: list[str] = []
    if text is not None:
        with record_reads() as files["text"]:
            sentences = read_sentences(text)
        known = {normal(cell) for part in (labelled, held) if part is not None for cell in _cells(part)}
        raw = [sentence for sentence in dict.fromkeys(sentences) if normal(sentence) not in known]
        if len(raw) > most_text:
            # A random part: a file may be sorted by topic, so that its first lines are not like the rest.
            report(f"{most_text:,} of {len(raw):,} unlabelled sentences are used, drawn at random")
            raw = draw(raw, seed, count=most_text)
    return Inputs(labelled, held, raw, files)


def _cells(labelled: Labelled) -> Iterable[str]:
    return (cell for column in labelled.texts() for cell in column)


def _read(source: Source, columns: Columns | None, what: str) -> Labelled:
    labelled = read_labelled(source, columns)
    if len(labelled) < _FEWEST:
        raise DiffaugError(
            f"{what} are {len(labelled)} rows; at least {_FEWEST} are needed to tell whether training helps"
        )
    if isinstance(labelled, ScoredPairs):
        labelled.check_they_rank(what)
    elif isinstance(labelled, LabelledPairs):
        same = sum(labelled.binary())
        if min(same, len(labelled) - same) < _FEWEST_OF_A_KIND:
            raise DiffaugError(
                f"{what} have {same} pairs that are the same and {len(labelled) - same} that differ; at least "
                f"{_FEWEST_OF_A_KIND} of each are needed"
            )
        relations = [label.value for label in labelled.labels]
        _check_consistent(zip(labelled.premises, labelled.hypotheses, strict=True), relations, what)
    elif isinstance(labelled, Triplets):
        pairs = [(anchor, other) for anchor, *others in labelled for other in others]
        _check_consistent(pairs, ["positive", "negative"] * len(labelled), what)
    elif isinstance(labelled, Classes):
        _check_classes(labelled, what)
    return labelled


def _check_classes(labelled: Classes, what: str) -> None:
    sizes = Counter(labelled.classes)
    if len(sizes) < 2:
        raise DiffaugError(f"{what} have one class only ({labelled.classes[0]!r}); at least two are needed")
    _check_consistent(((sentence,) for sentence in labelled.sentences), labelled.classes, what)
    single = [name for name, size in sizes.items() if size < 2]
    if single:
        raise DiffaugError(
            f"{len(single)} of {len(sizes)} classes of {what} have one sentence only, such as {single[0]!r}; add "
            "sentences, or leave these classes out"
        )


def _check_consistent(items: Iterable[tuple[str, ...]], labels: Sequence[str], what: str) -> None:
    """Raise if two equal sentences or pairs, in either order, have different labels."""
    seen: dict[tuple[str, ...], str] = {}
    for item, label in zip(items, labels, strict=True):
        first = seen.setdefault(tuple(sorted(map(normal, item))), label)
        if first != label:
            shown = " and ".join(f"{text!r:.60}" for text in item)
            raise DiffaugError(
                f"{what} contradict each other: {shown} {'is' if len(item) == 1 else 'are'} both {first!r} and "
                f"{label!r}; correct these rows"
            )


def _check_dev(labelled: Labelled, held: Labelled, report: Callable[[str], None]) -> None:
    if type(held) is not type(labelled):
        raise DiffaugError(f"the dev labels are {held.kind}, the labels {labelled.kind}; both must be of one kind")
    if isinstance(labelled, Classes) and isinstance(held, Classes):
        unknown = sorted(set(held.classes) - set(labelled.classes))
        if unknown:
            raise DiffaugError(f"{len(unknown)} classes of the dev labels have no labels, such as {unknown[0]!r}")
    known = set(map(normal, _cells(labelled)))
    shared = [sum(normal(cell) in known for cell in row) for row in zip(*held.texts(), strict=True)]
    whole = sum(count == len(held.texts()) for count in shared)
    if whole:
        raise DiffaugError(
            f"{whole} of {len(held)} rows of the dev labels have only sentences that are among the labels; remove them "
            "from one of the files"
        )
    if some := sum(map(bool, shared)):
        report(f"{some} of {len(held)} rows of the dev labels have a sentence that is among the labels")
