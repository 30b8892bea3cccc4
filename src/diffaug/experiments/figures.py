"""The figures of a grid, as PNG and SVG: dots, lines, bars and curves. Needs matplotlib."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from matplotlib.transforms import ScaledTranslation

from diffaug.errors import DiffaugError
from diffaug.experiments import style
from diffaug.experiments.grid import Grid, read_metrics
from diffaug.experiments.results import AVERAGE, DEV, GIB, MINUTES, SEVEN, Entry, Spread, Summary, listed
from diffaug.experiments.spec import FigureSpec, MetricSpec
from diffaug.experiments.style import BACKGROUND, FAINT, INK, LINE, RING, Look, beside_panel, even_ticks, look_of
from diffaug.experiments.summary import summarise
from diffaug.training.stopping import CompatibilityCurves

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

_NUMBER = re.compile(r"\d[\d,]*(\.\d+)?(e-?\d+)?")
# Incomplete entries that a note names one by one; the table names all of them.
_NAMED = 4
_HOLLOW = "Hollow markers are incomplete"
# Part of a stage at whose end a metric is averaged, since the loss of a single batch is noisy.
_LAST_PART = 0.1
# Inches per row of dots and bars, and around them.
_DOT, _AROUND_DOTS, _BAR, _AROUND_BARS = 0.25, 1.1, 0.34, 0.75
# Dots this far below the best and behind a gap are drawn at the edge, so that the others are not squeezed together.
_REACH, _GAP = 18.0, 5.0
_NAME_CHARACTERS = 25
_SHORT = "†"
# Points between the error bars of neighbouring lines, which often overlap.
_APART = 5.0


def draw(grid: Grid, folder: Path, rows: Collection[str] | None = None) -> list[Path]:
    """Draw the figures of a grid as `NAME.png` and `NAME.svg`; several figures are numbered from the second on.

    What is missing is named below a figure. The same results give the same files with the same version of matplotlib.

    Args:
        grid: cells that are not finished are left out.
        folder: for the files; it is created.
        rows: only these; None: all.

    Raises:
        DiffaugError: no finished cell has what a figure shows.
    """
    summary = summarise(grid, rows=rows, resamples=0)
    if not any(entry.runs for entry in summary.entries):
        raise DiffaugError("no row of the grid is finished yet: there is nothing to draw")
    files = []
    for number, spec in enumerate(summary.spec.drawings(summary.columns), start=1):
        with style.styled():
            stem = summary.experiment if number == 1 else f"{summary.experiment}-{number}"
            files += style.save(figure(summary, spec), folder / stem)
    return files


def figure(summary: Summary, spec: FigureSpec) -> Figure:
    """One figure of a grid.

    Raises:
        DiffaugError: no finished cell has what it shows.
    """
    drawings: dict[str, Callable[[Summary, FigureSpec], Figure]]
    drawings = {"dots": _dots, "lines": _lines, "bars": _bars, "curves": _curves}
    return drawings[spec.kind](summary, spec)


# --- values ---------------------------------------------------------------------------------------------------------


def _with_value(summary: Summary, name: str) -> list[Entry]:
    found = [entry for entry in summary.entries if name in entry.values]
    if not found:
        raise DiffaugError(f"no finished run of the grid has the score {name!r}: there is nothing to draw")
    return found


def _number(column: str) -> float | None:
    """The number of a column such as 27,560 or 0.001 or 10 %; None if it is text."""
    found = _NUMBER.match(column)
    return float(found[0].replace(",", "")) if found else None


def _deviation(value: Spread) -> float:
    """Length of an error bar; a single run has none."""
    return value.deviation or 0.0


def _by_row(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    rows: dict[str, list[Entry]] = {}
    for entry in entries:
        rows.setdefault(entry.row, []).append(entry)
    return rows


def recorded(run: Path, name: str, stage: int) -> dict[int, float]:
    """A metric of a run by step; empty if it was not recorded.

    Raises:
        DiffaugError: `metrics.jsonl` is damaged.
    """
    return {line["step"]: float(line[name]) for line in read_metrics(run) if line["stage"] == stage and name in line}


# --- titles and notes -----------------------------------------------------------------------------------------------


def _score_title(summary: Summary, score: str) -> str:
    if score == DEV:
        return f"{summary.spec.dev_name}, Spearman × 100"
    many = f"Mean of {len(summary.tasks)} STS tasks" if set(summary.tasks) <= set(SEVEN) else "Mean of the tasks"
    return f"{many if len(summary.tasks) > 1 else 'Test score'}, Spearman × 100"


def _tasks_note(summary: Summary, score: str) -> str | None:
    """The tasks of the average, where they are not the seven of papers."""
    return None if score == DEV or set(summary.tasks) == set(SEVEN) else f"Tasks: {', '.join(summary.tasks)}"


def _runs_note(found: Sequence[Entry]) -> str:
    # A model without training runs only once, and says nothing about the others.
    several = [entry for entry in found if entry.asked > 1] or found
    counts = {len(entry.runs) for entry in several if entry.runs}
    if counts == {1}:
        return "One run each"
    many = str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"Mean and standard deviation of {many} runs"


def _gaps_note(entries: Sequence[Entry], name: str | None = None, mark: str = "Incomplete") -> str | None:
    """What is missing: entries without a result, and with fewer runs than asked for, which the figure marks so.

    Without the name of a score, runs are counted.
    """
    counts = [
        len(entry.runs) if name is None else entry.values[name].count if name in entry.values else 0
        for entry in entries
    ]
    pairs = list(zip(entries, counts, strict=True))
    none = [entry.place for entry, count in pairs if count == 0]
    some = [f"{entry.place} ({count} of {entry.asked} runs)" for entry, count in pairs if 0 < count < entry.asked]
    texts = [f"Without a result: {listed(none)}"] if none else []
    if some:
        few = listed(some) if len(some) <= _NAMED else f"{len(some)} places have fewer runs than asked for"
        texts.append(f"{mark}: {few}")
    return ". ".join(texts) or None


# --- lines ----------------------------------------------------------------------------------------------------------


def _lines(summary: Summary, spec: FigureSpec) -> Figure:
    """A score along the columns, one line per row. Baselines at a single place are dashed lines across."""
    score = DEV if spec.score == "dev" else AVERAGE
    found = _with_value(summary, score)
    widths = {row: len(inside) for row, inside in _by_row(summary.entries).items()}
    measured = [e for e in found if spec.steps_of_stage is not None and _number(e.column) is None]
    references = [
        e for e in found if e not in measured and (_number(e.column) is None or (e.baseline and widths[e.row] == 1))
    ]
    placed = [entry for entry in found if entry not in measured and entry not in references]
    if not placed:
        raise DiffaugError("no finished run has a number as its column: there is nothing to draw")
    groups = list(dict.fromkeys(entry.group for entry in found)) if spec.by_group else [None]
    heights = [2.7] * len(groups) if spec.by_group else [2.5] if spec.metrics else [3.3]
    drawn, panels = style.stacked([*heights, *[2.3] * len(spec.metrics)])
    beside: list[list[Annotation]] = []
    thin = False
    for axes, group in zip(panels, groups, strict=False):
        # Every panel has all columns, so that the same position is the same column.
        places = _axis(axes, [entry.column for entry in placed], spec.scale)
        labels = [_reference(axes, entry, score) for entry in references if group in (None, entry.group)]
        rows = _by_row([entry for entry in placed if group in (None, entry.group)])
        leading = _leading(list(rows.values())) if spec.by_group else list(rows.values())
        for row in rows.values():
            shift = _APART * (leading.index(row) - (len(leading) - 1) / 2) if row in leading else None
            look = _row_line(axes, row, places, score, thin=shift is None, shift=(shift or 0) * spec.by_group)
            if shift is not None:
                last = max(row, key=lambda entry: places[entry.column])
                labels.append(beside_panel(axes, last.values[score].mean, last.row, look.text))
            if not spec.by_group:
                _best_value(axes, row, places, score)
        thin |= len(leading) < len(rows)
        beside.append(labels)
        axes.set_title(_score_title(summary, score) if group is None else group.capitalize())
        axes.margins(x=0.05, y=0.12 if spec.by_group else 0.14)
    rest = zip(panels[len(groups) :], spec.metrics, strict=True)
    missing = [_metric_panel(axes, [*placed, *measured], metric) for axes, metric in rest]
    for axes in panels:
        even_ticks(axes.yaxis)
    for entry in measured:
        _mark_measured(panels, entry, spec, score)
    what = spec.x or (summary.columns_are or "columns").capitalize()
    even = spec.scale == "log" and panels[-1].get_xscale() == "linear" and len(places) > 2
    panels[-1].set_xlabel(f"{what} (not to scale)" if even else what)
    if spec.by_group:
        style.add_heading(drawn, _score_title(summary, score))
    style.add_notes(
        drawn,
        _runs_note(found),
        _tasks_note(summary, score),
        "Of a method's variants the one with the best dev score is bold, the others are thin" if thin else None,
        *missing,
        _gaps_note(summary.entries, score, _HOLLOW),
    )
    for labels in beside:
        style.keep_apart(drawn, labels)
    return drawn


def _axis(axes: Axes, columns: Sequence[str], scale: str) -> dict[str, float]:
    """Set up the x axis for columns that are numbers; returns the position of each.

    Zero has no logarithm: it is drawn one step to the left, behind a break of the axis.
    """
    ordered = sorted(dict.fromkeys(columns), key=lambda column: _number(column) or 0.0)
    values = [_number(column) or 0.0 for column in ordered]
    if len({column.endswith("%") for column, value in zip(ordered, values, strict=True) if value}) > 1:
        # Fractions and counts have no common axis: in the order of the grid.
        ordered = list(dict.fromkeys(columns))
        values = [float(place) for place in range(len(ordered))]
        axes.set_xticks(values, labels=ordered)
    elif scale == "linear":
        axes.xaxis.set_major_formatter("{x:,.0f}" if all(value.is_integer() for value in values) else "{x:g}")
    else:
        positive = [value for value in values if value > 0]
        if len(positive) < len(values) and positive:
            step = statistics.median([b / a for a, b in pairwise(positive)] or [10.0])
            values = [positive[0] / step, *positive]
            options: dict[str, Any] = {"ha": "center", "va": "center", "color": "#999999", "bbox": BACKGROUND}
            middle = math.sqrt(values[0] * values[1])
            axes.text(middle, 0.0, "//", transform=axes.get_xaxis_transform(), **options)
        axes.set_xscale("log")
        axes.set_xticks(values, labels=ordered)
        axes.xaxis.set_minor_locator(NullLocator())
    return dict(zip(ordered, values, strict=True))


def _leading(rows: Sequence[list[Entry]]) -> list[list[Entry]]:
    """Of each family of methods the row that is best on the dev pairs, by its mean over their common columns."""
    families: dict[object, list[list[Entry]]] = {}
    for row in rows:
        families.setdefault(look_of(row[0].recipe), []).append(row)

    def best(family: list[list[Entry]]) -> list[Entry]:
        common = set.intersection(*({entry.column for entry in row if DEV in entry.values} for row in family))

        def dev(row: list[Entry]) -> float:
            return statistics.fmean(entry.values[DEV].mean for entry in row if entry.column in common)

        # Rows without a common column cannot be compared: the one with the most entries.
        return max(family, key=dev if common else len)

    return [best(family) for family in families.values()]


def _row_line(
    axes: Axes, row: Sequence[Entry], places: Mapping[str, float], score: str, *, thin: bool, shift: float
) -> Look:
    """A line through the means of a row, with hollow markers where there are fewer runs than asked for.

    ``shift``, in points, separates overlapping error bars.
    """
    look = look_of(row[0].recipe)
    ordered = sorted(row, key=lambda entry: places[entry.column])
    values = [(places[entry.column], entry.values[score]) for entry in ordered]
    _line(axes, values, look, row[0].row, thin=thin, shift=shift)
    short = [(x, value.mean) for entry, (x, value) in zip(ordered, values, strict=True) if entry.short]
    marker: dict[str, Any] = {"marker": look.marker, "ms": look.size(3.0 if thin else 5.2), "zorder": 3}
    marker |= {"color": "white", "mec": look.colour, "mew": 0.9 if thin else 1.5}
    _move(axes, axes.plot([x for x, _ in short], [y for _, y in short], ls="none", **marker) if short else (), shift)
    return look


def _line(
    axes: Axes, values: Sequence[tuple[float, Spread]], look: Look, label: str, *, thin: bool = False, shift: float = 0
) -> None:
    """A line through means with error bars; a thin line has none."""
    marker: dict[str, Any] = {"marker": look.marker, "ms": look.size(3.5 if thin else 6), "mec": "white"}
    marker |= {"mew": 0.0, "lw": 0.9, "alpha": 0.55} if thin else {"mew": 0.8, "lw": 1.8, "alpha": 1.0}
    bars = None if thin else [_deviation(value) for _, value in values]
    points = [x for x, _ in values], [value.mean for _, value in values]
    drawn = axes.errorbar(*points, yerr=bars, color=look.colour, label=label, elinewidth=1.2, capsize=2.5, **marker)
    line, caps, lines = drawn
    _move(axes, [line, *caps, *lines], shift)


def _move(axes: Axes, artists: Iterable[Artist], points: float) -> None:
    """Move artists to the right without changing their data."""
    drawn = axes.figure
    assert drawn is not None
    for artist in artists:
        artist.set_transform(axes.transData + ScaledTranslation(points / 72, 0, drawn.dpi_scale_trans))


def _reference(axes: Axes, entry: Entry, score: str) -> Annotation:
    """A dashed line across the panel with a band of its deviation; returns its label."""
    look, value = look_of(entry.recipe), entry.values[score]
    low, high = value.mean - _deviation(value), value.mean + _deviation(value)
    axes.axhspan(low, high, color=look.colour, alpha=0.12, linewidth=0)
    axes.axhline(value.mean, color=look.colour, linestyle=(0, (4, 2)), linewidth=1.4, label=entry.row)
    return beside_panel(axes, value.mean, entry.row, look.text)


def _best_value(axes: Axes, row: Sequence[Entry], places: Mapping[str, float], score: str) -> None:
    """The highest mean of a row, in bold above its marker."""
    best = max(row, key=lambda entry: entry.values[score].mean)
    value = best.values[score]
    at = places[best.column], value.mean + _deviation(value)
    style.label(axes, f"{value.mean:.1f}", at, (0, 4), ha="center", color=INK, fontweight="bold", bbox=BACKGROUND)


def _metric_panel(axes: Axes, entries: Sequence[Entry], spec: MetricSpec) -> str | None:
    """A metric at the end of a stage; returns a note on runs without it."""
    numeric = [entry for entry in entries if _number(entry.column) is not None]
    for name, row in _by_row(numeric).items():
        values = [(_number(e.column) or 0.0, value) for e in row if (value := _metric_at_end(e, spec)) is not None]
        _line(axes, sorted(values, key=lambda value: value[0]), look_of(row[0].recipe), name)
    axes.margins(x=0.05, y=0.16)
    axes.set_title(spec.title)
    # A column 0 has no such stage, and nothing to record.
    without = [e.place for e in entries if _number(e.column) != 0 and _metric_at_end(e, spec) is None]
    return f"Without a recorded {spec.metric}: {listed(without)}" if without else None


def _metric_at_end(entry: Entry, spec: MetricSpec) -> Spread | None:
    """The mean of a metric over the last part of a stage; None if no run recorded it."""
    ends = []
    for run in entry.runs:
        if values := recorded(run.folder, spec.metric, spec.stage):
            start = (1 - _LAST_PART) * max(values)
            ends.append(statistics.fmean(value for step, value in values.items() if step > start))
    return Spread.of(ends) if ends else None


def _mark_measured(panels: Sequence[Axes], entry: Entry, spec: FigureSpec, score: str) -> None:
    """A ring at the number of steps that a stage took, for a column that is not a number."""
    steps = statistics.fmean(run.result.steps[str(spec.steps_of_stage)] for run in entry.runs)
    values = [entry.values[score], *(_metric_at_end(entry, metric) for metric in spec.metrics)]
    for axes, value in zip(panels, values, strict=True):
        if value is not None:
            style.mark_step(axes, steps, f"{entry.column} ({steps:,.0f})" if axes is panels[0] else None, top=False)
            bar: dict[str, Any] = {"ecolor": INK, "elinewidth": 1.2, "capsize": 2.5, "zorder": 4}
            axes.errorbar([steps], [value.mean], yerr=[_deviation(value)], fmt="o", label=entry.column, **bar, **RING)


# --- dots -----------------------------------------------------------------------------------------------------------


def _dots(summary: Summary, spec: FigureSpec) -> Figure:
    """A score by row, groups below one another."""
    score = DEV if spec.score == "dev" else AVERAGE
    found = _with_value(summary, score)
    rows: dict[float, Entry] = {}
    headings: dict[float, str] = {}
    top = 0.0
    for group in dict.fromkeys(entry.group for entry in found):
        if group:
            headings[top + 0.8] = group.capitalize()
            top += 1.3
        for entry in found:
            if entry.group == group:
                size = 1.0 + 0.55 * _dot_name(entry).count("\n")
                rows[top + size / 2] = entry
                top += size
    drawn, (axes,) = style.stacked([_AROUND_DOTS + _DOT * top])
    means = [entry.values[score].mean for entry in found]
    edge = _edge(means)
    for height, entry in rows.items():
        _dot(axes, entry, score, height, far=entry.values[score].mean < edge)
    axes.set_yticks(list(rows), labels=[_dot_name(entry) for entry in rows.values()])
    axes.set_ylim(top, 0)  # the first row at the top
    axes.margins(x=0.06)
    axes.grid(True, axis="x")
    axes.grid(True, axis="y", linewidth=0.7, color=LINE, linestyle=(0, (1, 2)))
    even_ticks(axes.xaxis)
    axes.set_title(_score_title(summary, score))
    style.add_notes(
        drawn,
        _runs_note(found),
        _tasks_note(summary, score),
        "Triangles at the edge: far below the others" if min(means) < edge else None,
        _gaps_note(summary.entries, score, f"{_SHORT} Incomplete"),
    )
    _align_left(drawn, axes, headings)
    return drawn


def _edge(means: Sequence[float]) -> float:
    """The lowest mean that the axis shows."""
    ordered = sorted(means, reverse=True)
    for higher, lower in pairwise(ordered):
        if lower < ordered[0] - _REACH and higher - lower > _GAP:
            return higher
    return ordered[-1]


def _dot_name(entry: Entry) -> str:
    name = style.broken(f"{entry.row} {entry.column}".strip(), _NAME_CHARACTERS)
    return name + (_SHORT if entry.short else "")


def _align_left(drawn: Figure, axes: Axes, headings: Mapping[float, str]) -> None:
    """Align rows and headings to the left; a long heading reaches into the panel."""
    drawn.draw_without_rendering()
    labels = axes.get_yticklabels()
    width = max(label.get_window_extent().width for label in labels) * 72 / drawn.dpi + 4
    for label in labels:
        label.set_horizontalalignment("left")
    axes.tick_params(axis="y", pad=width)
    for height, text in headings.items():
        options = {"va": "center_baseline", "fontweight": "bold", "fontsize": None, "bbox": BACKGROUND}
        at = axes.get_yaxis_transform()
        style.label(axes, text, (0, height), (-width, 0), xycoords=at, **options).set_in_layout(False)


def _dot(axes: Axes, entry: Entry, score: str, height: float, *, far: bool) -> None:
    """Mean and deviation of a row, and both as numbers at the right edge; bold if it is the best of its group."""
    look, value = look_of(entry.recipe), entry.values[score]
    # Of the variants of our own method, those that serve as baselines are hollow.
    hollow = far or (entry.baseline and entry.recipe.startswith("diffaug"))
    marker: dict[str, Any] = {"color": look.colour, "label": entry.row}
    marker |= {"mfc": "white", "mec": look.colour, "mew": 1.2} if hollow else {"mec": "white", "mew": 0.8}
    across = axes.get_yaxis_transform()
    if far:
        axes.plot([0.02], [height], "<", transform=across, **marker)
    else:
        bar = [_deviation(value)]
        axes.errorbar([value.mean], [height], xerr=bar, marker=look.marker, ms=look.size(), elinewidth=1.6, **marker)
    text = f"{value.mean:.1f}" + ("" if value.deviation is None else f" ± {value.deviation:.1f}")
    bold = {"color": INK, "fontweight": "bold"} if score in entry.best else {"color": FAINT}
    style.label(axes, text, (1, height), (6, 0), xycoords=across, va="center_baseline", fontsize=8.5, **bold)


# --- bars -----------------------------------------------------------------------------------------------------------


def _bars(summary: Summary, spec: FigureSpec) -> Figure:
    """Training time and peak memory by row."""
    found = [entry for entry in summary.entries if entry.runs]
    minutes = [entry.values[MINUTES] for entry in found]
    drawn, (top, bottom) = style.stacked([_AROUND_BARS + _BAR * len(found)] * 2, sharex=False)
    seconds = max(value.mean for value in minutes) < 2
    _bar_panel(top, found, minutes, 60 if seconds else 1)
    _bar_panel(bottom, found, [entry.values[GIB] for entry in found])
    top.set_title(f"Training time, {'seconds' if seconds else 'minutes'}")
    bottom.set_title("Peak memory, GiB")
    devices = sorted({str(m["device"]) for m in summary.machines if "device" in m})
    machines = f"Measured on {' and '.join(devices)}" if devices else None
    style.add_notes(drawn, _runs_note(found), machines, _gaps_note(summary.entries))
    return drawn


def _bar_panel(axes: Axes, found: Sequence[Entry], values: Sequence[Spread], factor: float = 1) -> None:
    heights = range(len(found))
    lengths = [factor * value.mean for value in values]
    deviations = [factor * _deviation(value) for value in values]
    axes.barh(heights, lengths, height=0.62, color=[look_of(entry.recipe).colour for entry in found])
    axes.errorbar(lengths, heights, xerr=deviations, fmt="none", ecolor=INK, elinewidth=1.2, capsize=2.5)
    digits = 0 if max(lengths) >= 100 else 1 if max(lengths) >= 10 else 2
    for height, length, bar in zip(heights, lengths, deviations, strict=True):
        text = f"{length:,.{digits}f}"
        style.label(axes, text, (length + bar, height), (5, 0), va="center_baseline", fontweight="bold")
    # Without what follows a comma, where names still differ.
    short = [entry.row.split(",")[0] for entry in found]
    names = [name if short.count(name) == 1 else entry.row for entry, name in zip(found, short, strict=True)]
    axes.set_yticks(list(heights), labels=names)
    axes.invert_yaxis()  # the first row at the top
    axes.set_xlim(0, 1.14 * max(length + bar for length, bar in zip(lengths, deviations, strict=True)))
    axes.set_xticks([])  # the bars carry their values
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_visible(True)


# --- curves ---------------------------------------------------------------------------------------------------------


def _curves(summary: Summary, spec: FigureSpec) -> Figure:
    """Metrics by training step, one panel each: the mean over runs with a band of its deviation."""
    shown = [(entry, runs) for entry in summary.entries if (runs := _recorded_runs(entry, spec.metrics))]
    if not shown:
        names = " and ".join(metric.metric for metric in spec.metrics)
        raise DiffaugError(f"no finished run of the grid recorded {names} (metrics.jsonl): there is nothing to draw")
    drawn, panels = style.stacked([2.5] * len(spec.metrics))
    labels, notes = [], []
    for place, (entry, runs) in enumerate(shown):
        colour = style.shade(look_of(entry.recipe).colour, 1 - 0.6 * place / len(shown))
        for axes, metric in zip(panels, spec.metrics, strict=True):
            end = _band(axes, [run[metric.metric] for run in runs], colour, entry.place)
        if len(shown) > 1:
            labels.append(beside_panel(panels[-1], end, entry.column or entry.row, colour))
    for axes, metric in zip(panels, spec.metrics, strict=True):
        axes.set_xlim(0, max(step for _, runs in shown for run in runs for step in run[metric.metric]))
    if spec.mark:
        for place, (entry, runs) in enumerate(shown):
            colour = style.shade(look_of(entry.recipe).colour, 1 - 0.6 * place / len(shown))
            notes.append(_mark_automatic_end(panels, spec.metrics, runs, None if len(shown) == 1 else colour))
    for axes, metric in zip(panels, spec.metrics, strict=True):
        if metric.reference:
            notes.append(_reference_metric(axes, summary.entries, metric))
        axes.set_title(metric.title)
        axes.margins(y=0.1)
        even_ticks(axes.yaxis)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    panels[-1].set_xlabel(spec.x or "Steps")
    most = max(len(runs) for _, runs in shown)
    several = f"Mean of {most} runs; the band is their standard deviation" if most > 1 else "One run"
    columns = f"Labels: {summary.columns_are}" if labels and shown[0][0].column else None
    style.add_notes(drawn, several, columns, *dict.fromkeys(notes), _gaps_note(summary.entries))
    style.keep_apart(drawn, labels)
    return drawn


def _recorded_runs(entry: Entry, metrics: Sequence[MetricSpec]) -> list[dict[str, dict[int, float]]]:
    """For each run that recorded all metrics, their values by step."""
    found = [{m.metric: recorded(run.folder, m.metric, m.stage) for m in metrics} for run in entry.runs]
    return [run for run in found if all(run.values())]


def _mean_curve(curves: Sequence[dict[int, float]]) -> tuple[list[int], list[Spread]]:
    """Steps and values, as far as all runs went."""
    steps = sorted(set.intersection(*(set(values) for values in curves)))
    return steps, [Spread.of([values[step] for values in curves]) for step in steps]


def _band(axes: Axes, curves: Sequence[dict[int, float]], colour: str, name: str) -> float:
    """The mean and its band; returns the last mean."""
    steps, values = _mean_curve(curves)
    low = [value.mean - _deviation(value) for value in values]
    high = [value.mean + _deviation(value) for value in values]
    axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(steps, [value.mean for value in values], color=colour, label=name)
    return values[-1].mean


def automatic_end(delta: Mapping[int, float], kappa: Mapping[int, float]) -> int | None:
    """The step at which `stage1.steps=auto` would end stage 1 with these measurements."""
    readiness = CompatibilityCurves()
    for step in sorted(delta.keys() & kappa.keys()):
        readiness.add(step, delta[step], kappa[step])
        if readiness.stop_reason():
            return step
    return None


def _mark_automatic_end(
    panels: Sequence[Axes],
    metrics: Sequence[MetricSpec],
    runs: Sequence[dict[str, dict[int, float]]],
    colour: str | None,
) -> str | None:
    """A ring where `auto` would end stage 1; returns a note if there is more to say.

    Among several curves a ring has the colour of its curve; a single one has a label beside a line through all panels.
    """
    ends = [end for end in (automatic_end(run["delta"], run["kappa"]) for run in runs) if end is not None]
    if not ends:
        return "The rule of stage1.steps=auto is not met within these steps"
    x = statistics.fmean(ends)
    ring = RING if colour is None else {**RING, "markeredgecolor": colour}
    for axes, metric in zip(panels, metrics, strict=True):
        if colour is None:
            span = f"\n({min(ends):,} to {max(ends):,})" if min(ends) != max(ends) else ""
            # In the last panel, where kappa falls and leaves room above its curve.
            style.mark_step(axes, x, f"auto: step {x:,.0f}{span}" if axes is panels[-1] else None, top=True)
        steps, values = _mean_curve([run[metric.metric] for run in runs])
        axes.plot([x], [np.interp(x, steps, [value.mean for value in values])], "o", label="auto", **ring)
    if len(ends) < len(runs):
        return f"The rule of stage1.steps=auto is met in {len(ends)} of {len(runs)} runs"
    return None if colour is None else "Rings: where stage1.steps=auto ends stage 1"


def _reference_metric(axes: Axes, entries: Sequence[Entry], metric: MetricSpec) -> str | None:
    """The mean of a reference as a dashed line; returns a note if no run recorded it."""
    name = metric.reference or ""
    runs = [run for entry in entries for run in entry.runs]
    values = [value for run in runs for value in recorded(run.folder, name, metric.stage).values()]
    if not values:
        return f"No run recorded the reference {metric.reference_name}"
    look, mean = look_of("simcse"), statistics.fmean(values)
    axes.axhline(mean, color=look.colour, linestyle=(0, (4, 2)), linewidth=1.4, label=metric.reference_name)
    beside_panel(axes, mean, metric.reference_name, look.text)
    return None
