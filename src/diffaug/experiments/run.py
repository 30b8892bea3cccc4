"""Runs a grid: gives cells to an executor, writes outcomes to the folder, and shows progress."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from diffaug.cluster import Engine, check_engine, connected
from diffaug.errors import DiffaugError
from diffaug.experiments.executor import Executor, Orders, open_executor
from diffaug.experiments.grid import SHARED, Grid
from diffaug.experiments.inputs import check_inputs
from diffaug.experiments.results import AVERAGE, DEV, Cell, Result
from diffaug.experiments.schedule import Schedule
from diffaug.experiments.spec import TIME
from diffaug.progress import run_progress
from diffaug.training.signals import StopRequest, stop_on_signals

if TYPE_CHECKING:
    from diffaug.experiments.data import TaskFiles
    from diffaug.experiments.plan import Plan
    from diffaug.experiments.reuse import Reuse

# Seconds until a request to stop is noticed, between looks at the progress of cells, and between lines in a log.
_POLL, _REFRESH, _LOG_EVERY = 0.2, 1.0, 60.0
# More lines would not fit into a small window.
_SHOWN = 16


class GridInterrupted(DiffaugError):  # noqa: N818 - nothing went wrong
    """The grid was asked to stop; the state of its cells is saved."""

    def __init__(self, number: int) -> None:
        super().__init__("the grid was interrupted and its state saved; continue it with the same command")
        self.signal = number


def run_grid(
    grid: Grid,
    plan: Plan,
    tasks: TaskFiles,
    *,
    jobs: int | None = None,
    engine: Engine = "local",
    rows: Collection[str] | None = None,
    keep_models: bool = True,
    reuse: Reuse | None = None,
    force: bool = False,
    quiet: bool = False,
    plugins: Sequence[str] = (),
) -> list[tuple[Cell, str]]:
    """Run what is left of a grid: unfinished and failed cells, then other seeds of the best settings.

    Args:
        grid: from `Grid.begin`.
        plan: of its cells.
        tasks: what models are scored on.
        jobs: cells that run at the same time, each in a process of its own; None: 1, or with the engine ``"ray"`` one
            per GPU of the cluster, or per core if it has none.
        engine: ``"ray"`` runs cells on the nodes of a Ray cluster, which must share the folder of the grid.
        rows: only these; None: all.
        keep_models: keep models after they are scored.
        reuse: finished cells of other grids, which are copied where they are the same.
        force: continue even if data or models have changed since runs were made from them.
        quiet: no output.
        plugins: modules or .py files that every worker imports.

    Returns:
        The cells that failed this time, with their errors.

    Raises:
        GridInterrupted: by Ctrl-C or SIGTERM.
        DiffaugError: another process works on the grid, there are no tasks, inputs have changed, or there is no
            cluster.
    """
    check_engine(engine)
    if jobs is not None and jobs < 1:
        raise DiffaugError(f"the number of jobs must be at least 1, got {jobs}")
    alone = TIME in plan.spec.measure
    measure = tuple(plan.spec.measure)
    at_once = 1 if alone else jobs
    orders = Orders(grid.folder, tasks, at_once or 1, keep_models, alone, measure, tuple(plugins), force)
    with ExitStack() as stack:
        if engine == "ray":
            stack.enter_context(connected())  # before the handlers of signals, which Ray would replace
        stack.enter_context(grid.locked())
        stop = stack.enter_context(stop_on_signals())
        executor = stack.enter_context(open_executor(engine, orders, at_once, stop))

        def take_over(cell: Cell) -> bool:
            # Models take a while to copy; a request to stop should not wait for all of them.
            if stop or reuse is None or not reuse.take_over(cell, grid.folder_of(cell), keep_models):
                return False
            for note in reuse.forced:
                grid.add_note(note)
            return True

        schedule = Schedule(grid, plan.more, rows, take_over if reuse is not None else None)
        if schedule.waiting:
            executor.prepare(schedule.waiting)
            files = tasks.load().files  # while the workers start: an error here would fail every cell
        with Display(grid, schedule, quiet) as display:
            if schedule.waiting:
                asked = [cell for cell in grid.cells if rows is None or cell.row in rows]
                check_inputs(grid, asked, files, force=force, say=display.say)
            if alone and jobs is not None and jobs > 1 and schedule.waiting:
                display.say(f"{plan.spec.name} measures time and memory: one cell at a time, not {jobs}")
            failures = _run(grid, schedule, executor, display, stop, reuse)
        shutil.rmtree(grid.folder / SHARED, ignore_errors=True)
        return failures


def _run(
    grid: Grid, schedule: Schedule, executor: Executor, display: Display, stop: StopRequest, reuse: Reuse | None
) -> list[tuple[Cell, str]]:
    failures: list[tuple[Cell, str]] = []
    asked = False
    while True:
        if stop and not asked:
            asked = True
            display.say("stopping: running cells save their state first")
            executor.stop()
        while not stop and len(executor.running) < executor.capacity and (cell := schedule.next()) is not None:
            executor.submit(cell)
        for line in reuse.news() if reuse is not None else ():
            display.say(line)
        display.running(executor.running)
        if not executor.running:
            break
        for outcome in executor.wait(_POLL):
            cell, failure = outcome.cell, outcome.failure
            # A process may end after the last file of its cell is written.
            if (result := outcome.result or grid.result(cell)) is not None:
                schedule.over(cell, finished=True)
                display.finished(cell, result)
                continue
            if failure is None and not stop:
                failure = "the worker process was asked to stop by another process; its state is saved"
            if failure is not None:
                grid.fail(cell, failure)
                failures.append((cell, failure))
                schedule.over(cell, finished=False)
                display.failed(cell, failure)
    if stop.signal is not None:
        raise GridInterrupted(stop.signal)
    return failures


class Display:
    """Progress on standard error, as a context manager.

    A line for each cell that ends. On a terminal, also one for each running cell with its step and time left; in a log,
    such lines once a minute.

    Args:
        grid: whose cells run.
        schedule: of the grid.
        quiet: no output.
    """

    def __init__(self, grid: Grid, schedule: Schedule, quiet: bool = False) -> None:
        self._grid = grid
        self._schedule = schedule
        self._running: list[str] = []
        self._failed = 0
        self._looked = self._logged = time.monotonic()
        self._cells: list[Cell] = []
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._live = Live(self, console=self.console, transient=True, refresh_per_second=4, auto_refresh=False)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def running(self, cells: Sequence[Cell]) -> None:
        """These cells run now."""
        now = time.monotonic()
        if list(cells) == self._cells and now - self._looked < _REFRESH:
            return
        self._cells, self._looked = list(cells), now
        if self._live.is_started:
            self._running = [_progress_line(cell, self._grid.folder_of(cell)) for cell in cells]
            self._live.refresh()
        elif now - self._logged >= _LOG_EVERY:
            self._logged = now
            for cell in cells:
                self.say(f"{self._count()}  {_progress_line(cell, self._grid.folder_of(cell))}")

    def finished(self, cell: Cell, result: Result) -> None:
        """A cell has finished."""
        scores = f"dev {result.scores[DEV]:.2f}  average {result.scores[AVERAGE]:.2f}"
        self.say(f"{self._count()}  {cell.line}: {scores}  ({result.seconds:.0f} s)")

    def failed(self, cell: Cell, failure: str) -> None:
        """A cell has failed."""
        self._failed += 1
        self.say(f"{self._count()}  {cell.line} failed: {failure.splitlines()[0]}", style="red")

    def say(self, text: str, style: str = "") -> None:
        """Print a line."""
        self.console.print(Text(text, style=style), soft_wrap=True)

    def __rich__(self) -> RenderableType:
        schedule = self._schedule
        overall = Table.grid(padding=(0, 1))
        failed = f", {self._failed} failed" if self._failed else ""
        overall.add_row(
            ProgressBar(total=schedule.total, completed=schedule.finished, width=40),
            f"{schedule.finished} of {schedule.total} cells{failed}",
        )
        lines = [Text(f"  {line}", style="dim") for line in self._running[:_SHOWN]]
        if len(self._running) > _SHOWN:
            lines.append(Text(f"  and {len(self._running) - _SHOWN} more", style="dim"))
        return Group(overall, *lines)

    def _count(self) -> str:
        return f"{self._schedule.finished:>{len(str(self._schedule.total))}}/{self._schedule.total}"


def _progress_line(cell: Cell, run: Path) -> str:
    """A running cell with stage, step and time left, as far as its run has written them."""
    words = run_progress(run)
    return cell.line if words is None else f"{cell.line}: {words}"
