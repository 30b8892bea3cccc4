"""What is left to do in a grid: first all settings of a row and column, then other seeds and draws of the best."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from diffaug.experiments.grid import Grid
from diffaug.experiments.results import Cell, Place, counted, setting_words

if TYPE_CHECKING:
    from diffaug.experiments.reuse import Reuse


class Schedule:
    """The cells that are ready to run. It reads the files of the grid, and must be told when a cell has ended.

    The second round of a row and column begins when its settings have all run. Cells that failed are tried again.

    Args:
        grid: whose cells are run.
        more: the other seeds and draws of a cell whose setting was chosen.
        rows: only these; None: all.
        take_over: copies a finished cell from another grid and returns whether it could; None: every cell is run.

    Attributes:
        total: number of cells of both rounds, including finished ones.
        finished: how many of them are finished.
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
        by_place = {cell.place: cell for cell in first}
        self.total = len(first) + sum(len(more(cell)) for cell in by_place.values())
        # By setting, not by row: settings of a row often share their stage 1, which runs that train at the same time
        # cannot take over from each other.
        self._queue(sorted(first, key=lambda cell: cell.setting))
        for place in by_place:
            self._second_round(place)

    def next(self) -> Cell | None:
        """The next cell to run; None if none is ready, though more may become ready when a cell ends."""
        return self._waiting.popleft() if self._waiting else None

    @property
    def waiting(self) -> int:
        """How many cells are ready to run."""
        return len(self._waiting)

    def over(self, cell: Cell, finished: bool) -> None:
        """A cell has finished or failed; its files are written."""
        self.finished += finished
        if cell in self._first:
            self._second_round(cell.place)

    def _second_round(self, place: Place) -> None:
        best = self._grid.best(place)
        if best is not None:
            cells = self._more(best)
            self._grid.add(cells)
            self._queue(cells)

    def _queue(self, cells: list[Cell]) -> None:
        # Where two settings of a row end at the same time, the files of both are there when the first is reported, and
        # the second round is queued then. It must not be queued again with the other.
        new = [cell for cell in cells if cell not in self._known]
        self._known.update(new)
        for cell in new:
            if self._grid.result(cell) is not None or (self._take_over is not None and self._take_over(cell)):
                self.finished += 1
            else:
                # The setting is tried again before one is chosen.
                self._grid.forget_failure(cell)
                self._waiting.append(cell)


def listing(
    grid: Grid, more: Callable[[Cell], list[Cell]], rows: Collection[str] | None = None, reuse: Reuse | None = None
) -> Iterator[str]:
    """The output of `--dry-run`: a paragraph per row and column with a line per known run, and totals.

    Args:
        grid: begun or not.
        more: the other seeds and draws of a cell whose setting was chosen.
        rows: only these; None: all.
        reuse: finished cells of other grids.
    """
    states = dict.fromkeys((cell.name for cell in grid.cells), "to do")
    states |= {cell.name: "failed" for cell, _ in grid.failures()}
    states |= {cell.name: "finished" for cell, _ in grid.results()}
    counts = {"finished": 0, "failed": 0, "to do": 0}
    tries = repeats = 0
    to_do: list[Cell] = []
    open_choice = False
    places: dict[Place, list[Cell]] = {}
    for cell in grid.first:
        if rows is None or cell.row in rows:
            places.setdefault(cell.place, []).append(cell)
    for place, first in places.items():
        later = [cell for cell in grid.more if cell.place == place]
        # While no setting is chosen, the number of further runs is known, but not their setting.
        best = grid.best(place)
        to_come = [cell for cell in more(best or first[0]) if cell.name not in states]
        yield "  ".join(part for part in (*place, f"({first[0].recipe})") if part)
        for cell, setting in zip([*first, *later], [*setting_words(first), *[""] * len(later)], strict=True):
            yield "  ".join(["", *cell.run, f"{states[cell.name]:8}", setting]).rstrip()
        if to_come:
            what = "then the best setting" if len(first) > 1 else "then"
            yield f"  {what} {counted(len(to_come), 'more time')}, with other {_others(to_come, first[0])}"
        for cell in (*first, *later):
            counts[states[cell.name]] += 1
        to_do += [cell for cell in (*first, *later) if states[cell.name] != "finished"]
        if best is not None or len(first) == 1:
            to_do += to_come
        else:
            open_choice |= bool(to_come)
        counts["to do"] += len(to_come)
        tries += len(first)
        repeats += len(later) + len(to_come)
    yield ""
    total = counted(tries + repeats, "run")
    yield f"{total}: {tries:,} to try every setting once, {repeats:,} to repeat the best with other seeds or draws."
    yield ", ".join(f"{count:,} {state}" for state, count in counts.items()) + "."
    if reuse is not None:
        sources = Counter(reuse.source(cell) for cell in to_do)
        for folder in reuse.folders:
            # Runs of a setting that is not chosen yet may be added.
            yield f"{'At least ' if open_choice else ''}{sources[folder]:,} of them copied from {folder}."
        yield from (f"{line}." for line in reuse.news())  # those that are not


def _others(cells: list[Cell], first: Cell) -> str:
    """`seeds`, `draws`, or both."""
    differ = {"seeds": any(c.seed != first.seed for c in cells), "draws": any(c.draw != first.draw for c in cells)}
    return " and ".join(what for what, do in differ.items() if do)
