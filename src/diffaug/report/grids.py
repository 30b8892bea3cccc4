"""The runs of an experiment grid, named as in the grid's table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from diffaug.experiments.grid import Grid
from diffaug.experiments.results import DEV, Cell
from diffaug.report.runs import Run, failure_message, read_run

_MAX_SHOWN = 12  # curves shown at first


@dataclass
class GridRuns:
    """A grid and its runs, including those that have not started."""

    grid: Grid
    runs: list[Run]

    @property
    def title(self) -> str:
        """The experiment's title."""
        info = self.grid.plan_info
        return str(info.get("title") or info.get("experiment") or self.grid.folder.name)


def read_grid(folder: Path) -> GridRuns:
    """Read the grid in a folder.

    Raises:
        DiffaugError: the grid is damaged.
    """
    grid = Grid.open(folder)
    chosen = grid.chosen()
    tasks = _task_folders(grid)
    failures = {cell.name: text for cell, text in grid.failures()}
    names = _names(grid.cells)
    runs = []
    for cell in grid.cells:
        run = read_run(grid.folder_of(cell), names[cell.name])
        run.cell, run.result, run.family, run.tasks = cell, grid.result(cell), cell.row, tasks
        if run.result is not None:
            source = grid.source_of(cell)
            run.state, run.detail = "finished", "" if source is None else f"copied from {Path(source).name}"
            run.scores, run.seconds = dict(run.result.scores), run.result.seconds
            run.before = {DEV if name == "dev" else name: score for name, score in run.before.items()}
            run.best_at, run.stage1_end = run.result.best_at, run.result.stage1_end
        elif cell.name in failures:
            run.state, run.detail = "failed", failure_message(failures[cell.name])
        elif run.state == "finished":
            run.state, run.detail = "unfinished", "trained, not evaluated yet"
        elif not run.recipe:
            run.state, run.detail = "waiting", "not started"
        run.shown = False
        runs.append(run)
    scored = [run for run in runs if run.result and run.cell and chosen.get(_key(run.cell)) == run.cell.setting]
    for run in _shown_at_first(scored, list(dict.fromkeys(cell.column for cell in grid.first))):
        run.shown = True
    return GridRuns(grid, runs)


def _key(cell: Cell) -> tuple[str, str]:
    return cell.row, cell.column


def _shown_at_first(runs: list[Run], columns: list[str]) -> list[Run]:
    """One run per row and column; if those are too many to distinguish, one per row, from its last column.

    If there are also too many rows: the rows that are not baselines, then each group's best baselines by dev score.
    """
    cells = {_key(run.cell): run for run in reversed(runs) if run.cell}
    if len(cells) <= _MAX_SHOWN:
        return list(cells.values())
    ordered = sorted(cells.items(), key=lambda item: columns.index(item[0][1]))
    rows = {row: run for (row, _), run in ordered}
    if len(rows) <= _MAX_SHOWN:
        return list(rows.values())
    groups: dict[str, list[Run]] = {}
    own: list[Run] = []
    for run in sorted(rows.values(), key=lambda run: -run.scores[DEV]):
        if run.cell is not None:
            (groups.setdefault(run.cell.group, []) if run.cell.baseline else own).append(run)
    turns = [run for turn in zip_longest(*groups.values()) for run in turn if run is not None]
    return [*own, *turns][:_MAX_SHOWN]


def _task_folders(grid: Grid) -> tuple[Path, ...]:
    """The folders of the evaluation data, as far as they still exist."""
    data = grid.plan_info.get("data")
    folder = data.get("folder") if isinstance(data, dict) else data
    names = [folder] if isinstance(folder, str) else folder or []
    return tuple(Path(name) for name in names if Path(name).is_dir())


def _names(cells: list[Cell]) -> dict[str, str]:
    """A short, unique name for each cell: its row, then column, setting, draw and seed where the grid has several."""
    several = {part: len({getattr(cell, part) for cell in cells}) > 1 for part in ("column", "setting", "draw", "seed")}

    def parts(cell: Cell) -> Iterable[str]:
        yield cell.row
        if several["column"] and cell.column:
            yield cell.column
        for part in ("setting", "draw", "seed"):
            if several[part]:
                yield f"{part} {getattr(cell, part)}"

    return {cell.name: " · ".join(parts(cell)) for cell in cells}
