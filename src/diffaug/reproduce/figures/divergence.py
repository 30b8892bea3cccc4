"""delta and kappa through stage 1, with dropout's divergence beside them and the point where `auto` ends the stage."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffaug.errors import DiffaugError
from diffaug.reproduce.dropout import DROPOUT_DELTA
from diffaug.reproduce.figures.measured import curve, deviation, entries_of, gaps_note, recipe_of
from diffaug.reproduce.figures.style import (
    RING,
    add_notes,
    beside_panel,
    even_ticks,
    keep_apart,
    look_of,
    mark_step,
    shade,
    stacked,
)
from diffaug.reproduce.findings import Entry, Spread
from diffaug.reproduce.grid import Grid
from diffaug.training.stopping import CompatibilityCurves


@dataclass(frozen=True)
class Stage1:
    """One run's stage 1: delta and kappa at each step they were measured at."""

    delta: dict[int, float]
    kappa: dict[int, float]

    def automatic_end(self) -> int | None:
        """The step at which `auto` ends stage 1, by giving its rule one measurement after the other."""
        readiness = CompatibilityCurves()
        for step in sorted(self.delta.keys() & self.kappa.keys()):
            readiness.add(step, self.delta[step], self.kappa[step])
            if readiness.stop_reason():
                return step
        return None


def figure(grid: Grid) -> Figure:
    """Two panels over the same steps: the mean over seeds with a band of its deviation; a line a prefix length."""
    entries = entries_of(grid)
    shown = [(entry, stages) for entry in entries if (stages := _stages(entry))]
    if not shown:
        raise DiffaugError(
            "no finished run of the grid recorded delta and kappa in stage 1 (metrics.jsonl): there is nothing to draw"
        )
    drawn, (top, bottom) = stacked([2.5, 2.5])
    for axes in (top, bottom):
        axes.set_xlim(0, max(step for _, runs in shown for run in runs for step in run.delta))
    labels, notes = [], []
    for place, (entry, runs) in enumerate(shown):
        colour = shade(look_of(recipe_of(entry)).colour, 1 - 0.6 * place / len(shown))
        _plot(top, [run.delta for run in runs], colour, entry.place)
        end = _plot(bottom, [run.kappa for run in runs], colour, entry.place)
        if len(shown) > 1:
            labels.append(beside_panel(bottom, end, entry.column or entry.row, colour))
        notes.append(_mark_automatic_end(top, bottom, runs, None if len(shown) == 1 else colour))
    notes.append(_plot_dropout(top, entries))
    top.set_title("Representation divergence δ")
    bottom.set_title("Weight convergence κ")
    bottom.set_xlabel("Stage-1 steps")
    for axes in (top, bottom):
        axes.margins(y=0.1)
        even_ticks(axes.yaxis)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    most = max(len(runs) for _, runs in shown)
    several = f"Mean of {most} runs; the band is their standard deviation" if most > 1 else "One run"
    lengths = f"Labels: {grid.plan_info.get('columns_are')}" if labels and shown[0][0].column else None
    add_notes(drawn, several, lengths, *dict.fromkeys(notes), gaps_note(entries))
    keep_apart(drawn, labels)
    return drawn


def _stages(entry: Entry) -> list[Stage1]:
    """Stage 1 of those runs that recorded it."""
    found = [Stage1(curve(run.folder, "delta", stage=1), curve(run.folder, "kappa", stage=1)) for run in entry.runs]
    return [stage for stage in found if stage.delta and stage.kappa]


def _mean(curves: Sequence[dict[int, float]]) -> tuple[list[int], list[Spread]]:
    """Steps and values, as far as every run went: a mean over fewer would jump where one ends."""
    steps = sorted(set.intersection(*(set(values) for values in curves)))
    return steps, [Spread.of([values[step] for values in curves]) for step in steps]


def _plot(axes: Axes, curves: Sequence[dict[int, float]], colour: str, name: str) -> float:
    """The mean and its band; returns where it ends."""
    steps, values = _mean(curves)
    low = [value.mean - deviation(value) for value in values]
    high = [value.mean + deviation(value) for value in values]
    axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(steps, [value.mean for value in values], color=colour, label=name)
    return values[-1].mean


def _mark_automatic_end(top: Axes, bottom: Axes, runs: Sequence[Stage1], colour: str | None) -> str | None:
    """A ring on both curves where `auto` would end the stage; a note if there is more to say.

    Among other curves a ring has its curve's colour; the only one has words instead, beside a line through both panels.
    """
    ends = [end for end in (run.automatic_end() for run in runs) if end is not None]
    if not ends:
        return "The rule of stage1.steps=auto is not met within these steps"
    x = statistics.fmean(ends)
    if colour is None:
        span = f"\n({min(ends):,} to {max(ends):,})" if min(ends) != max(ends) else ""
        mark_step(top, x, None, top=True)
        # kappa falls: above its curve there is room for words.
        mark_step(bottom, x, f"auto: step {x:,.0f}{span}", top=True)
    for axes, curves in ((top, [run.delta for run in runs]), (bottom, [run.kappa for run in runs])):
        steps, values = _mean(curves)
        ring = RING if colour is None else {**RING, "markeredgecolor": colour}
        axes.plot([x], [np.interp(x, steps, [value.mean for value in values])], "o", label="auto", **ring)
    if len(ends) < len(runs):
        return f"The rule of stage1.steps=auto is met in {len(ends)} of {len(runs)} runs"
    return None if colour is None else "Rings: where stage1.steps=auto ends stage 1"


def _plot_dropout(axes: Axes, entries: Sequence[Entry]) -> str | None:
    """Dropout's divergence as a dashed line; else a note that it is not there."""
    recorded = [list(curve(run.folder, DROPOUT_DELTA, stage=1).values()) for entry in entries for run in entry.runs]
    values = [value for run in recorded for value in run]
    if not values:
        return "No run recorded the divergence of dropout"
    look = look_of("simcse")
    axes.axhline(statistics.fmean(values), color=look.colour, linestyle=(0, (4, 2)), linewidth=1.4, label="dropout")
    beside_panel(axes, statistics.fmean(values), "dropout", look.text)
    return None
