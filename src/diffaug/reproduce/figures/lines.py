"""Scores along columns: what the figures with a line for each row have in common."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.ticker import NullLocator
from matplotlib.transforms import ScaledTranslation

from diffaug.reproduce.figures.measured import deviation, number, recipe_of
from diffaug.reproduce.figures.style import BACKGROUND, Look, beside_panel, look_of
from diffaug.reproduce.findings import Entry, Spread

HOLLOW = "Hollow markers are incomplete"
"""What `plot_row` does with places that have fewer runs than asked for, for `gaps_note`."""


def by_row(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries by their row, in order."""
    rows: dict[str, list[Entry]] = {}
    for entry in entries:
        rows.setdefault(entry.row, []).append(entry)
    return rows


def along(entries: Sequence[Entry], score: str) -> tuple[list[Entry], list[Entry]]:
    """Entries with a place on an axis of numbers, and references; both only where they have the score.

    A reference is what has no place on the axis, and a baseline that the grid runs at a single place.
    """
    widths = {row: len(inside) for row, inside in by_row(entries).items()}
    placed: list[Entry] = []
    references: list[Entry] = []
    for entry in entries:
        if score in entry.values:
            alone = entry.baseline and widths[entry.row] == 1
            (references if alone or number(entry.column) is None else placed).append(entry)
    return placed, references


def number_axis(axes: Axes, columns: Sequence[str]) -> dict[str, float]:
    """Make the x axis a logarithmic one for columns that are numbers; returns the place of each.

    Zero has no logarithm: it stands one step to the left, behind a break of the axis.
    """
    ordered = sorted(dict.fromkeys(columns), key=lambda column: number(column) or 0.0)
    values = [number(column) or 0.0 for column in ordered]
    if len({column.endswith("%") for column, value in zip(ordered, values, strict=True) if value}) > 1:
        # Parts and counts cannot stand on one axis; in the order of the grid they can still be read.
        ordered = list(dict.fromkeys(columns))
        values = [float(place) for place in range(len(ordered))]
        axes.set_xticks(values, labels=ordered)
        return dict(zip(ordered, values, strict=True))
    positive = [value for value in values if value > 0]
    if len(positive) < len(values) and positive:
        step = statistics.median([b / a for a, b in pairwise(positive)] or [10.0])
        values = [positive[0] / step, *positive]
        place = math.sqrt(values[0] * values[1])
        axes.text(
            *(place, 0.0, "//"),
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="center",
            color="#999999",
            bbox=BACKGROUND,
        )
    axes.set_xscale("log")
    axes.set_xticks(values, labels=ordered)
    axes.xaxis.set_minor_locator(NullLocator())
    return dict(zip(ordered, values, strict=True))


def plot_row(
    axes: Axes, row: Sequence[Entry], places: Mapping[str, float], score: str, *, thin: bool = False, shift: float = 0
) -> Look:
    """A line through a row's means, hollow where there are fewer runs than asked for.

    ``shift``, in points, keeps the bars of rows apart that meet.
    """
    look = look_of(recipe_of(row[0]))
    ordered = sorted(row, key=lambda entry: places[entry.column])
    values = [(places[entry.column], entry.values[score]) for entry in ordered]
    plot_line(axes, values, look, row[0].row, thin=thin, shift=shift)
    short = [value for entry, value in zip(ordered, values, strict=True) if entry.short]
    hollow = axes.plot(
        [x for x, _ in short],
        [value.mean for _, value in short],
        linestyle="none",
        marker=look.marker,
        markersize=look.size(3.0 if thin else 5.2),
        color="white",
        markeredgecolor=look.colour,
        markeredgewidth=0.9 if thin else 1.5,
        zorder=3,
    )
    _move(axes, hollow, shift)
    return look


def _move(axes: Axes, artists: Iterable[Artist], points: float) -> None:
    """Move what is drawn to the right, without a change of the data that it stands for."""
    figure = axes.figure
    assert figure is not None
    for artist in artists:
        artist.set_transform(axes.transData + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans))


def plot_line(
    axes: Axes,
    values: Sequence[tuple[float, Spread]],
    look: Look,
    label: str,
    *,
    thin: bool = False,
    shift: float = 0,
) -> None:
    """A line through means with bars of their deviations; a thin one is for the background, without bars."""
    line, caps, bars = axes.errorbar(
        [x for x, _ in values],
        [value.mean for _, value in values],
        yerr=None if thin else [deviation(value) for _, value in values],
        color=look.colour,
        marker=look.marker,
        markersize=look.size(3.5 if thin else 6),
        markeredgecolor="white",
        markeredgewidth=0.0 if thin else 0.8,
        linewidth=0.9 if thin else 1.8,
        alpha=0.55 if thin else 1.0,
        elinewidth=1.2,
        capsize=2.5,
        label=label,
    )
    _move(axes, [line, *caps, *bars], shift)


def plot_reference(axes: Axes, entry: Entry, score: str) -> Annotation:
    """A dashed line across the panel at a baseline's mean, with a band of its deviation; returns its label."""
    look, value = look_of(recipe_of(entry)), entry.values[score]
    low, high = value.mean - deviation(value), value.mean + deviation(value)
    axes.axhspan(low, high, color=look.colour, alpha=0.12, linewidth=0)
    axes.axhline(value.mean, color=look.colour, linestyle=(0, (4, 2)), linewidth=1.4, label=entry.row)
    return beside_panel(axes, value.mean, entry.row, look.text)


def short_names(rows: Sequence[str]) -> dict[str, str]:
    """Rows without what follows a comma, where they can still be told apart: the panel says it already."""
    short = [row.split(",")[0] for row in rows]
    return {row: name if short.count(name) == 1 else row for row, name in zip(rows, short, strict=True)}
