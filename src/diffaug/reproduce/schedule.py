"""Which cell comes next: all settings of a row and column first, then the other seeds and draws of the best."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from diffaug.reproduce.cell import Cell
from diffaug.reproduce.grid import Grid


class Schedule:
    """What is still to do in a grid. It looks at the grid's files, and so must be told when a cell is over.

    The second round of a row and column begins when its own settings have been tried, whatever others do. Cells that
    failed before are tried again.

    Args:
        grid: whose cells are run.
        more: the other seeds and draws of a cell that won.
        rows: only these; None for all.
        take_over: finishes a cell without running it, and says whether it could; None: every cell is run.

    Attributes:
        total: how many cells there will be in the end, finished ones included.
        finished: how many of them are.
    """

    def __init__(
        self,
        grid: Grid,
        more: Callable[[Cell], list[Cell]],
        rows: Collection[str] | None = None,
        take_over: Callable[[Cell], bool] | None = None,
    ) -> None:
        self._grid = grid
        self._more = more
        self._take_over = take_over
        self._waiting: deque[Cell] = deque()
        self._known: set[Cell] = set()
        self.finished = 0
        first = [cell for cell in grid.first if rows is None or cell.row in rows]
        self._first = set(first)
        by_place = {(cell.row, cell.column): cell for cell in first}
        self.total = len(first) + sum(len(more(cell)) for cell in by_place.values())
        # Setting by setting, not row by row: settings of a row often share their stage 1, which runs that are under way
        # at the same time cannot take over from each other.
        self._queue(sorted(first, key=lambda cell: cell.setting))
        for place in by_place:
            self._second_round(place)

    def next(self) -> Cell | None:
        """The next cell to run; None if none is ready, though the end of one that runs may bring more."""
        return self._waiting.popleft() if self._waiting else None

    @property
    def waiting(self) -> int:
        """How many cells are ready to run."""
        return len(self._waiting)

    def over(self, cell: Cell, finished: bool) -> None:
        """A cell has finished, or failed; its files say so already."""
        self.finished += finished
        if cell in self._first:
            self._second_round((cell.row, cell.column))

    def _second_round(self, place: tuple[str, str]) -> None:
        best = self._grid.best(place)
        if best is not None:
            cells = self._more(best)
            self._grid.add(cells)
            self._queue(cells)

    def _queue(self, cells: list[Cell]) -> None:
        # Where two settings of a row end together, the first of them to be reported finds the files of both: the second
        # round begins then, and must not begin again with the other.
        new = [cell for cell in cells if cell not in self._known]
        self._known.update(new)
        for cell in new:
            if self._grid.result(cell) is not None or (self._take_over is not None and self._take_over(cell)):
                self.finished += 1
            else:
                # A failure that is about to be tried again does not count when the best setting is chosen.
                self._grid.forget_failure(cell)
                self._waiting.append(cell)
