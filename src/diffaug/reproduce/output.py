"""What a grid gives in the end: its tables and figures, as files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from diffaug.errors import DiffaugError
from diffaug.files import atomic_file
from diffaug.reproduce.grid import Grid

if TYPE_CHECKING:
    from diffaug.reproduce.tables import Form

_ENDINGS: dict[Form, str] = {"terminal": ".txt", "markdown": ".md", "latex": ".tex", "json": ".json"}
# Of the file for a terminal, which nobody has asked how wide theirs is.
_WIDTH = 120


def write_tables(grid: Grid) -> str:
    """Write the grid's table into `tables/`, in every format; returns the one for a terminal.

    Raises:
        DiffaugError: no cell is finished, or a file cannot be written.
    """
    from diffaug.reproduce.summary import summarise
    from diffaug.reproduce.tables import render

    summary = summarise(grid)
    for form, ending in _ENDINGS.items():
        with atomic_file(grid.folder / "tables" / f"{grid.request['experiment']}{ending}") as temporary:
            temporary.write_text(render(summary, form, width=_WIDTH, styled=False), "utf-8")
    return render(summary, "terminal")


def write_figures(grid: Grid) -> tuple[list[Path], str | None]:
    """Draw the grid's figure into `figures/`: the files, and if there are none, why."""
    if find_spec("matplotlib") is None:
        return [], "no figures: they need matplotlib, pip install 'diffaug[report]'"
    from diffaug.reproduce.figures import draw

    try:
        return draw(grid, grid.folder / "figures"), None
    except DiffaugError as error:
        return [], f"no figures: {error}"
