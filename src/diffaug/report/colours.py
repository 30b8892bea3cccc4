"""Which colour and dash a run has, on the page as in the figures."""

from __future__ import annotations

from collections.abc import Sequence

from diffaug.report.runs import Run

# The families of methods, in the order of the palette in page.css, whose colours are those of the figures.
FAMILIES = ("diffaug", "promptbert", "simcse", "diffcse", "consert", "sbert", "flow", "untrained")
# One more is left for what belongs to none of them.
COLOURS = len(FAMILIES) + 1
DASHES = 4
# Which ones a second family of a method takes first: those least like the colours of the methods compared most.
_SPARE = (4, 5, 8, 6, 7, 3, 1, 2, 0)


def assign(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """For each run the number of its colour and of its dash.

    Runs of one family (a row of a grid) share the colour, and the columns of a grid differ in their dashes; the last
    column, which stands for all labels or the most of something else, is solid. The first family of a method has the
    method's colour; another one takes a colour that is free, and where none is, the method's, with another dash. With
    more families than that, some look the same: a colour that stands for another method would be worse.
    """
    colours: dict[str, tuple[int, int]] = {}
    columns: dict[str, list[str]] = {}
    for run in runs:
        known = columns.setdefault(run.family, [])
        if _column(run) not in known:
            known.insert(0, _column(run))
    wanted = {run.family: _of_method(run) for run in reversed(runs)}
    reserved = set(wanted.values())
    owners: dict[int, int] = {}  # for which method a colour was taken first
    # What is drawn at first is to be told apart, if not everything can be.
    for family in dict.fromkeys(run.family for run in sorted(runs, key=lambda run: not run.shown)):
        used = [colour for colour, _ in colours.values()]
        own = wanted[family]
        free = [c for c in _SPARE if c not in used and (c == own or c not in reserved)]
        if own in used and not free:
            # Never a colour that stands for another method.
            others = [c for c in range(COLOURS) if c == own or (c not in reserved and owners.get(c, own) == own)]
            colour = own if used.count(own) < DASHES else min(others, key=used.count)
        else:
            colour = own if own not in used else free[0]
        colours[family] = colour, used.count(colour)
        owners.setdefault(colour, own)
    return [
        (colour, (dash + columns[run.family].index(_column(run))) % DASHES)
        for run in runs
        for colour, dash in [colours[run.family]]
    ]


def _column(run: Run) -> str:
    return run.cell.column if run.cell else ""


def _of_method(run: Run) -> int:
    """The place of a run's method in the palette."""
    name = run.cell.recipe if run.cell else str(run.recipe.get("name", ""))
    for text in (name, str(run.recipe.get("method", ""))):
        if "flow" in text:
            return FAMILIES.index("flow")
        for place, family in enumerate(FAMILIES):
            if text.startswith(family):
                return place
    return COLOURS - 1
