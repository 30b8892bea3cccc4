"""The runs of a reproduced experiment's grid, with the names its table gives them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from diffaug.experiments.grid import Grid
from diffaug.experiments.results import DEV, Cell
from diffaug.report.runs import Run, failure_words, read_run

# Curves shown at first.
_MOST = 12


@dataclass
class GridRuns:
    """A grid and its runs, those that have not begun included."""

    grid: Grid
    runs: list[Run]

    @property
    def title(self) -> str:
        """What the experiment is about."""
        info = self.grid.plan_info
        return str(info.get("title") or info.get("experiment") or self.grid.folder.name)


def read_grid(folder: Path) -> GridRuns:
    """The grid in a folder.

    Raises:
        DiffaugError: it is damaged.
    """
    grid = Grid.open(folder)
    chosen = grid.chosen()
    tasks = _task_folders(grid)
    failures = {cell.name: text for cell, text in grid.failures()}
    name_of = _names(grid.cells)
    runs = []
    for cell in grid.cells:
        run = read_run(grid.folder_of(cell), name_of[cell.name])
        run.cell, run.result, run.family, run.tasks = cell, grid.result(cell), cell.row, tasks
        if run.result is not None:
            source = grid.source_of(cell)
            run.state, run.detail = "finished", "" if source is None else f"taken over from {Path(source).name}"
            run.scores, run.seconds = dict(run.result.scores), run.result.seconds
            run.best_at, run.stage1_end = run.result.best_at, run.result.stage1_end
        elif cell.name in failures:
            run.state, run.detail = "failed", failure_words(failures[cell.name])
        elif run.state == "finished":
            run.state, run.detail = "unfinished", "trained, not scored yet"
        elif not run.recipe:
            run.state, run.detail = "waiting", "not begun"
        run.shown = False
        runs.append(run)
    measured = [run for run in runs if run.result and run.cell and chosen.get(_place(run.cell)) == run.cell.setting]
    for run in _few(measured, list(dict.fromkeys(cell.column for cell in grid.first))):
        run.shown = True
    return GridRuns(grid, runs)


def _place(cell: Cell) -> tuple[str, str]:
    return cell.row, cell.column


def _few(runs: list[Run], columns: list[str]) -> list[Run]:
    """A run a row and column; where those are too many to be told apart, only the last column of each row.

    Of many rows, those that are no baselines, and the baselines of each group that are best on the dev pairs.
    """
    places = {_place(run.cell): run for run in reversed(runs) if run.cell}
    if len(places) <= _MOST:
        return list(places.values())
    ordered = sorted(places.items(), key=lambda place: columns.index(place[0][1]))
    rows = {row: run for (row, _), run in ordered}
    if len(rows) <= _MOST:
        return list(rows.values())
    groups: dict[str, list[Run]] = {}
    own: list[Run] = []
    for run in sorted(rows.values(), key=lambda run: -run.scores[DEV]):
        if run.cell is not None:
            (groups.setdefault(run.cell.group, []) if run.cell.baseline else own).append(run)
    turns = [run for turn in zip_longest(*groups.values()) for run in turn if run is not None]
    return [*own, *turns][:_MOST]


def _task_folders(grid: Grid) -> tuple[Path, ...]:
    """The folders that the tasks were read from, if they are still there."""
    data = grid.plan_info.get("data")
    folder = data.get("folder") if isinstance(data, dict) else data
    names = [folder] if isinstance(folder, str) else folder or []
    return tuple(Path(name) for name in names if Path(name).is_dir())


def _names(cells: list[Cell]) -> dict[str, str]:
    """A short name for each cell: its row, and whatever else tells the cells of this grid apart."""
    several = {part: len({getattr(cell, part) for cell in cells}) > 1 for part in ("column", "setting", "draw", "seed")}

    def parts(cell: Cell) -> Iterable[str]:
        yield cell.row
        if several["column"] and cell.column:
            yield cell.column
        for part in ("setting", "draw", "seed"):
            if several[part]:
                yield f"{part} {getattr(cell, part)}"

    return {cell.name: " · ".join(parts(cell)) for cell in cells}
