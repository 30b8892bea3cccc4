"""A reproduced grid as the repository keeps it: one JSON file, from which every table of the grid can be made again.

`pack` writes down what the library found (`diffaug.reproduce.tables.to_dict`) without its repetitions: what the runs
of a row share stands once, what cannot be seen in a table (full commands, settings that lost) stands as briefly as it
can. `unpack` gives back the summary that the library's tables are made of. Nothing is computed here.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffaug.config import load_recipe, source_list
from diffaug.errors import DiffaugError
from diffaug.evaluation.statistics import Comparison
from diffaug.reproduce.budget import budget_names
from diffaug.reproduce.cell import Cell, Result
from diffaug.reproduce.findings import Entry, Lead, Spread, Summary
from diffaug.reproduce.grid import DEV, Grid
from diffaug.reproduce.paired import PairedTest, Run
from diffaug.reproduce.paper import Figure
from diffaug.reproduce.tables import to_dict
from diffaug.reproduce.words import counted, listed
from diffaug.version import __version__

FORMAT_VERSION = 1

Place = tuple[str, str, str]
"""Group, row and column."""

# What tells the runs of a setting apart; it stands with each run.
_OF_A_RUN = ("seed=", "data.label_draw=")
_FILES = ("triplets", "pairs", "sentences", "dev", "target")
_ENDINGS = re.compile(r"\.(txt|csv|tsv|jsonl|parquet)(\.(gz|xz))?$")


@dataclass(frozen=True)
class Kept:
    """What a kept file holds.

    Attributes:
        summary: as `diffaug.reproduce.summary.summarise` gave it; the folders of runs are only names.
        labels: by place, the file whose labels a row learns from, such as `triplets`; None: it learns from none.
        incomplete: what the grid lacked when it was kept, in words; empty: nothing.
    """

    summary: Summary
    labels: dict[Place, str | None]
    incomplete: list[str]


def incomplete(summary: Summary) -> list[str]:
    """What a grid lacks before its tables are what was asked for; empty: nothing."""
    short = [f"{entry.place} ({len(entry.runs)} of {entry.asked})" for entry in summary.entries if entry.short]
    untried = [
        f"{entry.place} ({entry.tried} of {len(entry.settings)})"
        for entry in summary.entries
        if entry.tried < len(entry.settings)
    ]
    place = "row" if summary.columns == ("",) else "place"
    found = [
        ("run", "failed", [cell.name for cell, _ in summary.failures]),
        ("planned run", "not finished", [cell.name for cell in summary.unfinished]),
        (place, "with fewer runs than asked for", short),
        (place, "with settings that were not tried", untried),
        ("comparison", "not made", list(summary.untested)),
    ]
    return [f"{counted(len(names), one)} {what}: {listed(names)}" for one, what, names in found if names]


def pack(grid: Grid, summary: Summary) -> dict[str, Any]:
    """The grid as plain values; paths are as the grid has them.

    Args:
        grid: which.
        summary: of it.
    """
    found, request = to_dict(summary), grid.request
    dev = {cell.name: result.scores[DEV] for cell, result in grid.results()}
    return {
        "format_version": FORMAT_VERSION,
        "command": command(grid, summary),
        "incomplete": incomplete(summary),
        "kept_with": f"diffaug {__version__}",
        "machines": found["machines"],
        "experiment": summary.experiment,
        "title": summary.title,
        "encoder": request.get("encoder", ""),
        "budget": _budget(request),
        "seeds": request.get("seeds", []),
        "draws": request.get("draws", 1),
        "tasks": found["tasks"],
        "columns": found["columns"],
        "columns_are": found["columns_are"],
        "deviation": found["deviation"],
        "bootstrap": found["bootstrap"],
        "notes": [str(note) for note in summary.info.get("notes") or ()],
        "taken_over": dict(_by_name(summary.taken_over)),
        "failures": [{**_named(cell), "why": why} for cell, why in summary.failures],
        "unfinished": [_named(cell) for cell in summary.unfinished],
        "untested": found["untested"],
        "entries": [
            _entry(entry, values, _first_round(grid, entry), dev, found["machines"])
            for entry, values in zip(summary.entries, found["entries"], strict=True)
        ],
        "leads": found["leads"],
    }


def command(grid: Grid, summary: Summary) -> str:
    """What makes such a grid; files that were found in the data folder are named, and so are grids that gave runs."""
    request = grid.request
    files = request.get("data") or {}
    words = ["diffaug", "reproduce", summary.experiment, "--encoder", str(request.get("encoder", ""))]
    for option, name in (("--data", "folder"), *((f"--{name}", name) for name in _FILES)):
        words += [part for value in source_list(files.get(name)) for part in (option, value)]
    words += ["--generator", str(request["generator"])] if request.get("generator") else []
    words += ["--seeds", str(len(request.get("seeds") or [0])), "--draws", str(request.get("draws", 1))]
    if budget := _budget(request):
        words += ["--budget", budget if budget in budget_names() else f"{budget}.yaml"]
    words += [part for column in request.get("columns") or () for part in ("--column", column)]
    words += [part for change in request.get("changes") or () for part in ("--set", change)]
    words += ["--out", grid.folder.resolve().name]
    words += [part for source in _by_name(summary.taken_over) for part in ("--reuse", source)]
    return shlex.join(words)


def read(path: Path) -> Kept:
    """A kept file.

    Raises:
        DiffaugError: it is not there, or is something else.
    """
    try:
        return unpack(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DiffaugError(f"{path} is no kept grid ({error}); benchmarks/keep_grid.py writes one") from error


def unpack(values: Mapping[str, Any]) -> Kept:
    """What `pack` wrote down."""
    if values["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {values['format_version']}, not {FORMAT_VERSION}")
    confidence = values["bootstrap"]["confidence"]
    rows = {_place(entry): entry for entry in values["entries"]}
    tests = _Tests(rows, confidence)
    summary = Summary(
        info={name: values[name] for name in ("experiment", "title", "encoder", "columns_are", "notes")},
        tasks=tuple(values["tasks"]),
        columns=tuple(values["columns"]),
        entries=tuple(_unpack_entry(entry, values["machines"], tests) for entry in values["entries"]),
        leads=tuple(_unpack_lead(lead, tests) for lead in values["leads"]),
        failures=tuple((_cell(cell), cell["why"]) for cell in values["failures"]),
        unfinished=tuple(_cell(cell) for cell in values["unfinished"]),
        untested=tuple(values["untested"]),
        taken_over=dict(values["taken_over"]),
        resamples=values["bootstrap"]["resamples"],
        seed=values["bootstrap"]["seed"],
        confidence=confidence,
    )
    labels = {place: entry["labels"] for place, entry in rows.items()}
    return Kept(summary, labels, list(values["incomplete"]))


def _budget(request: Mapping[str, Any]) -> str:
    return str((request.get("budget") or {}).get("name", ""))


def _by_name(taken_over: Mapping[str, int]) -> Counter[str]:
    """Other grids by their bare names: where they lay says nothing to others."""
    names: Counter[str] = Counter()
    for source, count in taken_over.items():
        names[Path(source).name] += count
    return names


def _first_round(grid: Grid, entry: Entry) -> list[Cell]:
    """The cells that tried an entry's settings, in the order of `Entry.settings`."""
    place = (entry.group, entry.row, entry.column)
    return [cell for cell in grid.first if (cell.group, cell.row, cell.column) == place]


def _entry(
    entry: Entry, values: Mapping[str, Any], tries: Sequence[Cell], dev: Mapping[str, float], machines: list[Any]
) -> dict[str, Any]:
    shared = set.intersection(*(set(cell.changes) for cell in tries))
    first = tries[0]
    return {
        **{name: values[name] for name in ("group", "row", "column", "baseline", "strongest_baseline")},
        "recipe": first.recipe,
        "labels": _labels(first),
        "changes": [change for change in first.changes if change in shared and not change.startswith(_OF_A_RUN)],
        "settings": [
            {"changes": words, "dev": None if cell.name not in dev else round(dev[cell.name], 6)}
            for words, cell in zip(entry.settings, tries, strict=True)
        ],
        "chosen": entry.setting,
        "runs_asked": entry.asked,
        "scores": values["scores"],
        "cost": values["cost"],
        "test": values["test"],
        "runs": [_run(run, machines) for run in values["runs"]],
    }


def _labels(cell: Cell) -> str | None:
    """Which files a run has labels from. Flows read the sentences of NLI data alone, and have none."""
    recipe = load_recipe(cell.recipe, cell.changes)
    second = recipe.stage2
    learns = recipe.stage1 is not None or (
        second is not None and (second.objective == "triplets" or second.aux_weight > 0)
    )
    files = source_list(recipe.data.nli) if learns else []
    return " + ".join(_ENDINGS.sub("", Path(file).name) for file in files) or None


def _run(run: Mapping[str, Any], machines: list[Any]) -> dict[str, Any]:
    kept = ("seed", "draw", "scores", "seconds", "gib", "steps", "best_at", "stage1_end")
    return {**{name: run[name] for name in kept}, "machine": machines.index(run["machine"])}


def _named(cell: Cell) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in ("row", "column", "recipe", "setting", "seed", "draw")}


def _cell(values: Mapping[str, Any]) -> Cell:
    return Cell(**{name: values[name] for name in ("row", "column", "recipe", "setting", "seed", "draw")}, changes=())


def _place(entry: Mapping[str, Any]) -> Place:
    return entry["group"], entry["row"], entry["column"]


def _float(value: float | None) -> float:
    """JSON has no NaN; an undefined number is null there."""
    return math.nan if value is None else value


@dataclass(frozen=True)
class _Tests:
    """Comparisons from what was kept of them; the scores they compare stand with the rows."""

    rows: Mapping[Place, Mapping[str, Any]]
    confidence: float

    def test(self, group: str, row: str, column: str, values: Mapping[str, Any]) -> PairedTest:
        against = values["against"]
        mine = self.rows[group, row, column]["scores"]
        theirs = self.rows[group, against["row"], against["column"]]["scores"]
        comparisons = {}
        for name, found in values["scores"].items():
            low, high = map(_float, found["interval"])
            first, second = _float(mine[name]["mean"]), _float(theirs[name]["mean"])
            p_value = _float(found["p_value"])
            comparisons[name] = Comparison(name, first, second, low, high, p_value, self.confidence)
        return PairedTest(against["row"], against["column"], comparisons, tuple(values["by_run"]["differences"]))


def _unpack_entry(values: Mapping[str, Any], machines: Sequence[dict[str, Any]], tests: _Tests) -> Entry:
    group, row, column = _place(values)
    measured = {**values["scores"], **values["cost"]}
    chosen = values["chosen"]
    return Entry(
        group=group,
        row=row,
        column=column,
        baseline=values["baseline"],
        settings=tuple(setting["changes"] for setting in values["settings"]),
        tried=sum(setting["dev"] is not None for setting in values["settings"]),
        setting=chosen,
        runs=tuple(_unpack_run(values, run, machines) for run in values["runs"]),
        asked=values["runs_asked"],
        values={
            name: Spread(_float(value["mean"]), value["deviation"], value["count"])
            for name, value in measured.items()
            if value["count"]
        },
        published={name: Figure(**value["paper"]) for name, value in measured.items() if value["paper"] is not None},
        best=frozenset(name for name, value in measured.items() if value["best"]),
        strongest=values["strongest_baseline"],
        test=None if values["test"] is None else tests.test(group, row, column, values["test"]),
    )


def _unpack_run(entry: Mapping[str, Any], run: Mapping[str, Any], machines: Sequence[dict[str, Any]]) -> Run:
    group, row, column = _place(entry)
    setting = entry["settings"][entry["chosen"]]["changes"]
    changes = (*entry["changes"], *filter(None, setting.split(", ")))
    cell = Cell(
        row, column, entry["recipe"], changes, entry["chosen"], run["seed"], run["draw"], group, entry["baseline"]
    )
    left = {name: run[name] for name in ("scores", "seconds", "gib", "steps", "best_at", "stage1_end")}
    return Run(cell, Result(**left, machine=machines[run["machine"]]), Path(cell.name))


def _unpack_lead(values: Mapping[str, Any], tests: _Tests) -> Lead:
    group, row, fewest = values["group"], values["row"], values["fewest"]
    across = values["fewest_against_most"]
    return Lead(
        group,
        row,
        values["baseline"],
        {column: tests.test(group, row, column, test) for column, test in values["columns"].items()},
        fewest,
        values["most"],
        None if across is None else tests.test(group, row, fewest, across),
    )
