"""The figures of the paper, to stand beside ours where the encoder is the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

PAPER = Path(__file__).parent / "paper.yaml"

# The label counts that the paper's fractions stand for: of 275,601 triplets (the text says 275,600, "~2,756" and
# "~27,560"). A count here is the same amount of labels there, whatever part of our own data it is.
_FRACTION_OF_COUNT = {2_756: "1 %", 27_560: "10 %", 275_600: "100 %", 275_601: "100 %"}


class Figure(NamedTuple):
    """A published number; the deviation is None where the paper gives none."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.deviation is None else f"{self.mean:.2f} ± {self.deviation:.1f}"


class Place(NamedTuple):
    """Where a figure stands: names of rows and columns are those of our plans, names of tasks those of our results."""

    encoder: str
    experiment: str
    row: str
    column: str
    task: str


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Attributes:
        label: of the table in the paper's source.
        encoder: of all its figures.
        experiment: which of ours is the same.
        about: what it is.
        figures: by place.
    """

    label: str
    encoder: str
    experiment: str
    about: str
    figures: dict[Place, Figure]


@cache
def tables() -> tuple[Table, ...]:
    """All tables of the paper with results."""
    values = yaml.safe_load(PAPER.read_text("utf-8"))
    return tuple(_table(entry) for entry in values["tables"])


@cache
def stated() -> dict[str, dict[str, float]]:
    """What the text says about the figures that are drawings: by experiment."""
    values = yaml.safe_load(PAPER.read_text("utf-8"))
    found: dict[str, dict[str, float]] = values["stated"]
    return found


@cache
def _by_place() -> dict[Place, Figure]:
    return {place: figure for table in tables() for place, figure in table.figures.items()}


def published(encoder: str, experiment: str, row: str, column: str = "", task: str = "average") -> Figure | None:
    """The paper's figure, or None where there is none.

    Args:
        encoder: a name or folder; what counts is its last part, `bert-base-uncased` or `roberta-base`.
        experiment: `main`, `low-label` ...
        row: as in our plans.
        column: likewise; a label count such as `2,756` is found under the fraction it is in the paper.
        task: as in our results: `STS12` ..., `average`, `STS-B dev`; for the cost, `minutes` and `gib`.
    """
    return _by_place().get(Place(encoder_name(encoder), experiment, row, _column(experiment, column), task))


def encoder_name(encoder: str) -> str:
    """The last part of a name or folder, as recipes take it for their settings of other backbones."""
    return encoder.rstrip("/").rsplit("/", 1)[-1]


def _column(experiment: str, column: str) -> str:
    digits = column.replace(",", "")
    if experiment == "low-label" and digits.isdecimal():
        return _FRACTION_OF_COUNT.get(int(digits), column)
    return column


def _table(entry: dict[str, object]) -> Table:
    encoder, experiment = str(entry["encoder"]), str(entry["experiment"])
    heads, rows = entry["heads"], entry["rows"]
    assert isinstance(heads, list)
    assert isinstance(rows, dict)
    by_column = entry["heads_are"] == "columns"
    figures: dict[Place, Figure] = {}
    for row, cells in rows.items():
        for head, figure in _filled(heads, cells):
            column, task = (head, str(entry["task"])) if by_column else ("", head)
            figures[Place(encoder, experiment, str(row), column, task)] = figure
    return Table(str(entry["label"]), encoder, experiment, str(entry["about"]), figures)


def _filled(heads: list[str], cells: object) -> Iterator[tuple[str, Figure]]:
    assert isinstance(cells, list)
    for head, cell in zip(heads, cells, strict=True):
        if cell is not None:
            yield head, _figure(cell)


def _figure(cell: object) -> Figure:
    """A number, or `80.61 ± .2`."""
    if isinstance(cell, (int, float)):
        return Figure(float(cell), None)
    mean, _, deviation = str(cell).partition(" ± ")
    return Figure(float(mean), float(deviation))
