"""What can be told about a search before anything heavy is loaded."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from diffaug.config import Recipe
from diffaug.errors import DiffaugError
from diffaug.files import check_output
from diffaug.provenance import PROVENANCE
from diffaug.training.preflight import check_inputs
from diffaug.tuning.space import Search, Space, read_space

REQUEST = "request.json"


def check_tuning(recipe: Recipe, search: Search, folder: Path, trials: int, workers: int) -> Space:
    """Check a request; the search space.

    Raises:
        DiffaugError: something is missing or does not fit.
    """
    if find_spec("optuna") is None:
        raise DiffaugError("tune needs Optuna: pip install 'diffaug[tune]'")
    if trials < 1 or workers < 1:
        raise DiffaugError(f"the numbers of trials and workers must be at least 1, got {min(trials, workers)}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise DiffaugError("tune does not run under torchrun or accelerate; use --workers for several processes")
    space = read_space(search, recipe)
    if recipe.data.dev is None:
        raise DiffaugError("tune needs scored pairs that choose the settings; set data.dev")
    if recipe.stage1 is None and recipe.stage2 is None:
        raise DiffaugError(f"the recipe {recipe.name!r} trains nothing; choose another recipe")
    check_output(folder)
    if folder.exists() and not (folder.is_dir() and ((folder / REQUEST).is_file() or _is_new(folder))):
        raise DiffaugError(f"{folder} exists and is not a folder of tune; choose another folder")
    check_inputs(recipe)
    return space


def _is_new(folder: Path) -> bool:
    """Whether a folder is empty, but for what another process writes there just before the request."""
    return all(path.name.startswith(".") or path.name == PROVENANCE for path in folder.iterdir())
