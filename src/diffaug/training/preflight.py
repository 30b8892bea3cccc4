"""What can be told before anything heavy is loaded: whether a run may start in its folder, and has what it names.

Nothing here imports torch, which takes seconds, so that a mistake is answered at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from diffaug.config import DataSettings, Recipe, read_settings, recipe_from_dict, source_list
from diffaug.data.table import HUB_PREFIX, IN_MEMORY, open_table
from diffaug.errors import DiffaugError
from diffaug.files import check_output, exclusive_lock, restore, sweep
from diffaug.training.trackers import check_trackers

_LOCK = ".lock"


def check_start(recipe: Recipe, folder: Path, resume: bool) -> None:
    """See that the folder is the run's to use, that trackers are installed, and that files of data are there.

    Raises:
        DiffaugError: one of them is not so.
    """
    check_folder(folder, recipe, resume)
    check_inputs(recipe)


def check_inputs(recipe: Recipe) -> None:
    """See that trackers are installed, and that files of data are there.

    Raises:
        DiffaugError: one of them is not so.
    """
    check_trackers(recipe.loop.trackers)
    _check_files(recipe.data, ["nli", "dev", "test", *(["unlabelled"] if _reads_unlabelled(recipe) else [])])


def check_folder(folder: Path, recipe: Recipe, resume: bool) -> None:
    """See that the folder is free, or belongs to the run that is to go on.

    Raises:
        DiffaugError: it holds something else, a finished run, or one with other settings.
    """
    check_output(folder)
    kept = folder / "recipe.yaml"
    if folder.exists() and not folder.is_dir():
        raise DiffaugError(f"{folder} is a file; a run needs a folder")
    if not folder.exists() or all(path.name.startswith(".") for path in folder.iterdir()):
        return
    if not resume:
        raise DiffaugError(f"{folder} is not empty; choose another folder, or continue with --resume")
    if not kept.is_file():
        raise DiffaugError(f"{folder} is not a run's folder: it has no recipe.yaml")
    if (folder / "summary.json").exists():
        raise DiffaugError(f"the run in {folder} is finished; its model is {folder / 'best'}")
    try:
        # What the settings mean, not how they are written: a run that was started before a setting existed goes on
        # with what leaving it out means today.
        before = recipe_from_dict(read_settings(kept), source=str(kept)).to_dict()
    except DiffaugError as error:
        raise DiffaugError(
            f"the run in {folder} cannot continue, because its recipe is no longer valid ({error}); start in another "
            "folder"
        ) from error
    # A plugin may have moved to another folder; no code is imported because a run's folder names it.
    if changed := differences({**before, "plugins": recipe.plugins}, recipe.to_dict()):
        raise DiffaugError(
            f"the run in {folder} has another recipe ({'; '.join(changed[:3])}); resume with the same settings, "
            "or start in another folder"
        )


@contextmanager
def claimed(folder: Path, recipe: Recipe, resume: bool) -> Iterator[None]:
    """Have a run's folder to oneself, in order, for the time of the block. If the run leaves nothing there, it goes.

    Raises:
        DiffaugError: as `check_folder`; another process is at work there, or it cannot be made.
    """
    check_folder(folder, recipe, resume)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiffaugError(f"{folder} cannot be written: {error.strerror or error}") from error
    try:
        with exclusive_lock(
            folder / _LOCK, f"another process is at work in {folder}; wait for it to end, or choose another folder"
        ):
            check_folder(folder, recipe, resume)  # again: a run may have begun or ended there meanwhile
            # What writes that were cut off have left. Hidden files of the user's, a repository's for one, stay.
            restore(folder / "best")
            sweep(folder)
            sweep(folder / "checkpoints")
            yield
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """What differs between two recipes as plain values, each as "X was A, is B"."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = list(dict.fromkeys([*before, *now]))
        inner = (differences(before.get(k), now.get(k), f"{where}.{k}" if where else str(k)) for k in keys)
        return [difference for found in inner for difference in found]
    return [] if before == now else [f"{where} was {before!r}, is {now!r}"]


def _reads_unlabelled(recipe: Recipe) -> bool:
    return recipe.stage2 is not None and recipe.stage2.objective == "unlabelled"


def _check_files(data: DataSettings, names: list[str]) -> None:
    """Open the files of these settings; what is in them is checked when they are read."""
    for name in names:
        for source in source_list(getattr(data, name)):
            if not source.startswith((HUB_PREFIX, IN_MEMORY)):
                open_table(source, lambda problem: None)
