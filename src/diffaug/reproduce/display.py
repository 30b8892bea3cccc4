"""What people see of a grid that runs: a line for each cell that ends, and on a terminal what is under way."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from diffaug.reproduce.cell import Cell, Result
from diffaug.reproduce.grid import DEV
from diffaug.reproduce.schedule import Schedule
from diffaug.reproduce.score import AVERAGE
from diffaug.reproduce.words import cell_words

# More would push the lines of finished cells out of a small window.
_SHOWN = 16


class Display:
    """Speaks on standard error, as a context.

    Args:
        schedule: how far the grid is.
        quiet: say nothing.
    """

    def __init__(self, schedule: Schedule, quiet: bool = False) -> None:
        self._schedule = schedule
        self._running: list[Cell] = []
        self._failed = 0
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._live = Live(self, console=self.console, transient=True, refresh_per_second=4, auto_refresh=False)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def running(self, cells: list[Cell]) -> None:
        """These cells are being run now."""
        self._running = cells
        if self._live.is_started:
            self._live.refresh()

    def finished(self, cell: Cell, result: Result) -> None:
        """A cell has finished."""
        scores = f"dev {result.scores[DEV]:.2f}  average {result.scores[AVERAGE]:.2f}"
        self.say(f"{self._count()}  {cell_words(cell)}: {scores}  ({result.seconds:.0f} s)")

    def failed(self, cell: Cell, failure: str) -> None:
        """A cell has failed."""
        self._failed += 1
        self.say(f"{self._count()}  {cell_words(cell)} failed: {failure.splitlines()[0]}", style="red")

    def say(self, text: str, style: str = "") -> None:
        """A line for people."""
        self.console.print(Text(text, style=style), soft_wrap=True)

    def __rich__(self) -> RenderableType:
        schedule = self._schedule
        overall = Table.grid(padding=(0, 1))
        failed = f", {self._failed} failed" if self._failed else ""
        overall.add_row(
            ProgressBar(total=schedule.total, completed=schedule.finished, width=40),
            f"{schedule.finished} of {schedule.total} cells{failed}",
        )
        lines = [Text(f"  {cell_words(cell)}", style="dim") for cell in self._running[:_SHOWN]]
        if len(self._running) > _SHOWN:
            lines.append(Text(f"  and {len(self._running) - _SHOWN} more", style="dim"))
        return Group(overall, *lines)

    def _count(self) -> str:
        return f"{self._schedule.finished:>{len(str(self._schedule.total))}}/{self._schedule.total}"
