"""What training costs: time and memory of each method."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffaug.reproduce.figures.lines import short_names
from diffaug.reproduce.figures.measured import deviation, entries_of, gaps_note, recipe_of, runs_note
from diffaug.reproduce.figures.style import INK, add_notes, look_of, stacked
from diffaug.reproduce.findings import GIB, MINUTES, Entry, Spread
from diffaug.reproduce.grid import Grid

# Inches a bar takes, and a panel around its bars.
_BAR, _AROUND = 0.34, 0.75


def figure(grid: Grid) -> Figure:
    """Bars of both, each with its value; shorter is better."""
    entries = entries_of(grid)
    found = [entry for entry in entries if entry.runs]
    minutes = [entry.values[MINUTES] for entry in found]
    drawn, (top, bottom) = stacked([_AROUND + _BAR * len(found)] * 2, sharex=False)
    seconds = max(value.mean for value in minutes) < 2
    _bars(top, found, minutes, 60 if seconds else 1)
    _bars(bottom, found, [entry.values[GIB] for entry in found])
    top.set_title(f"Training time, {'seconds' if seconds else 'minutes'}")
    bottom.set_title("Peak memory, GiB")
    add_notes(drawn, runs_note(found), _machines(found), gaps_note(entries))
    return drawn


def _bars(axes: Axes, found: Sequence[Entry], values: Sequence[Spread], factor: float = 1) -> None:
    heights = range(len(found))
    lengths = [factor * value.mean for value in values]
    deviations = [factor * deviation(value) for value in values]
    names = short_names([entry.row for entry in found])
    axes.barh(heights, lengths, height=0.62, color=[look_of(recipe_of(entry)).colour for entry in found])
    axes.errorbar(lengths, heights, xerr=deviations, fmt="none", ecolor=INK, elinewidth=1.2, capsize=2.5)
    digits = _digits(max(lengths))
    for height, length, bar in zip(heights, lengths, deviations, strict=True):
        axes.annotate(
            f"{length:,.{digits}f}",
            (length + bar, height),
            xytext=(5, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=9,
            fontweight="bold",
        )
    axes.set_yticks(list(heights), labels=[names[entry.row] for entry in found])
    axes.invert_yaxis()  # in the order of the table, from the top
    axes.set_xlim(0, 1.14 * max(length + bar for length, bar in zip(lengths, deviations, strict=True)))
    # The bars carry their values: an axis would say it twice.
    axes.set_xticks([])
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_visible(True)


def _digits(largest: float) -> int:
    """Digits behind the point: three figures in all, as many as such measurements are good for."""
    return 0 if largest >= 100 else 1 if largest >= 10 else 2


def _machines(found: Sequence[Entry]) -> str | None:
    """On what it was measured."""
    machines = [run.result.machine for entry in found for run in entry.runs]
    names = {str(machine["device"]) for machine in machines if "device" in machine}
    return f"Measured on {' and '.join(sorted(names))}" if names else None
