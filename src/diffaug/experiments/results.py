"""Cells of a grid, their results, and the summary of a grid, each with `to_dict` and `from_dict`.

`Result` is written to `result.json` of a cell, `Summary` to `tables/NAME.json` of a grid and, in a shorter form, to the
files that `diffaug.experiments.publish` writes. Settings and draws are counted from 0, as in the names of folders.
"""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from diffaug.evaluation.protocol import STS
from diffaug.evaluation.statistics import Comparison, clean_numbers, from_json_number
from diffaug.experiments.spec import GridSpec, spec_of
from diffaug.version import __version__

DEV = "STS-B dev"
"""The score on the dev pairs, which chooses the setting of a row, in `Result.scores`; `GridSpec.dev_name` is shown."""
AVERAGE = "average"
"""The mean over the test tasks in `Result.scores`."""
MINUTES, GIB = "minutes", "gib"
"""Training time and peak memory in `Entry.values`, beside the scores."""
SEVEN = tuple(spec.name for spec in STS if not spec.extra)
"""The seven STS tasks that papers average over."""

Place = tuple[str, str]
"""A row and a column."""

_FORMAT_VERSION = 1
# More names than this make a note unreadable.
_LISTED = 6
_NONE = {"mean": None, "deviation": None, "count": 0}


@dataclass(frozen=True)
class Cell:
    """One training run of a grid.

    Attributes:
        row: label of the row, such as `DiffAug, semi`.
        column: label of the column, such as a number of labels; empty in a grid without columns.
        recipe: name or path of the recipe.
        changes: `key=value` changes of the recipe: encoder, data, setting, row, column and seed.
        setting: index of the setting of the row's budget; its `key=value` are part of `changes`.
        seed: of the run.
        draw: which draw of the labels, where only a part of them is used.
        group: rows are compared within a group.
        baseline: whether other rows of the group are compared with this row.
    """

    row: str
    column: str
    recipe: str
    changes: tuple[str, ...]
    setting: int = 0
    seed: int = 42
    draw: int = 0
    group: str = ""
    baseline: bool = False

    @property
    def name(self) -> str:
        """The name of its folder, unique within a grid."""
        parts = [self.row, self.column, f"setting{self.setting}", f"draw{self.draw}", f"seed{self.seed}"]
        return "_".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts if part)

    @property
    def place(self) -> Place:
        return self.row, self.column

    @property
    def run(self) -> list[str]:
        """Which run of its row and column this is: `setting 0`, `draw 1`, `seed 43`."""
        return [f"setting {self.setting}", f"draw {self.draw}", f"seed {self.seed}"]

    @property
    def line(self) -> str:
        """`DiffAug, semi  1 %  setting 2  draw 1  seed 43`."""
        return "  ".join(part for part in (self.row, self.column, *self.run) if part)

    @property
    def command(self) -> str:
        """The command that makes this run without its grid."""
        changes = [part for change in self.changes for part in ("--set", change)]
        return shlex.join(["diffaug", "train", "--recipe", self.recipe, *changes, "--out", self.name])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cell:
        names = cls.__dataclass_fields__
        return cls(**{**{n: v for n, v in values.items() if n in names}, "changes": tuple(values.get("changes", ()))})


@dataclass(frozen=True)
class Result:
    """The result of a finished cell.

    Attributes:
        scores: Spearman x 100 by task: `DEV`, the test tasks, and their `AVERAGE`.
        seconds: training time, without a stage 1 that another run has trained.
        gib: peak memory of the GPU, or of the process where there is no GPU.
        steps: number of steps by stage.
        best_at: stage and step of the checkpoint that was kept.
        stage1_end: why stage 1 ended.
        machine: device and versions of Python, diffaug, torch and transformers.
    """

    scores: dict[str, float]
    seconds: float
    gib: float
    steps: dict[str, int] = field(default_factory=dict)
    best_at: dict[str, int] | None = None
    stage1_end: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Raises TypeError if a key is missing or unknown, or a value is not what it should be."""
        result = cls(**values)
        numbers = [result.seconds, result.gib, *dict(result.scores).values()]
        if not all(isinstance(number, (int, float)) for number in numbers) or not isinstance(result.machine, dict):
            raise TypeError("a score, time or size is not a number")
        return result


@dataclass(frozen=True)
class Run:
    """A finished cell that counts as a measurement, with its folder."""

    cell: Cell
    result: Result
    folder: Path

    def to_dict(self) -> dict[str, Any]:
        return {**_cell_dict(self.cell), **self.result.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], group: str, baseline: bool) -> Run:
        cell = Cell.from_dict({**values, "group": group, "baseline": baseline})
        result = {name: values[name] for name in Result.__dataclass_fields__}
        return cls(cell, Result.from_dict(result), Path(cell.name))


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n - 1) over runs; the deviation of a single run is None."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Spread:
        return cls(from_json_number(values["mean"]), values["deviation"], values["count"])


class Published(NamedTuple):
    """A number of the paper; the deviation is None where the paper gives none."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.deviation is None else f"{self.mean:.2f} ± {self.deviation:.1f}"


@dataclass(frozen=True)
class PairedTest:
    """A row compared with another row.

    Attributes:
        row, column: the other row.
        comparisons: the paired bootstrap by task, and for their average.
        by_run: differences of the averages between runs of the same seed and draw.
    """

    row: str
    column: str
    comparisons: dict[str, Comparison]
    by_run: tuple[float, ...]

    @property
    def average(self) -> Comparison:
        return self.comparisons[AVERAGE]

    @property
    def runs_ahead(self) -> int:
        """How many of `by_run` are above zero."""
        return sum(difference > 0 for difference in self.by_run)

    def to_dict(self) -> dict[str, Any]:
        spread = asdict(Spread.of(self.by_run)) if self.by_run else _NONE
        scores = {}
        for name, found in self.comparisons.items():
            interval = [found.low, found.high]
            numbers = {"difference": found.difference, "interval": interval, "p_value": found.p_value}
            scores[name] = {**numbers, "shown": found.shown}
        by_run = {"differences": self.by_run, "ahead": self.runs_ahead, **spread}
        return {"against": {"row": self.row, "column": self.column}, "scores": scores, "by_run": by_run}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], mine: Entry, entries: Entries, confidence: float) -> PairedTest:
        """The test of ``mine``; the compared scores are those of ``entries``."""
        row, column = values["against"]["row"], values["against"]["column"]
        theirs = entries[mine.group, row, column]
        comparisons = {}
        for name, found in values["scores"].items():
            means = mine.values[name].mean, theirs.values[name].mean
            comparisons[name] = Comparison.from_dict({"name": name, **found}, *means, confidence)
        return cls(row, column, comparisons, tuple(values["by_run"]["differences"]))


@dataclass(frozen=True)
class Entry:
    """A row at a column.

    Attributes:
        group, row, column, baseline: those of its cells.
        settings: the planned settings, as the `key=value` in which they differ.
        tried: how many of them have run.
        setting: index of the setting that was chosen on the dev pairs; None: not chosen yet.
        runs: the finished runs of that setting.
        asked: how many runs there should be.
        values: mean over the runs by score, and for `MINUTES` and `GIB`.
        published: the paper's numbers for the same encoder, by the same names.
        best: in which values it is the best of its group and column (or of its row, if that is alone in its group).
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
    published: dict[str, Published] = field(default_factory=dict)
    best: frozenset[str] = frozenset()
    strongest: bool = False
    test: PairedTest | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.group, self.row, self.column

    @property
    def place(self) -> str:
        return place_name(self.row, self.column)

    @property
    def recipe(self) -> str:
        """The recipe of an entry that has runs."""
        return self.runs[0].cell.recipe

    @property
    def chosen(self) -> str | None:
        """The chosen setting as `key=value`."""
        return None if self.setting is None else self.settings[self.setting]

    @property
    def short(self) -> bool:
        """Whether there are fewer runs than asked for."""
        return len(self.runs) < self.asked

    def to_dict(self) -> dict[str, Any]:
        found = {}
        for name in dict.fromkeys([*self.values, *self.published]):
            own = asdict(self.values[name]) if name in self.values else _NONE
            number = self.published.get(name)
            found[name] = {**own, "best": name in self.best, "paper": None if number is None else number._asdict()}
        return {
            **{name: getattr(self, name) for name in ("group", "row", "column", "baseline")},
            "strongest_baseline": self.strongest,
            "settings": {
                "planned": self.settings,
                "tried": self.tried,
                "chosen": self.chosen,
                "chosen_number": self.setting,
            },
            "seeds": sorted({run.cell.seed for run in self.runs}),
            "draws": sorted({run.cell.draw for run in self.runs}),
            "runs_asked": self.asked,
            "complete": not self.short,
            "scores": {name: value for name, value in found.items() if name not in (MINUTES, GIB)},
            "cost": {name: value for name, value in found.items() if name in (MINUTES, GIB)},
            "test": None if self.test is None else self.test.to_dict(),
            "runs": [run.to_dict() for run in self.runs],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Entry:
        """The entry without its test, which needs the other entries: see `PairedTest.from_dict`."""
        found = {**values["scores"], **values["cost"]}
        return cls(
            **{name: values[name] for name in ("group", "row", "column", "baseline")},
            settings=tuple(values["settings"]["planned"]),
            tried=values["settings"]["tried"],
            setting=values["settings"]["chosen_number"],
            runs=tuple(Run.from_dict(run, values["group"], values["baseline"]) for run in values["runs"]),
            asked=values["runs_asked"],
            values={name: Spread.from_dict(value) for name, value in found.items() if value["count"]},
            published={name: Published(**value["paper"]) for name, value in found.items() if value["paper"]},
            best=frozenset(name for name, value in found.items() if value["best"]),
            strongest=values["strongest_baseline"],
        )


Entries = Mapping[tuple[str, str, str], Entry]
"""Entries by group, row and column."""


@dataclass(frozen=True)
class Lead:
    """A row compared with one baseline of its group at every column.

    Attributes:
        group, row, baseline: which.
        tests: by column.
        fewest, most: the row's column with the fewest labels, and the baseline's with the most.
        across: the row at `fewest` compared with the baseline at `most`.
    """

    group: str
    row: str
    baseline: str
    tests: dict[str, PairedTest]
    fewest: str
    most: str
    across: PairedTest | None

    def to_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("group", "row", "baseline")},
            "columns": {column: test.to_dict() for column, test in self.tests.items()},
            "fewest": self.fewest,
            "most": self.most,
            "fewest_against_most": None if self.across is None else self.across.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], entries: Entries, confidence: float) -> Lead:
        def test(column: str, found: Mapping[str, Any]) -> PairedTest:
            return PairedTest.from_dict(found, entries[values["group"], values["row"], column], entries, confidence)

        across = values["fewest_against_most"]
        return cls(
            **{name: values[name] for name in ("group", "row", "baseline", "fewest", "most")},
            tests={column: test(column, found) for column, found in values["columns"].items()},
            across=None if across is None else test(values["fewest"], across),
        )


@dataclass(frozen=True)
class Summary:
    """Everything that was measured in a grid.

    Attributes:
        info: what was asked for, and title and notes of the plan (`Grid.plan_info`).
        tasks: the test tasks, those of `SEVEN` first.
        columns: in the order of the plan; ("",) in a grid without columns.
        entries: in the order of the plan.
        leads: comparisons at every column, if the specification has the table `lead`.
        failures: failed cells with the first line of their error.
        unfinished: cells that are still to run.
        untested: comparisons that could not be made, and why.
        taken_over: number of runs that were copied from other grids, by the folders of those.
        resamples, seed, confidence: of the paired bootstrap.
    """

    info: dict[str, Any]
    tasks: tuple[str, ...]
    columns: tuple[str, ...]
    entries: tuple[Entry, ...]
    leads: tuple[Lead, ...] = ()
    failures: tuple[tuple[Cell, str], ...] = ()
    unfinished: tuple[Cell, ...] = ()
    untested: tuple[str, ...] = ()
    taken_over: dict[str, int] = field(default_factory=dict)
    resamples: int = 0
    seed: int = 0
    confidence: float = 0.95

    @property
    def experiment(self) -> str:
        return str(self.info.get("experiment", ""))

    @property
    def spec(self) -> GridSpec:
        """What to show of the grid."""
        return spec_of(self.info)

    @property
    def title(self) -> str:
        return str(self.info.get("title") or self.experiment)

    @property
    def columns_are(self) -> str:
        """What a column stands for."""
        return str(self.info.get("columns_are") or "")

    @property
    def all_seven(self) -> bool:
        """Whether the average includes all tasks that papers average over."""
        return set(self.tasks) >= set(SEVEN)

    @property
    def average_name(self) -> str:
        return f"average of {len(self.tasks)} of {len(SEVEN)}" if set(self.tasks) < set(SEVEN) else AVERAGE

    @property
    def machines(self) -> list[dict[str, Any]]:
        """The distinct machines of the runs."""
        found = [run.result.machine for entry in self.entries for run in entry.runs]
        return [machine for place, machine in enumerate(found) if machine not in found[:place]]

    def groups(self) -> dict[str, list[Entry]]:
        """The entries by group."""
        groups = dict.fromkeys(entry.group for entry in self.entries)
        return {group: [entry for entry in self.entries if entry.group == group] for group in groups}

    def to_dict(self, notes: Sequence[str] = ()) -> dict[str, Any]:
        """Plain values for JSON, numbers with six decimals; ``notes`` are added."""
        cleaned: dict[str, Any] = clean_numbers(
            {
                "format_version": _FORMAT_VERSION,
                "diffaug_version": __version__,
                "experiment": self.experiment,
                "title": self.title,
                "plan": self.info,
                "tasks": self.tasks,
                "average_over_all_seven": self.all_seven,
                "columns": self.columns,
                "columns_are": self.columns_are,
                "deviation": "of the sample (n - 1)",
                "bootstrap": {"resamples": self.resamples, "seed": self.seed, "confidence": self.confidence},
                "entries": [entry.to_dict() for entry in self.entries],
                "leads": [lead.to_dict() for lead in self.leads],
                "failures": [{**_cell_dict(cell), "why": why} for cell, why in self.failures],
                "unfinished": [_cell_dict(cell) for cell in self.unfinished],
                "untested": self.untested,
                "taken_over": self.taken_over,
                "machines": self.machines,
                "notes": notes,
            }
        )
        return cleaned

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Summary:
        """What `to_dict` gave."""
        drawn = values["bootstrap"]
        entries = {entry.key: entry for entry in map(Entry.from_dict, values["entries"])}
        tested = []
        for entry, found in zip(entries.values(), values["entries"], strict=True):
            test = found["test"] and PairedTest.from_dict(found["test"], entry, entries, drawn["confidence"])
            tested.append(replace(entry, test=test))
        return cls(
            info=dict(values["plan"]),
            tasks=tuple(values["tasks"]),
            columns=tuple(values["columns"]),
            entries=tuple(tested),
            leads=tuple(Lead.from_dict(lead, entries, drawn["confidence"]) for lead in values["leads"]),
            failures=tuple((Cell.from_dict(cell), cell["why"]) for cell in values["failures"]),
            unfinished=tuple(Cell.from_dict(cell) for cell in values["unfinished"]),
            untested=tuple(values["untested"]),
            taken_over=dict(values["taken_over"]),
            **drawn,
        )


def place_name(row: str, column: str) -> str:
    """`DiffAug, semi at 1 %`."""
    return f"{row} at {column}" if column else row


def setting_words(cells: Sequence[Cell]) -> tuple[str, ...]:
    """For each cell of a row and column, the `key=value` that not all of them have."""
    common = set.intersection(*(set(cell.changes) for cell in cells))
    return tuple(", ".join(change for change in cell.changes if change not in common) for cell in cells)


def listed(names: Sequence[str]) -> str:
    """The first names and the number of the others."""
    return "; ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def counted(count: int, one: str) -> str:
    """`1 run`, `1,200 runs`."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def _cell_dict(cell: Cell) -> dict[str, Any]:
    names = ("name", "row", "column", "recipe", "changes", "setting", "seed", "draw", "command")
    return {name: getattr(cell, name) for name in names}
