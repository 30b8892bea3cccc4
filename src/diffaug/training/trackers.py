"""TensorBoard, Weights & Biases and MLflow, through accelerate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffaug.config import Recipe
from diffaug.errors import DiffaugError

if TYPE_CHECKING:
    from accelerate import Accelerator

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Each is the name of its package, and of the extra that brings it."""
PROJECT = "diffaug"


def check_trackers(names: Sequence[str]) -> None:
    """See that every tracker is known and installed; accelerate leaves out a missing one without a word.

    Raises:
        DiffaugError: one is not.
    """
    for name in names:
        if name not in TRACKERS:
            raise DiffaugError(f"loop.trackers: there is no tracker {name!r}; there are {', '.join(TRACKERS)}")
        if find_spec(name) is None:
            raise DiffaugError(
                f"loop.trackers: {name} is not installed: pip install 'diffaug[{name}]', or leave it out of the recipe"
            )


@contextmanager
def tracked(accelerator: Accelerator, recipe: Recipe, folder: Path) -> Iterator[None]:
    """Start the recipe's trackers, and finish them however the block ends.

    TensorBoard's events are in ``folder``; W&B and MLflow get a run of the folder's name in the project or experiment
    `PROJECT`, with every setting of the recipe, and go where their own environment variables say.

    Raises:
        DiffaugError: a tracker does not start, as one that has nobody logged in.
    """
    if not recipe.loop.trackers:
        yield
        return
    try:
        accelerator.init_trackers(
            PROJECT,
            init_kwargs={"wandb": {"name": folder.name, "dir": str(folder)}, "mlflow": {"run_name": folder.name}},
        )
        for tracker in accelerator.trackers:
            if tracker.name != "tensorboard":  # which would make another folder for them, named after the time
                tracker.store_init_configuration(flat(recipe.to_dict()))
    except Exception as error:  # each has its own, and those of its network
        reason = " ".join(str(error).split())[:300]
        raise DiffaugError(f"loop.trackers: {', '.join(recipe.loop.trackers)} did not start ({reason})") from error
    try:
        yield
    finally:
        # Not accelerator.end_training, which would also part the processes, who have more to do.
        for tracker in accelerator.trackers:
            tracker.finish()


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Settings as trackers take them: ``stage1.steps`` and the like, each with a plain value."""
    found: dict[str, bool | int | float | str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        else:
            found[name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return found
