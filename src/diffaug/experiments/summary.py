"""From the folder of a grid to its summary: means, chosen settings, comparisons, and what is missing."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from diffaug.experiments.grid import Grid
from diffaug.experiments.paired import Pairing, ResampleCache, UnpairedError
from diffaug.experiments.paper import Quoted
from diffaug.experiments.plan import other_runs
from diffaug.experiments.results import (
    AVERAGE,
    DEV,
    GIB,
    MINUTES,
    SEVEN,
    Cell,
    Entry,
    Lead,
    PairedTest,
    Run,
    Spread,
    Summary,
    setting_words,
)
from diffaug.experiments.spec import spec_of
from diffaug.progress import progress_bar

# Fewer runs are resampled in a few seconds.
_RUNS_WITH_BAR = 20


def summarise(
    grid: Grid, *, rows: Collection[str] | None = None, resamples: int = 1000, seed: int = 0, confidence: float = 0.95
) -> Summary:
    """Summarise the finished runs of a grid.

    Bootstrap samples are cached in the folder of the grid.

    Args:
        grid: finished or not.
        rows: only these; None: all.
        resamples: of the paired bootstrap over sentence pairs; 0: no comparisons.
        seed: of the bootstrap.
        confidence: of its intervals.

    Raises:
        DiffaugError: a file of the grid is damaged.
    """
    if rows is not None:
        rounds = [[cell for cell in cells if cell.row in rows] for cells in (grid.first, grid.more)]
        grid = Grid(grid.folder, grid.request, grid.about, *rounds)
    spec = spec_of(grid.plan_info)
    results = {cell.name: Run(cell, result, grid.folder_of(cell)) for cell, result in grid.results()}
    tasks = _tasks(results.values())
    entries = _with_best(list(_entries(grid, results)))
    untested: list[str] = []
    leads: list[Lead] = []
    if resamples and tasks and "tests" in spec.tables:
        with ResampleCache(grid.folder) as cache:
            pairing = Pairing(tasks, resamples, seed, confidence, cache)
            entries = _with_tests(entries, pairing, untested)
            leads = list(_leads(entries, pairing, untested)) if "lead" in spec.tables else []
    failures = [(cell, _first_line(text)) for cell, text in grid.failures()]
    over = {*results, *(cell.name for cell, _ in failures)}
    sources = (grid.source_of(run.cell) for run in results.values())
    return Summary(
        info=grid.plan_info,
        tasks=tasks,
        columns=tuple(dict.fromkeys(cell.column for cell in grid.first)),
        entries=tuple(entries),
        leads=tuple(leads),
        failures=tuple(failures),
        unfinished=tuple(cell for cell in grid.cells if cell.name not in over),
        untested=tuple(dict.fromkeys(untested)),
        taken_over=dict(Counter(source for source in sources if source is not None)),
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
    quoted = Quoted(spec_of(info), str(info.get("encoder") or ""))
    names = (*SEVEN, AVERAGE, DEV, MINUTES, GIB)
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
        # How many runs are asked for is known before the second round is planned.
        others = other_runs(cells[0], info.get("seeds") or [cells[0].seed], int(info.get("draws") or 1))
        published = {name: quoted.get(row, column, name) for name in names}
        yield Entry(
            group=group,
            row=row,
            column=column,
            baseline=cells[0].baseline,
            settings=setting_words(cells),
            tried=sum(cell.name in results for cell in cells),
            setting=None if setting is None else [cell.setting for cell in cells].index(setting),
            runs=runs,
            asked=max(len(wanted), 1 + len(others)),
            values=_values(runs),
            published={name: number for name, number in published.items() if number is not None},
        )


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
        best = frozenset(name for name in entry.values if _is_best(name, entry, rivals))
        marked.append(replace(entry, best=best))
    return marked


def _is_best(name: str, entry: Entry, rivals: list[Entry]) -> bool:
    # Rounded as printed: of two that look the same, both are the best.
    values = [round(rival.values[name].mean, 2) for rival in rivals if name in rival.values]
    if len(values) == 1:  # one entry alone is not the best of anything
        return False
    best = min(values) if name in (MINUTES, GIB) else max(values)
    return round(entry.values[name].mean, 2) == best


def _with_tests(entries: list[Entry], pairing: Pairing, untested: list[str]) -> list[Entry]:
    """Each entry with its comparison with the strongest baseline of its group."""
    tested = []
    runs = sum(len(entry.runs) for entry in entries)
    with progress_bar("paired tests", runs, show=runs > _RUNS_WITH_BAR and sys.stderr.isatty()) as advance:
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
    """The baseline of the group that is best on the dev pairs, never on a test task.

    It is taken from the same column; a baseline without columns is compared with all columns.
    """
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
    """Every row that is not a baseline, compared with every baseline of its group."""
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
    """The number of labels of an entry; infinity: all."""
    if entry.column == "0 %":  # another recipe, without `data.labels`
        return 0.0
    changes = (change.partition("=") for change in entry.runs[0].cell.changes)
    return next((float(value) for key, _, value in changes if key == "data.labels"), math.inf)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
