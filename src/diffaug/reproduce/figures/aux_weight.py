"""The score against the weight of the auxiliary loss in stage 2."""

from __future__ import annotations

from matplotlib.figure import Figure

from diffaug.reproduce.figures.curves import score_along
from diffaug.reproduce.grid import Grid


def figure(grid: Grid) -> Figure:
    """The dev score, as in the paper, with the baselines of the grid as references."""
    return score_along(grid, "Weight of the auxiliary loss, α")
