"""The figures of a reproduced experiment, as PNG for pages and SVG for print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from diffaug.errors import DiffaugError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from diffaug.reproduce.grid import Grid


def draw(grid: Grid, folder: Path) -> list[Path]:
    """Draw what a grid has so far, and write it as `EXPERIMENT.png` and `EXPERIMENT.svg`.

    What is missing is named below the figure. The same results give the same files, byte for byte, as long as the
    version of matplotlib is the same.

    Args:
        grid: of any experiment; cells that are not finished are left out.
        folder: where the files go; it need not exist.

    Returns:
        The files.

    Raises:
        DiffaugError: matplotlib is not installed, or no finished cell has what the figure shows.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DiffaugError("figures need matplotlib: pip install 'diffaug[report]'") from error
    from diffaug.reproduce.figures.style import save, styled

    experiment = grid.plan_info["experiment"]
    drawing = _drawings().get(experiment)
    if drawing is None:
        raise DiffaugError(f"there is no figure for {experiment!r}; there is one for {', '.join(_drawings())}")
    with styled():
        return save(drawing(grid), folder / experiment)


def _drawings() -> dict[str, Callable[[Grid], Figure]]:
    """What draws an experiment. All of it needs matplotlib, which is imported when a figure is asked for."""
    from diffaug.reproduce.figures import aux_weight, cost, divergence, dots, low_label, prefix_length, stage1_steps

    return {
        "main": dots.main,
        "low-label": low_label.figure,
        "ablation": dots.ablation,
        "prefix-length": prefix_length.figure,
        "stage1-steps": stage1_steps.figure,
        "aux-weight": aux_weight.figure,
        "divergence": divergence.figure,
        "cost": cost.figure,
    }
