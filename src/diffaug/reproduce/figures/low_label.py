"""The score against the number of labels: a panel a setting, a line a method."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from diffaug.reproduce.figures.lines import HOLLOW, along, by_row, number_axis, plot_reference, plot_row
from diffaug.reproduce.figures.measured import (
    entries_of,
    gaps_note,
    recipe_of,
    runs_note,
    score_title,
    tasks_note,
    with_value,
)
from diffaug.reproduce.figures.style import (
    add_heading,
    add_notes,
    beside_panel,
    even_ticks,
    keep_apart,
    look_of,
    stacked,
)
from diffaug.reproduce.findings import Entry
from diffaug.reproduce.grid import DEV, Grid
from diffaug.reproduce.score import AVERAGE

# Points between the bars of neighbouring lines, which often meet.
_APART = 5.0


def figure(grid: Grid) -> Figure:
    """The test average, with the deviation over draws and seeds.

    Of the variants of a method in a panel, the one with the best dev score stands out; the others are thin lines.
    """
    entries = entries_of(grid)
    found = with_value(entries, AVERAGE)
    placed, references = along(entries, AVERAGE)
    groups = list(dict.fromkeys(entry.group for entry in found))
    drawn, panels = stacked([2.7] * len(groups))
    beside: list[list[Annotation]] = []
    thin = False
    for axes, group in zip(panels, groups, strict=True):
        # Every panel has all columns, so that the same place means the same number of labels.
        places = number_axis(axes, [entry.column for entry in placed])
        labels = [plot_reference(axes, entry, AVERAGE) for entry in references if entry.group == group]
        rows = by_row([entry for entry in placed if entry.group == group])
        leading = _leading(list(rows.values()))
        for row in rows.values():
            shift = _APART * (leading.index(row) - (len(leading) - 1) / 2) if row in leading else None
            if (label := _line(axes, row, places, shift)) is not None:
                labels.append(label)
        thin |= len(leading) < len(rows)
        beside.append(labels)
        axes.set_title(group.capitalize())
        axes.margins(x=0.05, y=0.12)
        even_ticks(axes.yaxis)
    even = panels[-1].get_xscale() == "linear" and len(places) > 2
    what = str(grid.plan_info.get("columns_are") or "labels").capitalize()
    panels[-1].set_xlabel(f"{what} (not to scale)" if even else what)
    add_heading(drawn, score_title(AVERAGE, found))
    variants = "Of a method's variants the one with the best dev score is bold, the others are thin" if thin else None
    gaps = gaps_note(entries, AVERAGE, HOLLOW)
    add_notes(drawn, runs_note(found), tasks_note(found), variants, gaps)
    for labels in beside:
        keep_apart(drawn, labels)
    return drawn


def _leading(rows: Sequence[list[Entry]]) -> list[list[Entry]]:
    """Of each family the row that is best on the dev pairs, by its mean over the columns that all of them have."""
    families: dict[object, list[list[Entry]]] = {}
    for row in rows:
        families.setdefault(look_of(recipe_of(row[0])), []).append(row)
    return [_best(family) for family in families.values()]


def _best(family: list[list[Entry]]) -> list[Entry]:
    shared = set.intersection(*({entry.column for entry in row if DEV in entry.values} for row in family))

    def dev(row: list[Entry]) -> float:
        return statistics.fmean(entry.values[DEV].mean for entry in row if entry.column in shared)

    # Rows with nothing in common cannot be compared: the one that is furthest along stands for the family.
    return max(family, key=dev if shared else len)


def _line(axes: Axes, row: list[Entry], places: Mapping[str, float], shift: float | None) -> Annotation | None:
    """A row, and its label if it leads: then it is moved by ``shift``, else that is None."""
    look = plot_row(axes, row, places, AVERAGE, thin=shift is None, shift=shift or 0)
    last = max(row, key=lambda entry: places[entry.column])
    return beside_panel(axes, last.values[AVERAGE].mean, last.row, look.text) if shift is not None else None
