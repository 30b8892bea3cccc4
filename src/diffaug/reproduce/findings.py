"""What a grid found, as values: for every row and column, for every comparison, and for the whole."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from diffaug.evaluation.protocol import STS
from diffaug.reproduce.cell import Cell
from diffaug.reproduce.paired import PairedTest, Run
from diffaug.reproduce.paper import Figure
from diffaug.reproduce.words import place_words

SEVEN = tuple(spec.name for spec in STS if not spec.extra)
"""The STS tasks whose average papers report."""
MINUTES, GIB = "minutes", "gib"
"""What training cost, beside the scores."""


@dataclass(frozen=True)
class Spread:
    """A mean over runs; the deviation is the sample's (n - 1), None for a single run."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Entry:
    """A row at a column.

    Attributes:
        group, row, column, baseline: as its cells have them.
        settings: every setting that was to be tried, in words: the `key=value` in which they differ.
        tried: how many of them have run.
        setting: the one that was chosen on STS-B dev, counted from 0; None: not yet.
        runs: the measurements, which are the finished runs of that setting.
        asked: how many there should be.
        values: by score, and for `minutes` and `gib`.
        published: the paper's figures for the same encoder, by the same names.
        best: in what it is the best of its group at its column, or, where a group has only one row, of its columns.
        strongest: whether it is the baseline that the rows of its group are compared with.
        test: the comparison with that baseline.
    """

    group: str
    row: str
    column: str
    baseline: bool
    settings: tuple[str, ...]
    tried: int
    setting: int | None
    runs: tuple[Run, ...]
    asked: int
    values: dict[str, Spread]
    published: dict[str, Figure] = field(default_factory=dict)
    best: frozenset[str] = frozenset()
    strongest: bool = False
    test: PairedTest | None = None

    @property
    def place(self) -> str:
        """In words."""
        return place_words(self.row, self.column)

    @property
    def chosen(self) -> str | None:
        """The setting that was chosen, in words."""
        return None if self.setting is None else self.settings[self.setting]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.cell.seed for run in self.runs}))

    @property
    def draws(self) -> tuple[int, ...]:
        return tuple(sorted({run.cell.draw for run in self.runs}))

    @property
    def short(self) -> bool:
        """Whether there are fewer runs than were asked for."""
        return len(self.runs) < self.asked


@dataclass(frozen=True)
class Lead:
    """How far a row is ahead of a baseline of its group, column by column.

    Attributes:
        group, row, baseline: which.
        tests: by column.
        fewest, most: columns: the row's with the fewest labels, the baseline's with the most.
        across: the row at `fewest` against the baseline at `most`.
    """

    group: str
    row: str
    baseline: str
    tests: dict[str, PairedTest]
    fewest: str
    most: str
    across: PairedTest | None


@dataclass(frozen=True)
class Summary:
    """What a grid found.

    Attributes:
        info: what was asked for, and what the plan says of itself (`Grid.plan_info`).
        tasks: the test tasks that were scored, in the order of papers.
        columns: in the order of the plan; only an empty one where rows have one place each.
        entries: in the order of the plan.
        leads: for few labels.
        failures: failed cells, and why in a line.
        unfinished: cells that are still to run.
        untested: why rows could not be compared.
        taken_over: how many of the finished runs were made in other grids, by the folders of those.
        resamples, seed, confidence: of the paired bootstrap.
    """

    info: dict[str, Any]
    tasks: tuple[str, ...]
    columns: tuple[str, ...]
    entries: tuple[Entry, ...]
    leads: tuple[Lead, ...]
    failures: tuple[tuple[Cell, str], ...]
    unfinished: tuple[Cell, ...]
    untested: tuple[str, ...]
    taken_over: dict[str, int]
    resamples: int
    seed: int
    confidence: float

    @property
    def experiment(self) -> str:
        return str(self.info.get("experiment", ""))

    @property
    def title(self) -> str:
        return str(self.info.get("title") or self.experiment)

    @property
    def columns_are(self) -> str:
        """What a column stands for."""
        return str(self.info.get("columns_are") or "")

    @property
    def all_seven(self) -> bool:
        """Whether the average is the one that papers report."""
        return set(self.tasks) >= set(SEVEN)

    @property
    def average_name(self) -> str:
        """With its extent: an average of three tasks never looks like one of seven."""
        return "average" if self.all_seven else f"average of {len(self.tasks)} of {len(SEVEN)}"

    @property
    def machines(self) -> list[dict[str, Any]]:
        """Those that the measurements were made on."""
        found: list[dict[str, Any]] = []
        for run in (run for entry in self.entries for run in entry.runs):
            if run.result.machine not in found:
                found.append(run.result.machine)
        return found

    def groups(self) -> dict[str, list[Entry]]:
        """The entries by group."""
        found: dict[str, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.group, []).append(entry)
        return found
