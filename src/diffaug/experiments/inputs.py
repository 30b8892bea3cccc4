"""Whether the data and models of a grid are still those that its runs, or those of another grid, were made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache

from diffaug.config import Recipe, load_recipe
from diffaug.errors import DiffaugError
from diffaug.experiments.grid import Grid
from diffaug.experiments.results import Cell, counted
from diffaug.models.io.fetch import backbone_fingerprints
from diffaug.provenance import RunProvenance, checksum
from diffaug.training.inputs import data_checksums, model_fingerprints

TASKS = "tasks"
"""The role of the test tasks in the provenance of a cell."""


class CurrentInputs:
    """The inputs that recipes name, as they are now. Each file and model is read once."""

    def __init__(self) -> None:
        self._checksum = cache(checksum)
        self._fingerprints = cache(backbone_fingerprints)

    def of(self, recipe: Recipe) -> RunProvenance:
        """Data and models of a recipe.

        Raises:
            DiffaugError: a file or model cannot be read.
        """
        return RunProvenance(data_checksums(recipe, self._checksum), model_fingerprints(recipe, self._fingerprints))


def check_inputs(
    grid: Grid, cells: Iterable[Cell], tasks: Mapping[str, str], *, force: bool, say: Callable[[str], None]
) -> None:
    """Compare the inputs of runs that were begun or finished earlier with those that the others will be made from.

    Args:
        grid: to be continued.
        cells: those to compare.
        tasks: the SHA-256 of each file of the test tasks.
        force: continue with other inputs; a note below the tables says so.
        say: prints a line.

    Raises:
        DiffaugError: data, a model or a task has changed.
    """
    current, changed, unknown = CurrentInputs(), Counter[str](), 0
    for cell in cells:
        before = RunProvenance.load(grid.folder_of(cell))
        if before is None:
            unknown += grid.result(cell) is not None
            continue
        now = current.of(load_recipe(cell.recipe, cell.changes))
        changed.update(before.changed(replace(now, data={**now.data, TASKS: tasks})).inputs)
    if unknown:
        say(f"{counted(unknown, 'run')} without a record of their inputs: whether these have changed is unknown")
    if not changed:
        return
    listed = "; ".join(f"{text} ({counted(count, 'run')})" for text, count in changed.items())
    if not force:
        raise DiffaugError(
            f"inputs of {grid.folder} have changed since runs were made from them: {listed}; restore them, choose "
            "another folder, or continue regardless with --force, which the tables will say"
        )
    grid.add_note(f"Continued by force although inputs had changed: {listed}")
