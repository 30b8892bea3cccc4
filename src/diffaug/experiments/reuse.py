"""Finished runs of other grids, which are copied instead of trained again."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

from diffaug.config import Recipe, load_recipe, read_settings, recipe_from_dict, source_list
from diffaug.errors import DiffaugError
from diffaug.experiments.data import Similarities, TaskFiles
from diffaug.experiments.grid import RESULT, SIMILARITIES, TAKEN_OVER, Grid
from diffaug.experiments.inputs import CurrentInputs
from diffaug.experiments.plan import Plan
from diffaug.experiments.results import Cell, counted
from diffaug.files import atomic_folder
from diffaug.provenance import RunProvenance
from diffaug.training.inputs import ROLES


class Reuse:
    """Finished cells of other grids, by the recipe that decided their results. Their folders are only read.

    A cell is copied from one with the same recipe, whatever its row, column and setting, if both are scored on the same
    tasks and the data and models that the other one was made from are those of this one now. Cells that finish in the
    other grids later are not seen.

    Args:
        folders: of the other grids; where several have a cell, the first is used.
        plan: of the grid that cells are copied to.
        out: its folder.
        tasks: what its models are scored on.
        force: copy cells even if they were made from other data or models, or if these are unknown.

    Attributes:
        folders: of the other grids.
        forced: what was copied by force, and why it would not have been, as notes for the tables.

    Raises:
        DiffaugError: a folder holds no grid or is ``out``, or the plan measures more than scores.
    """

    def __init__(
        self, folders: Iterable[Path], plan: Plan, out: Path, tasks: TaskFiles, *, force: bool = False
    ) -> None:
        if plan.spec.measure:
            raise DiffaugError(
                f"{plan.spec.name} measures more than scores, so it cannot copy runs of other grids; leave out --reuse"
            )
        self.folders = list(dict.fromkeys(folders))
        self._tasks = tasks
        self._force = force
        self._current = CurrentInputs()
        self._runs: dict[str, list[tuple[Path, Path]]] = {}  # the folders of grid and run
        self._news: Counter[str] = Counter()
        self._refused: set[Path] = set()
        self.forced: list[str] = []
        for folder in self.folders:
            if folder.resolve() == out.resolve():
                raise DiffaugError(f"{folder} is the grid itself; --reuse is for other grids")
            grid = Grid.open(folder)
            for cell, _ in grid.results():
                run = grid.folder_of(cell)
                if (recipe := _recipe_of_run(run)) is not None:
                    self._runs.setdefault(_key(recipe), []).append((folder, run))

    def source(self, cell: Cell) -> Path | None:
        """The grid that a cell can be copied from; None if there is none."""
        found = self._find(cell)
        return None if found is None else found[0]

    def take_over(self, cell: Cell, folder: Path, keep_model: bool = True) -> bool:
        """Copy the finished run that is the same as a cell, if there is one.

        Args:
            cell: to be finished.
            folder: of its run; files of an earlier attempt are removed.
            keep_model: copy the model too, if it is there.

        Returns:
            Whether there was one.

        Raises:
            DiffaugError: it cannot be copied.
        """
        found = self._find(cell)
        if found is None:
            return False
        grid, run = found
        left_out = shutil.ignore_patterns(".*", *([] if keep_model else ["best"]))
        with atomic_folder(folder, overwrite=True) as temporary:
            shutil.copytree(run, temporary, ignore=left_out, dirs_exist_ok=True)
            if not (temporary / TAKEN_OVER).exists():  # else that grid has copied it as well
                (temporary / TAKEN_OVER).write_text(f"{run.resolve()}\n", "utf-8")
        self._news[f"copied from {grid}"] += 1
        if (reason := self._reason(cell, run)) is not None:
            note = f"Copied by force from {grid}: {reason}"
            self.forced += [] if note in self.forced else [note]
        return True

    def news(self) -> list[str]:
        """How many cells were copied from which grid since the last call, and how many were not, and why."""
        lines = [f"{counted(count, 'run')} {text}" for text, count in self._news.items()]
        self._news.clear()
        return lines

    def _find(self, cell: Cell) -> tuple[Path, Path] | None:
        refused: list[tuple[Path, Path, str]] = []
        for grid, run in self._runs.get(_key(load_recipe(cell.recipe, cell.changes)), []):
            if not (run / RESULT).is_file() or not self._same_tasks(run):
                continue
            reason = self._reason(cell, run)
            if reason is None or self._force:
                return grid, run
            refused.append((grid, run, reason))
        for grid, run, reason in refused:
            if run not in self._refused:
                self._refused.add(run)
                self._news[f"not copied from {grid} ({reason}; --force copies them)"] += 1
        return None

    def _reason(self, cell: Cell, run: Path) -> str | None:
        """Why a run with the recipe of a cell is not the same; None if it is."""
        try:
            before = RunProvenance.load(run)
            now = self._current.of(load_recipe(cell.recipe, cell.changes))
        except DiffaugError as error:
            return str(error)
        if before is None:
            return "without a record of data and models"
        return "; ".join(before.changed(now).inputs) or None

    @cached_property
    def _gold(self) -> Similarities:
        return self._tasks.load().gold()

    def _same_tasks(self, run: Path) -> bool:
        """Whether a run was scored on the pairs of this grid."""
        try:
            with np.load(run / SIMILARITIES) as arrays:
                found = {key: arrays[key] for key in arrays.files if key.endswith("/gold")}
        except Exception:  # damaged archives raise errors of many classes
            return False
        return found.keys() == self._gold.keys() and all(np.array_equal(found[key], self._gold[key]) for key in found)


def _recipe_of_run(run: Path) -> Recipe | None:
    """The recipe that a run was made with, which may differ from the recipe of that name now; None: unreadable."""
    try:
        return recipe_from_dict(read_settings(run / "recipe.yaml"))
    except DiffaugError:
        return None


def _key(recipe: Recipe) -> str:
    """Everything in a recipe that decides the result, except the content of data files and models."""
    values = recipe.to_dict()
    del values["name"], values["loop"]["save_minutes"], values["loop"]["trackers"]
    del values["model"]["backbone"], values["replaced"]["generator"]
    for role in ROLES:
        # Each grid has its own copy of converted files. The ending of a name decides how a file is read.
        sources = source_list(getattr(recipe.data, role))
        values["data"][role] = [source if ":" in source else Path(source).name for source in sources]
    return json.dumps(values, sort_keys=True)
