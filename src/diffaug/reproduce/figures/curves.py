"""A figure of one panel: the dev score along the values of one hyper-parameter."""

from __future__ import annotations

from matplotlib.figure import Figure

from diffaug.errors import DiffaugError
from diffaug.reproduce.figures.lines import HOLLOW, along, by_row, number_axis, plot_reference, plot_row
from diffaug.reproduce.figures.measured import deviation, entries_of, gaps_note, runs_note, score_title, with_value
from diffaug.reproduce.figures.style import BACKGROUND, INK, add_notes, beside_panel, even_ticks, keep_apart, stacked
from diffaug.reproduce.grid import DEV, Grid


def score_along(grid: Grid, axis: str) -> Figure:
    """A line a row, its best value written beside it; baselines as dashed lines across.

    Args:
        grid: its columns are numbers.
        axis: what they stand for.
    """
    entries = entries_of(grid)
    found = with_value(entries, DEV)
    placed, references = along(entries, DEV)
    if not placed:
        raise DiffaugError("only the baselines of the grid are finished: there is nothing to draw against them")
    drawn, (axes,) = stacked([3.3])
    places = number_axis(axes, [entry.column for entry in placed])
    labels = [plot_reference(axes, entry, DEV) for entry in references]
    for row in by_row(placed).values():
        look = plot_row(axes, row, places, DEV)
        last = max(row, key=lambda entry: places[entry.column])
        labels.append(beside_panel(axes, last.values[DEV].mean, last.row, look.text))
        best = max(row, key=lambda entry: entry.values[DEV].mean)
        value = best.values[DEV]
        axes.annotate(
            f"{value.mean:.1f}",
            (places[best.column], value.mean + deviation(value)),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            color=INK,
            fontsize=9,
            fontweight="bold",
            bbox=BACKGROUND,
        )
    axes.margins(x=0.05, y=0.14)
    even_ticks(axes.yaxis)
    axes.set_title(score_title(DEV, found))
    axes.set_xlabel(axis)
    add_notes(drawn, runs_note(found), gaps_note(entries, DEV, HOLLOW))
    keep_apart(drawn, labels)
    return drawn
