"""From the results of a grid to what it found: means and deviations, chosen settings, tests, and what is missing."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from diffaug.progress import progress_bar
from diffaug.reproduce import paper
from diffaug.reproduce.cell import Cell
from diffaug.reproduce.findings import GIB, MINUTES, SEVEN, Entry, Lead, Spread, Summary
from diffaug.reproduce.grid import DEV, Grid
from diffaug.reproduce.paired import PairedTest, Pairing, Run, UnpairedError
from diffaug.reproduce.plans import Plan
from diffaug.reproduce.resamples import Resamples
from diffaug.reproduce.score import AVERAGE
from diffaug.reproduce.words import setting_words

# What these show is not the scores of their runs.
_NOT_ABOUT_SCORES = ("cost", "divergence")
_LEAD = "low-label"
# Runs whose pairs are drawn a thousand times in a few seconds.
_WORTH_A_BAR = 20


def summarise(grid: Grid, *, resamples: int = 1000, seed: int = 0, confidence: float = 0.95) -> Summary:
    """Bring a grid's results together, as far as it has come.

    What the bootstrap gives is kept in the grid's folder: it is computed again only for rows whose runs have changed.

    Args:
        grid: of any experiment.
        resamples: of the paired bootstrap over sentence pairs; 0 leaves the tests out.
        seed: of the bootstrap.
        confidence: of its intervals.

    Raises:
        DiffaugError: a file of the grid is damaged.
    """
    info = grid.plan_info
    experiment = str(info.get("experiment", ""))
    results = {cell.name: Run(cell, result, grid.folder_of(cell)) for cell, result in grid.results()}
    tasks = _tasks(results.values())
    entries = _with_best(list(_entries(grid, results)))
    untested: list[str] = []
    leads: list[Lead] = []
    if resamples and tasks and experiment not in _NOT_ABOUT_SCORES:
        with Resamples(grid.folder) as kept:
            pairing = Pairing(tasks, resamples, seed, confidence, kept)
            entries = _with_tests(entries, pairing, untested)
            leads = list(_leads(entries, pairing, untested)) if experiment == _LEAD else []
    failures = [(cell, _first_line(text)) for cell, text in grid.failures()]
    over = {*results, *(cell.name for cell, _ in failures)}
    return Summary(
        info=info,
        tasks=tasks,
        columns=tuple(dict.fromkeys(cell.column for cell in grid.first)),
        entries=tuple(entries),
        leads=tuple(leads),
        failures=tuple(failures),
        unfinished=tuple(cell for cell in grid.cells if cell.name not in over),
        untested=tuple(dict.fromkeys(untested)),
        taken_over=dict(Counter(source for cell, _ in grid.results() if (source := grid.source_of(cell)) is not None)),
        resamples=resamples,
        seed=seed,
        confidence=confidence,
    )


def _tasks(runs: Iterable[Run]) -> tuple[str, ...]:
    """The test tasks, those of the seven first."""
    scored = dict.fromkeys(name for run in runs for name in run.result.scores if name not in (DEV, AVERAGE))
    return tuple(sorted(scored, key=lambda name: SEVEN.index(name) if name in SEVEN else len(SEVEN)))


def _entries(grid: Grid, results: dict[str, Run]) -> Iterator[Entry]:
    info, chosen = grid.plan_info, grid.chosen()
    places: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in grid.first:
        places.setdefault((cell.group, cell.row, cell.column), []).append(cell)
    for (group, row, column), cells in places.items():
        setting = chosen.get((row, column))
        wanted = [
            cell
            for cell in grid.cells
            if (cell.group, cell.row, cell.column, cell.setting) == (group, row, column, setting)
        ]
        runs = tuple(results[cell.name] for cell in wanted if cell.name in results)
        yield Entry(
            group=group,
            row=row,
            column=column,
            baseline=cells[0].baseline,
            settings=setting_words(cells),
            tried=sum(cell.name in results for cell in cells),
            setting=None if setting is None else [cell.setting for cell in cells].index(setting),
            runs=runs,
            asked=max(len(wanted), _asked(cells[0], info)),
            values=_values(runs),
            published=_published(cells[0], info),
        )


def _published(cell: Cell, info: dict[str, Any]) -> dict[str, paper.Figure]:
    encoder, experiment = str(info.get("encoder", "")), str(info.get("experiment", ""))
    names = (*SEVEN, AVERAGE, DEV, MINUTES, GIB)
    found = {name: paper.published(encoder, experiment, cell.row, cell.column, name) for name in names}
    return {name: figure for name, figure in found.items() if figure is not None}


def _asked(cell: Cell, info: dict[str, Any]) -> int:
    """How many runs a row is meant to have at a column, also before the plan's second round is known."""
    seeds, draws = tuple(info.get("seeds") or (cell.seed,)), int(info.get("draws") or 1)
    return 1 + len(Plan("", "", [], "", (), seeds, draws).more(cell))


def _values(runs: Sequence[Run]) -> dict[str, Spread]:
    names = dict.fromkeys(name for run in runs for name in run.result.scores)
    found = {name: Spread.of([run.result.scores[name] for run in runs if name in run.result.scores]) for name in names}
    if runs:
        found[MINUTES] = Spread.of([run.result.seconds / 60 for run in runs])
        found[GIB] = Spread.of([run.result.gib for run in runs])
    return found


def _with_best(entries: list[Entry]) -> list[Entry]:
    marked = []
    for entry in entries:
        rivals = [other for other in entries if (other.group, other.column) == (entry.group, entry.column)]
        if len(rivals) == 1:
            rivals = [other for other in entries if (other.group, other.row) == (entry.group, entry.row)]
        best = frozenset(name for name in entry.values if len(rivals) > 1 and _is_best(name, entry, rivals))
        marked.append(replace(entry, best=best))
    return marked


def _is_best(name: str, entry: Entry, rivals: list[Entry]) -> bool:
    # As they are printed: of two that look the same, both are the best.
    values = [round(rival.values[name].mean, 2) for rival in rivals if name in rival.values]
    best = min(values) if name in (MINUTES, GIB) else max(values)
    return round(entry.values[name].mean, 2) == best


def _with_tests(entries: list[Entry], pairing: Pairing, untested: list[str]) -> list[Entry]:
    """Each entry against the strongest baseline of its group, which is chosen on dev and never on a test task."""
    tested = []
    runs = sum(len(entry.runs) for entry in entries)
    with progress_bar("paired tests", runs, show=runs > _WORTH_A_BAR and sys.stderr.isatty()) as advance:
        for entry in entries:
            strongest = _strongest(entry, entries)
            if strongest is entry:
                entry = replace(entry, strongest=True)
            elif strongest is not None and entry.runs:
                entry = replace(entry, test=_test(pairing, entry, strongest, untested))
            tested.append(entry)
            advance(len(entry.runs))
    return tested


def _strongest(entry: Entry, entries: list[Entry]) -> Entry | None:
    """At the same column; a baseline that has only one place, without a column, stands beside all of them."""
    candidates = [e for e in entries if e.baseline and e.group == entry.group and DEV in e.values]
    here = [e for e in candidates if e.column == entry.column] or [e for e in candidates if not e.column]
    return max(here, key=lambda e: e.values[DEV].mean, default=None)


def _test(pairing: Pairing, first: Entry, second: Entry, untested: list[str]) -> PairedTest | None:
    try:
        return pairing.test(first.runs, second.runs)
    except UnpairedError as error:
        untested.append(f"{first.place} against {second.place}: {error}")
        return None


def _leads(entries: list[Entry], pairing: Pairing, untested: list[str]) -> Iterator[Lead]:
    """Every row that is no baseline against every baseline of its group."""
    rows: dict[tuple[str, str], dict[str, Entry]] = {}
    for entry in entries:
        if entry.runs:
            rows.setdefault((entry.group, entry.row), {})[entry.column] = entry
    for (group, row), mine in rows.items():
        for (other_group, other), theirs in rows.items():
            if other_group != group or _is_baseline(mine) or not _is_baseline(theirs):
                continue
            tests = {
                column: _test(pairing, entry, theirs[column], untested)
                for column, entry in mine.items()
                if column in theirs
            }
            fewest = min(mine, key=lambda column: _labels(mine[column]))
            most = max(theirs, key=lambda column: _labels(theirs[column]))
            across = _test(pairing, mine[fewest], theirs[most], untested) if fewest != most else None
            found = {column: test for column, test in tests.items() if test is not None}
            yield Lead(group, row, other, found, fewest, most, across)


def _is_baseline(columns: dict[str, Entry]) -> bool:
    return next(iter(columns.values())).baseline


def _labels(entry: Entry) -> float:
    """How many labels an entry's runs had; infinity stands for all there are."""
    if entry.column == "0 %":  # the runs without labels are those of another recipe, and say nothing
        return 0.0
    kept = (change.partition("=") for change in entry.runs[0].cell.changes)
    return next((float(value) for key, _, value in kept if key == "data.labels"), math.inf)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
