"""Running a grid: cells to workers, what became of them to the folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from diffaug.errors import DiffaugError
from diffaug.evaluation.folder import Folders
from diffaug.reproduce.cell import Cell
from diffaug.reproduce.display import Display
from diffaug.reproduce.grid import SHARED, Grid
from diffaug.reproduce.schedule import Schedule
from diffaug.reproduce.score import StsTasks
from diffaug.reproduce.workers import Crew, Orders
from diffaug.training.signals import StopRequest, stop_on_signals

if TYPE_CHECKING:
    from diffaug.reproduce.plans import Plan
    from diffaug.reproduce.reuse import Reuse

# How long a request to stop may go unnoticed.
_LOOK_UP = 0.2


class GridInterrupted(DiffaugError):  # noqa: N818 - nothing went wrong
    """The grid was asked to stop; the state of its cells is saved."""

    def __init__(self, number: int) -> None:
        super().__init__("the grid was interrupted and its state saved; go on with the same command")
        self.signal = number


def run_grid(
    grid: Grid,
    plan: Plan,
    data: Folders,
    *,
    jobs: int = 1,
    rows: Collection[str] | None = None,
    keep_models: bool = True,
    reuse: Reuse | None = None,
    quiet: bool = False,
) -> list[tuple[Cell, str]]:
    """Run what is left of a grid: unfinished cells, cells that failed, then other seeds of the best settings.

    Args:
        grid: as `Grid.begin` gave it.
        plan: whose cells it has.
        data: the folders with the tasks that models are scored on.
        jobs: cells that run at the same time, each in a process of its own.
        rows: only these; None for all.
        keep_models: models stay when they are scored.
        reuse: finished cells of other grids, which are taken over where they are the same.
        quiet: no output for people.

    Returns:
        the cells that failed this time, and why.

    Raises:
        GridInterrupted: by Ctrl-C or SIGTERM.
        DiffaugError: another process works on the grid, or there is nothing to score models on.
    """
    if jobs < 1:
        raise DiffaugError(f"there must be at least one job, not {jobs}")
    fresh = plan.one_at_a_time
    orders = Orders(grid.folder, data, 1 if fresh else jobs, keep_models, fresh, plan.record)
    with grid.locked(), stop_on_signals() as stop, Crew(orders, grid.folder / "workers.log", stop) as crew:
        schedule = Schedule(grid, plan.more, rows, _taking_over(grid, reuse, keep_models, stop))
        if schedule.waiting:
            crew.start(schedule.waiting)
            StsTasks.load(data)  # while the workers get ready: what would fail every cell fails here
        with Display(schedule, quiet) as display:
            if fresh and jobs > 1 and schedule.waiting:
                display.say(f"{plan.experiment} measures time and memory: one cell at a time, not {jobs}")
            failures = _run(grid, schedule, crew, display, stop, reuse)
        shutil.rmtree(grid.folder / SHARED, ignore_errors=True)
        return failures


def _taking_over(
    grid: Grid, reuse: Reuse | None, keep_models: bool, stop: StopRequest
) -> Callable[[Cell], bool] | None:
    if reuse is None:
        return None
    # Many models take a while to copy, and whoever asks to stop should not have to wait for all of them.
    return lambda cell: not stop and reuse.take_over(cell, grid.folder_of(cell), keep_model=keep_models)


def _run(
    grid: Grid, schedule: Schedule, crew: Crew, display: Display, stop: StopRequest, reuse: Reuse | None
) -> list[tuple[Cell, str]]:
    failures: list[tuple[Cell, str]] = []
    asked = False
    while True:
        if stop and not asked:
            asked = True
            display.say("stopping: cells that run are saved first")
            crew.stop()
        while not stop and len(crew.running) < crew.orders.jobs and (cell := schedule.next()) is not None:
            crew.give(cell)
        for line in reuse.news() if reuse is not None else ():
            display.say(line)
        display.running(crew.running)
        if not crew.running:
            break
        for outcome in crew.outcomes(_LOOK_UP):
            cell, failure = outcome.cell, outcome.failure
            # What ended a process after the last write of its cell has not undone it.
            if (result := outcome.result or grid.result(cell)) is not None:
                schedule.over(cell, finished=True)
                display.finished(cell, result)
                continue
            if failure is None and not stop:
                failure = "the process that ran it was asked to stop, by somebody else; its state is saved"
            if failure is not None:
                grid.fail(cell, failure)
                failures.append((cell, failure))
                schedule.over(cell, finished=False)
                display.failed(cell, failure)
    if stop.signal is not None:
        raise GridInterrupted(stop.signal)
    return failures
