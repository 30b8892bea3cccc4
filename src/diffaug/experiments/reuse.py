"""Finished runs of other grids, which are copied instead of trained again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

from diffaug.config import Recipe, load_recipe, read_settings, recipe_from_dict
from diffaug.errors import DiffaugError
from diffaug.experiments.data import Similarities, TaskFiles
from diffaug.experiments.grid import RESULT, SIMILARITIES, TAKEN_OVER, Grid
from diffaug.experiments.plan import Plan
from diffaug.experiments.results import Cell, counted
from diffaug.files import atomic_folder


class Reuse:
    """Finished cells of other grids, by the recipe that decided their results. Their folders are only read.

    A cell is copied from one with the same recipe, whatever its row, column and setting, if both are scored on the same
    tasks. Cells that finish in the other grids later are not seen.

    Args:
        folders: of the other grids; where several have a cell, the first is used.
        plan: of the grid that cells are copied to.
        out: its folder.
        tasks: what its models are scored on.

    Attributes:
        folders: of the other grids.

    Raises:
        DiffaugError: a folder holds no grid or is ``out``, or the plan measures more than scores.
    """

    def __init__(self, folders: Iterable[Path], plan: Plan, out: Path, tasks: TaskFiles) -> None:
        if plan.spec.measure:
            raise DiffaugError(
                f"{plan.spec.name} measures more of its runs than scores and cannot take runs over from other grids; "
                "leave --reuse out"
            )
        self.folders = list(dict.fromkeys(folders))
        self._tasks = tasks
        self._digests: dict[str, str] = {}
        self._runs: dict[str, list[tuple[Path, Path]]] = {}  # the folders of grid and run
        self._news: Counter[Path] = Counter()
        for folder in self.folders:
            if folder.resolve() == out.resolve():
                raise DiffaugError(f"{folder} is the grid itself; --reuse is for other grids")
            grid = Grid.open(folder)
            for cell, _ in grid.results():
                run = grid.folder_of(cell)
                if (recipe := _recipe_of_run(run)) is not None:
                    self._runs.setdefault(self._key(recipe), []).append((folder, run))

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
        self._news[grid] += 1
        return True

    def news(self) -> list[str]:
        """How many cells were copied from which grid since the last call."""
        lines = [f"{counted(count, 'run')} taken over from {folder}" for folder, count in self._news.items()]
        self._news.clear()
        return lines

    def _find(self, cell: Cell) -> tuple[Path, Path] | None:
        found = self._runs.get(self._key(load_recipe(cell.recipe, cell.changes)), [])
        still = ((grid, run) for grid, run in found if (run / RESULT).is_file() and self._same_tasks(run))
        return next(still, None)

    def _key(self, recipe: Recipe) -> str:
        """Everything in a recipe that decides the result."""
        values = recipe.to_dict()
        del values["name"], values["loop"]["save_minutes"], values["loop"]["trackers"]
        for name in ("nli", "unlabelled", "dev", "test"):
            # By content: each grid has its own copy of converted files.
            source = values["data"][name]
            joined = isinstance(source, list)
            values["data"][name] = [self._content(one) for one in source] if joined else self._content(source)
        for group, name in (("model", "backbone"), ("replaced", "generator")):
            values[group][name] = _resolved(values[group][name])
        return json.dumps(values, sort_keys=True)

    def _content(self, source: str | None) -> str | None:
        if source is None or not (path := Path(source)).is_file():
            return source
        if source not in self._digests:
            with path.open("rb") as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
            # With the name, whose ending decides how the file is read.
            self._digests[source] = f"{path.name} {digest.hexdigest()}"
        return self._digests[source]

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


def _resolved(model: str | None) -> str | None:
    """The absolute path of a model's folder; a hub name is returned as it is."""
    return str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model
