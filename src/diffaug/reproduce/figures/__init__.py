"""The figures of a reproduced experiment, as PNG for pages and SVG for print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from diffaug.errors import DiffaugError

if TYPE_CHECKING:
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
    from diffaug.reproduce.figures.experiments import DRAWINGS
    from diffaug.reproduce.figures.style import save, styled

    experiment = grid.plan_info["experiment"]
    drawing = DRAWINGS.get(experiment)
    if drawing is None:
        raise DiffaugError(f"there is no figure for {experiment!r}; there is one for {', '.join(DRAWINGS)}")
    with styled():
        return save(drawing(grid), folder / experiment)
