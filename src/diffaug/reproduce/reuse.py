"""Runs that another grid has finished already: they are taken over, not trained again."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffaug.config import Recipe, load_recipe, read_settings, recipe_from_dict
from diffaug.errors import DiffaugError
from diffaug.evaluation.folder import Folders
from diffaug.files import atomic_folder
from diffaug.reproduce.cell import Cell
from diffaug.reproduce.grid import RESULT, SIMILARITIES, TAKEN_OVER, Grid
from diffaug.reproduce.plans import Plan
from diffaug.reproduce.score import StsTasks
from diffaug.reproduce.words import counted

_GOLD = "/gold"


class Reuse:
    """Finished cells of other grids, by what decided their results. Their folders are only read.

    A cell is taken over from one with the same recipe, whatever row, column and setting that is in, if both are scored
    on the same tasks. What finishes in the other grids after this was made is not seen.

    Args:
        folders: of the other grids; where several have a cell, it is taken from the first.
        plan: of the grid that takes cells over.
        out: its folder.
        data: the folders with the tasks that its models are scored on.

    Attributes:
        folders: of the other grids.

    Raises:
        DiffaugError: a folder holds no grid or is ``out``; the plan measures more of its runs than their scores.
    """

    def __init__(self, folders: Iterable[Path], plan: Plan, out: Path, data: Folders) -> None:
        if plan.one_at_a_time or plan.record is not None:
            raise DiffaugError(
                f"{plan.experiment} measures more of its runs than their scores, and takes none over from other grids; "
                "leave --reuse out"
            )
        self.folders = list(dict.fromkeys(folders))
        self._data = data
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
        """The grid that a cell can be taken over from; None if there is none."""
        found = self._find(cell)
        return None if found is None else found[0]

    def take_over(self, cell: Cell, folder: Path, *, keep_model: bool = True) -> bool:
        """Copy the finished run that is the same as a cell's to its folder, if there is one.

        Args:
            cell: to be finished so.
            folder: of its run; what an earlier attempt left there goes.
            keep_model: copy the model too, if it is there.

        Returns:
            whether there was one.

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
            if not (temporary / TAKEN_OVER).exists():  # else that grid has it from yet another
                (temporary / TAKEN_OVER).write_text(f"{run.resolve()}\n", "utf-8")
        self._news[grid] += 1
        return True

    def news(self) -> list[str]:
        """How many cells were taken over from where, since this was asked last."""
        lines = [f"{counted(count, 'run')} taken over from {folder}" for folder, count in self._news.items()]
        self._news.clear()
        return lines

    def _find(self, cell: Cell) -> tuple[Path, Path] | None:
        found = self._runs.get(self._key(load_recipe(cell.recipe, cell.changes)), [])
        still = ((grid, run) for grid, run in found if (run / RESULT).is_file() and self._same_tasks(run))
        return next(still, None)

    def _key(self, recipe: Recipe) -> str:
        """All of a recipe that decides the result."""
        values = recipe.to_dict()
        del values["name"], values["loop"]["save_minutes"], values["loop"]["trackers"]
        for name in ("nli", "unlabelled", "dev", "test"):
            # Each grid has its own copy of data that was brought into another form: the content counts.
            source = values["data"][name]
            joined = isinstance(source, list)
            values["data"][name] = [self._content(one) for one in source] if joined else self._content(source)
        for group, name in (("model", "backbone"), ("replaced", "generator")):
            values[group][name] = _place(values[group][name])
        return json.dumps(values, sort_keys=True)

    def _content(self, source: str | None) -> str | None:
        if source is None or not (path := Path(source)).is_file():
            return source
        if source not in self._digests:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
            # With the name, whose ending says how the file is read.
            self._digests[source] = f"{path.name} {digest.hexdigest()}"
        return self._digests[source]

    @cached_property
    def _gold(self) -> dict[str, NDArray[np.float32]]:
        tasks = StsTasks.load(self._data).tasks
        scores = {task.name: [pairs.scores for pairs in task.subtasks.values()] for task in tasks}
        return {f"{name}{_GOLD}": np.concatenate(parts).astype(np.float32) for name, parts in scores.items()}

    def _same_tasks(self, run: Path) -> bool:
        """Whether a run was scored on the pairs of this grid, as far as can be read."""
        try:
            with np.load(run / SIMILARITIES) as kept:
                found: dict[str, Any] = {key: kept[key] for key in kept.files if key.endswith(_GOLD)}
        except (OSError, ValueError, zipfile.BadZipFile):
            return False
        return found.keys() == self._gold.keys() and all(np.array_equal(found[key], self._gold[key]) for key in found)


def _recipe_of_run(run: Path) -> Recipe | None:
    """What a run was really made with, which the cell's recipe may no longer be; None if it cannot be read today."""
    try:
        return recipe_from_dict(read_settings(run / "recipe.yaml"))
    except DiffaugError:
        return None


def _place(model: str | None) -> str | None:
    """A model's folder, however it was written; a hub name is left as it is."""
    return str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model
