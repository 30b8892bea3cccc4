"""Line colours and dash patterns of runs, the same as in the figures."""

from __future__ import annotations

from collections.abc import Sequence

from diffaug.report.runs import Run

# Families of methods, in the order of the palette in page.css, which has the colours of the figures.
FAMILIES = ("diffaug", "promptbert", "simcse", "diffcse", "consert", "sbert", "flow", "untrained")
# One more colour, for runs of no known family.
COLOURS = len(FAMILIES) + 1
DASHES = 4
# Colours for a second family of the same method, least similar to the most frequent methods first.
_SPARE = (4, 5, 8, 6, 7, 3, 1, 2, 0)


def assign(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Return (colour, dash) for each run, as indices.

    Runs of one family (a row of a grid) share a colour. The columns of a grid differ in their dash pattern; the last
    column, usually the one with the most labels, is solid. The first family of a method gets the method's colour. A
    further family gets a free colour or, if none is left, the method's colour with another dash. With still more
    families some look the same, since the colour of a different method would mislead.
    """
    colours: dict[str, tuple[int, int]] = {}
    columns: dict[str, list[str]] = {}
    for run in runs:
        known = columns.setdefault(run.family, [])
        if _column(run) not in known:
            known.insert(0, _column(run))
    wanted = {run.family: _of_method(run) for run in reversed(runs)}
    reserved = set(wanted.values())
    owners: dict[int, int] = {}  # colour -> the method that took it first
    # Runs that are shown at first choose first, so that at least those differ.
    for family in dict.fromkeys(run.family for run in sorted(runs, key=lambda run: not run.shown)):
        used = [colour for colour, _ in colours.values()]
        own = wanted[family]
        free = [c for c in _SPARE if c not in used and (c == own or c not in reserved)]
        if own in used and not free:
            # Never the colour of another method.
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
    """The palette index of a run's method."""
    name = run.cell.recipe if run.cell else str(run.recipe.get("name", ""))
    for text in (name, str(run.recipe.get("method", ""))):
        if "flow" in text:
            return FAMILIES.index("flow")
        for place, family in enumerate(FAMILIES):
            if text.startswith(family):
                return place
    return COLOURS - 1
