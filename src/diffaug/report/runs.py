"""Finding runs below a folder, and reading what each has left, finished or not."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from diffaug.errors import DiffaugError
from diffaug.experiments.results import Cell, Result

State = Literal["finished", "unfinished", "failed", "waiting"]

RECIPE, METRICS, SUMMARY, FAILURE = "recipe.yaml", "metrics.jsonl", "summary.json", "failure.txt"
GRID = "grid.json"
# The one in C takes a tenth of the time, which counts with a hundred runs.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What a run's folder holds besides; no run is below them.
_INNER = {"best", "checkpoints", "tables", "figures"}


@dataclass
class Run:
    """A run, as far as it got.

    Attributes:
        folder: where it is.
        name: how the page calls it: its path below the reported folder, or what sets a grid's cell apart.
        state: `waiting` is a cell of a grid that has not begun.
        detail: of the state: how far an unfinished run got, why a failed one failed.
        recipe: every setting; empty for a run that has none yet.
        metrics: the lines of its metrics file.
        scores: at the end; a cell's are those of its result.
        before: of the backbone, before training.
        best_at: stage and step of the checkpoint that was kept.
        stage1_end: how stage 1 ended, in words.
        seconds: the training took.
        cell, result: of a grid.
        tasks: the folders of the tasks that a cell was scored on.
        family: runs of one family share a colour: a row of a grid, else the run alone.
        shown: whether its curve is shown at first; runs that only served to tune are not.
    """

    folder: Path
    name: str
    state: State
    detail: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    best_at: dict[str, int] | None = None
    stage1_end: str | None = None
    seconds: float | None = None
    cell: Cell | None = None
    result: Result | None = None
    tasks: tuple[Path, ...] = ()
    family: str = ""
    shown: bool = True

    @property
    def model(self) -> Path | None:
        """The folder of its best model, if it is there."""
        best = self.folder / "best"
        return best if (best / "diffaug.json").is_file() else None


def find_folders(folder: Path) -> tuple[list[Path], list[Path]]:
    """The grids at or below ``folder``, and the runs that belong to none of them; in the order people count."""
    grids: list[Path] = []
    runs: list[Path] = []
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        folders[:] = sorted((f for f in folders if f not in _INNER and not f.startswith(".")), key=_natural)
        if GRID in files:
            grids.append(here)
            folders.clear()
        elif RECIPE in files or FAILURE in files:
            runs.append(here)
    return grids, runs


def read_run(folder: Path, name: str) -> Run:
    """What a run's folder tells.

    Raises:
        DiffaugError: a file in it is not what it should be.
    """
    metrics = list(_metrics(folder / METRICS))
    run = Run(folder, name, "unfinished", _how_far(folder, metrics), _recipe(folder / RECIPE), metrics, family=name)
    summary = _json(folder / SUMMARY)
    if summary is not None:
        run.state, run.detail = "finished", ""
        run.scores, run.before = dict(summary.get("scores") or {}), dict(summary.get("before") or {})
        run.best_at, run.stage1_end = summary.get("best_at"), summary.get("stage1_end")
        run.seconds = summary.get("seconds")
    elif (folder / FAILURE).is_file():
        run.state, run.detail = "failed", failure_words((folder / FAILURE).read_text("utf-8", errors="replace"))
    return run


def failure_words(text: str) -> str:
    """The sentence of a failure: its first line, or where that begins a traceback, the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "for a reason that was not written down"
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0])[:400]


def _recipe(path: Path) -> dict[str, Any]:
    """The settings as they stand in the file: a recipe of an earlier version is as good as one of today."""
    if not path.is_file():
        return {}
    try:
        values = yaml.load(path.read_text("utf-8"), _LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DiffaugError(f"{path} is not valid YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(values, dict):
        raise DiffaugError(f"{path} holds no settings")
    return values


def _metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file; the last one of a run that goes on may be half written."""
    if not path.is_file():
        return
    lines = path.read_text("utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            yield {**values, "stage": int(values["stage"]), "step": int(values["step"])}
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise DiffaugError(f"{path}, line {number}: not a measurement: {line[:80]!r}") from error


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise DiffaugError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise DiffaugError(f"{path} holds no summary")
    return values


def _how_far(folder: Path, metrics: list[dict[str, Any]]) -> str:
    kept = ", can be resumed" if any((folder / "checkpoints").glob("stage*")) else ""
    if not metrics:
        return f"nothing measured yet{kept}"
    return f"stage {metrics[-1]['stage']}, step {metrics[-1]['step']}{kept}"


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts `seed9` before `seed10`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
