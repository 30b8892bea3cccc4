"""The main table and the ablation as dots: a line a row, groups below one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffaug.reproduce.figures.measured import (
    deviation,
    entries_of,
    gaps_note,
    recipe_of,
    runs_note,
    score_title,
    tasks_note,
    with_value,
)
from diffaug.reproduce.figures.style import (
    BACKGROUND,
    FAINT,
    INK,
    LINE,
    add_notes,
    broken,
    even_ticks,
    look_of,
    stacked,
)
from diffaug.reproduce.findings import Entry
from diffaug.reproduce.grid import DEV, Grid
from diffaug.reproduce.score import AVERAGE

# Inches a row takes, and the figure around them.
_ROW, _AROUND = 0.25, 1.1
# Rows that are further below the best than this, and behind a gap, stand at the edge: a model without training may
# squeeze all others together.
_REACH, _GAP = 18.0, 5.0
_NAME_CHARACTERS = 25
_SHORT = "†"  # fewer runs than asked for


def main(grid: Grid) -> Figure:
    """The test average of every method."""
    return _figure(grid, AVERAGE)


def ablation(grid: Grid) -> Figure:
    """The dev score of every variant, as in the paper."""
    return _figure(grid, DEV)


def _figure(grid: Grid, score: str) -> Figure:
    entries = entries_of(grid)
    found = with_value(entries, score)
    rows, headings, total = _arrange(found)
    drawn, (axes,) = stacked([_AROUND + _ROW * total])
    edge = _edge([entry.values[score].mean for entry in found])
    for height, entry in rows.items():
        _dot(axes, entry, score, height, far=entry.values[score].mean < edge)
    axes.set_yticks(list(rows), labels=[_name(entry) for entry in rows.values()])
    axes.set_ylim(total, 0)  # from the top, as in a table
    axes.margins(x=0.06)
    axes.grid(True, axis="x")
    axes.grid(True, axis="y", linewidth=0.7, color=LINE, linestyle=(0, (1, 2)))
    even_ticks(axes.xaxis)
    axes.set_title(score_title(score, found))
    below = any(entry.values[score].mean < edge for entry in found)
    far = "Triangles at the edge: far below the others" if below else None
    add_notes(
        drawn,
        runs_note(found),
        tasks_note(found) if score == AVERAGE else None,
        far,
        gaps_note(entries, score, f"{_SHORT} Incomplete"),
    )
    _set_left(drawn, axes, headings)
    return drawn


def _edge(means: Sequence[float]) -> float:
    """The lowest of the means that the axis reaches to."""
    ordered = sorted(means, reverse=True)
    for higher, lower in pairwise(ordered):
        if lower < ordered[0] - _REACH and higher - lower > _GAP:
            return higher
    return ordered[-1]


def _arrange(found: Sequence[Entry]) -> tuple[dict[float, Entry], dict[float, str], float]:
    """Rows, and the headings of their groups, by where they stand, counted in rows from the top; and how many."""
    rows: dict[float, Entry] = {}
    headings: dict[float, str] = {}
    top = 0.0
    for group in dict.fromkeys(entry.group for entry in found):
        if group:
            headings[top + 0.8] = group.capitalize()
            top += 1.3
        for entry in found:
            if entry.group == group:
                size = 1.0 + 0.55 * _name(entry).count("\n")
                rows[top + size / 2] = entry
                top += size
    return rows, headings, top


def _name(entry: Entry) -> str:
    return broken(f"{entry.row} {entry.column}".strip(), _NAME_CHARACTERS) + (_SHORT if entry.short else "")


def _set_left(drawn: Figure, axes: Axes, headings: Mapping[float, str]) -> None:
    """Rows and headings in a column that is flush left, as in a table; a long heading reaches into the panel."""
    drawn.draw_without_rendering()
    labels = axes.get_yticklabels()
    width = max(label.get_window_extent().width for label in labels) * 72 / drawn.dpi + 4
    for label in labels:
        label.set_horizontalalignment("left")
    axes.tick_params(axis="y", pad=width)
    for height, text in headings.items():
        heading = axes.annotate(
            text,
            (0, height),
            xycoords=axes.get_yaxis_transform(),
            xytext=(-width, 0),
            textcoords="offset points",
            va="center_baseline",
            fontweight="bold",
            bbox=BACKGROUND,
        )
        heading.set_in_layout(False)


def _dot(axes: Axes, entry: Entry, score: str, height: float, *, far: bool) -> None:
    """A row's mean and deviation, and both in figures at the right edge; bold if it is the best of its group."""
    look, value = look_of(recipe_of(entry)), entry.values[score]
    # Of the method's own variants, only the one that is compared with all others is full.
    hollow = far or (entry.baseline and recipe_of(entry).startswith("diffaug"))
    marker: dict[str, Any] = {
        "color": look.colour,
        "markerfacecolor": "white" if hollow else look.colour,
        "markeredgecolor": look.colour if hollow else "white",
        "markeredgewidth": 1.2 if hollow else 0.8,
        "label": entry.row,
    }
    if far:
        axes.plot([0.02], [height], "<", transform=axes.get_yaxis_transform(), **marker)
    else:
        size = look.size()
        bar = [deviation(value)]
        axes.errorbar([value.mean], [height], xerr=bar, marker=look.marker, ms=size, elinewidth=1.6, **marker)
    bold = score in entry.best
    axes.annotate(
        f"{value.mean:.1f}" + ("" if value.deviation is None else f" ± {value.deviation:.1f}"),
        (1, height),
        xycoords=axes.get_yaxis_transform(),
        xytext=(6, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=8.5,
        color=INK if bold else FAINT,
        fontweight="bold" if bold else "normal",
    )
