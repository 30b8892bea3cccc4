"""The score against the length of the prefix."""

from __future__ import annotations

from matplotlib.figure import Figure

from diffaug.reproduce.figures.curves import score_along
from diffaug.reproduce.grid import Grid


def figure(grid: Grid) -> Figure:
    """The dev score, as in the paper, with dropout alone as a reference if the grid has it."""
    return score_along(grid, "Prefix length (vectors a view)")
