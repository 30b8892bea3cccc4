"""What a grid would run, and how far it is, without running anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from diffaug.reproduce.cell import Cell
from diffaug.reproduce.grid import Grid
from diffaug.reproduce.words import counted, run_words, setting_words

if TYPE_CHECKING:
    from diffaug.reproduce.reuse import Reuse


def listing(
    grid: Grid,
    more: Callable[[Cell], list[Cell]],
    rows: Collection[str] | None = None,
    reuse: Reuse | None = None,
) -> Iterator[str]:
    """A paragraph for each row and column with a line for each run that is known, and how many runs there are in all.

    Args:
        grid: begun or not.
        more: the other seeds and draws of a cell that won.
        rows: only these; None for all.
        reuse: finished cells of other grids, which would be taken over.
    """
    states = dict.fromkeys((cell.name for cell in grid.cells), "to do")
    states |= {cell.name: "failed" for cell, _ in grid.failures()}
    states |= {cell.name: "finished" for cell, _ in grid.results()}
    counts = {"finished": 0, "failed": 0, "to do": 0}
    tries = repeats = 0
    to_do: list[Cell] = []
    open_choice = False
    for (row, column), first in _places(grid.first, rows).items():
        later = [cell for cell in grid.more if (cell.row, cell.column) == (row, column)]
        # Which setting they will have is open as long as none is chosen; how many there will be is not.
        best = grid.best((row, column))
        to_come = [cell for cell in more(best or first[0]) if cell.name not in states]
        yield "  ".join(part for part in (row, column, f"({first[0].recipe})") if part)
        yield from _lines(first, setting_words(first), states)
        yield from _lines(later, [""] * len(later), states)
        if to_come:
            times = counted(len(to_come), "more time")
            what = "then the best setting" if len(first) > 1 else "then"
            yield f"  {what} {times}, with other {_others(to_come, first[0])}"
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
            # A best setting that is still to be found may bring more.
            yield f"{'At least ' if open_choice else ''}{sources[folder]:,} of them taken over from {folder}."


def _places(cells: list[Cell], rows: Collection[str] | None) -> dict[tuple[str, str], list[Cell]]:
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if rows is None or cell.row in rows:
            found.setdefault((cell.row, cell.column), []).append(cell)
    return found


def _lines(cells: list[Cell], settings: Collection[str], states: dict[str, str]) -> Iterator[str]:
    for cell, setting in zip(cells, settings, strict=True):
        state = states[cell.name]
        yield "  ".join(["", *run_words(cell), f"{state:8}", setting]).rstrip()


def _others(cells: list[Cell], first: Cell) -> str:
    """`seeds`, `draws`, or both."""
    differ = {"seeds": any(c.seed != first.seed for c in cells), "draws": any(c.draw != first.draw for c in cells)}
    return " and ".join(what for what, do in differ.items() if do)
