"""The dev score, and stage 1's training loss, against the number of stage-1 steps."""

from __future__ import annotations

import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffaug.errors import DiffaugError
from diffaug.reproduce.figures.lines import along, by_row, plot_line, plot_reference
from diffaug.reproduce.figures.measured import (
    curve,
    deviation,
    entries_of,
    gaps_note,
    number,
    recipe_of,
    runs_note,
    score_title,
)
from diffaug.reproduce.figures.style import (
    INK,
    RING,
    add_notes,
    even_ticks,
    keep_apart,
    look_of,
    mark_step,
    stacked,
)
from diffaug.reproduce.findings import Entry, Spread
from diffaug.reproduce.grid import DEV, Grid
from diffaug.reproduce.words import listed

AUTO = "auto"
# The part of stage 1 at whose end the loss is averaged: a single batch's loss is noise.
_LAST_PART = 0.1


def figure(grid: Grid) -> Figure:
    """Two panels over the same steps. `auto` is marked where it ended stage 1, by itself: it is no step count."""
    entries = entries_of(grid)
    placed, others = along(entries, DEV)
    automatic = [entry for entry in others if entry.column == AUTO]
    if not placed:
        raise DiffaugError("no run with a fixed number of stage-1 steps is finished: there is nothing to draw")
    drawn, (top, bottom) = stacked([2.5, 2.3])
    labels = [plot_reference(top, entry, DEV) for entry in others if entry not in automatic]
    losses = {entry.place: _loss(entry) for entry in (*placed, *automatic)}
    for row in by_row(placed).values():
        look = look_of(recipe_of(row[0]))
        row = sorted(row, key=_steps)
        plot_line(top, [(_steps(entry), entry.values[DEV]) for entry in row], look, row[0].row)
        with_loss = [(_steps(entry), loss) for entry in row if (loss := losses[entry.place]) is not None]
        plot_line(bottom, with_loss, look, row[0].row)
    for axes in (top, bottom):
        axes.margins(x=0.05, y=0.16)
        even_ticks(axes.yaxis)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    for entry in automatic:
        _mark(top, _steps(entry), entry.values[DEV], f"auto ({_steps(entry):,.0f})")
        if (loss := losses[entry.place]) is not None:
            _mark(bottom, _steps(entry), loss, None)
    top.set_title(score_title(DEV, placed))
    bottom.set_title("Training loss at the end of stage 1")
    bottom.set_xlabel("Stage-1 steps")
    # Without a stage 1 there is nothing to record.
    without = [entry.place for entry in (*placed, *automatic) if losses[entry.place] is None and _steps(entry) > 0]
    missing = f"Without a recorded loss: {listed(without)}" if without else None
    add_notes(drawn, runs_note([*placed, *automatic]), missing, gaps_note(entries, DEV))
    keep_apart(drawn, labels)
    return drawn


def _steps(entry: Entry) -> float:
    """The steps of stage 1: those asked for, or those `auto` took."""
    asked = number(entry.column)
    return asked if asked is not None else statistics.fmean(run.result.steps["1"] for run in entry.runs)


def _loss(entry: Entry) -> Spread | None:
    """The training loss over the last part of stage 1; None if no run recorded it."""
    ends = []
    for run in entry.runs:
        recorded = curve(run.folder, "loss", stage=1)
        if recorded:
            start = (1 - _LAST_PART) * max(recorded)
            ends.append(statistics.fmean(loss for step, loss in recorded.items() if step > start))
    return Spread.of(ends) if ends else None


def _mark(axes: Axes, steps: float, value: Spread, text: str | None) -> None:
    """A ring with its deviation."""
    mark_step(axes, steps, text, top=False)
    axes.errorbar(
        [steps],
        [value.mean],
        yerr=[deviation(value)],
        fmt="o",
        ecolor=INK,
        elinewidth=1.2,
        capsize=2.5,
        zorder=4,
        label=AUTO,
        **RING,
    )
