"""What `adapt` and `forecast` read: labels of any kind, dev labels, unlabelled text; and what they refuse."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from diffaug.adaptation.folds import Indices, split_folds
from diffaug.data.columns import Columns
from diffaug.data.decisive import check_decisive
from diffaug.data.problems import SKIP_OPTION, OnBad
from diffaug.data.read import LabelNames, read_labelled, read_text
from diffaug.data.records import Classes, Labelled, normal
from diffaug.data.sampling import draw
from diffaug.data.table import Source
from diffaug.errors import DiffaugError
from diffaug.provenance import record_reads


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
    *,
    label_names: LabelNames | None = None,
    text_column: str | int | None = None,
    on_bad: OnBad = "error",
) -> Inputs:
    """Read and check everything.

    Args:
        labels, text, dev, columns: see `adapt`.
        most_text: the number of unlabelled sentences that are used; of more, a random part is drawn.
        seed: of that draw.
        report: called with what the user should know.
        label_names: what unusual labels of pairs mean.
        text_column: the column of the text with the sentences, if the name is not the usual one.
        on_bad: what to do with rows that cannot be used.

    Raises:
        DiffaugError: the data cannot decide anything.
    """
    files: dict[str, dict[str, str]] = {}
    with record_reads() as files["labels"]:
        labelled = read_labelled(labels, columns, on_bad, label_names, how_to_skip=SKIP_OPTION)
        check_decisive(labelled, "the labels")
    held = None
    if dev is not None:
        with record_reads() as files["dev"]:
            held = read_labelled(dev, columns, on_bad, label_names, how_to_skip=SKIP_OPTION)
            check_decisive(held, "the dev labels")
        _check_dev(labelled, held, report)
    raw: list[str] = []
    if text is not None:
        with record_reads() as files["text"]:
            sentences = read_text(text, text_column, on_bad, SKIP_OPTION)
        known = {normal(cell) for part in (labelled, held) if part is not None for cell in _cells(part)}
        raw = [sentence for sentence in dict.fromkeys(sentences) if normal(sentence) not in known]
        if len(raw) > most_text:
            # A random part: a file may be sorted by topic, so that its first lines are not like the rest.
            report(f"{most_text:,} of {len(raw):,} unlabelled sentences are used, drawn at random")
            raw = draw(raw, seed, count=most_text)
    return Inputs(labelled, held, raw, files)


def _cells(labelled: Labelled) -> Iterable[str]:
    return (cell for column in labelled.texts() for cell in column)


def _check_dev(labelled: Labelled, held: Labelled, report: Callable[[str], None]) -> None:
    if type(held) is not type(labelled):
        raise DiffaugError(f"the dev labels are {held.kind}, the labels {labelled.kind}; both must be of one kind")
    if isinstance(labelled, Classes) and isinstance(held, Classes):
        unknown = sorted(set(held.classes) - set(labelled.classes))
        if unknown:
            raise DiffaugError(
                f"{len(unknown)} classes of the dev labels have no labels, such as {unknown[0]!r}; add labels of these "
                "classes, or remove their dev labels"
            )
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
