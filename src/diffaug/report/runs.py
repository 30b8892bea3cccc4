"""Find the runs in a folder and read their files, whether a run is finished or not."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from diffaug.config import read_settings
from diffaug.config.typed import build
from diffaug.errors import DiffaugError
from diffaug.experiments.grid import FAILURE, GRID, read_metrics
from diffaug.experiments.results import DEV, Cell, Result
from diffaug.models.io.fetch import model_source

State = Literal["finished", "unfinished", "failed", "waiting"]

RECIPE, SUMMARY = "recipe.yaml", "summary.json"
# Subfolders of a run, which contain no other runs.
_INNER = {"best", "checkpoints", "tables", "figures"}


@dataclass
class Run:
    """A run, finished or not.

    Attributes:
        folder: the run's folder.
        name: the name on the page: the path relative to the reported folder, or for a grid what identifies the cell.
        state: `waiting` is a grid cell that has not started.
        detail: progress of an unfinished run, or the error of a failed one.
        recipe: all settings; empty if the run has not started.
        metrics: the lines of the metrics file.
        scores: final scores; for a grid cell, those of its result.
        before: scores of the backbone before training.
        best_at: stage and step of the best checkpoint.
        stage1_end: why stage 1 ended.
        seconds: training time.
        cell, result: of a grid.
        tasks: folders with the evaluation data of a grid cell.
        family: runs of one family share a colour; a family is a row of a grid or a single run.
        shown: whether the curve is shown at first; runs of a hyperparameter search are not.
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
        """The folder of the best model, or None if there is none."""
        best = self.folder / "best"
        return best if (best / "diffaug.json").is_file() else None

    @property
    def dev_before(self) -> float | None:
        """The dev score before training; grids have a name of their own for it."""
        return self.before.get("dev", self.before.get(DEV))

    @property
    def dev_so_far(self) -> float | None:
        """The best dev score that was logged."""
        values = (line.get("dev") for line in self.metrics)
        return max((v for v in values if isinstance(v, (int, float)) and math.isfinite(v)), default=None)

    @property
    def backbone(self) -> str | None:
        """The model before training: a folder or a name; None if the run has not started."""
        name = (self.recipe.get("model") or {}).get("backbone")
        return None if name is None else model_source(resolve(str(name), self.folder))


def find_folders(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders of grids, and of runs that belong to no grid, in natural sort order."""
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
    """Read a run's folder.

    Raises:
        DiffaugError: a file in it is invalid.
    """
    metrics = list(read_metrics(folder, unfinished=True))
    run = Run(folder, name, "unfinished", _progress(folder, metrics), _recipe(folder / RECIPE), metrics, family=name)
    summary = _summary(folder / SUMMARY)
    if summary is not None:
        run.state, run.detail = "finished", ""
        run.scores, run.before = _scores(summary.scores), _scores(summary.before)
        run.best_at, run.stage1_end = summary.best_at, summary.stage1_end
        run.seconds = summary.seconds
    elif (folder / FAILURE).is_file():
        run.state, run.detail = "failed", failure_message((folder / FAILURE).read_text("utf-8", errors="replace"))
    return run


def failure_message(text: str) -> str:
    """The error message in a failure file: its first line, or the last line of a traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "unknown error"
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0])[:400]


def _recipe(path: Path) -> dict[str, Any]:
    """The settings as written in the file, without validation, so that recipes of older versions can be shown."""
    if not path.is_file():
        return {}
    values = read_settings(path)
    for name in ("model", "data", "stage1", "stage2"):
        if not isinstance(values.get(name), (dict, type(None))):
            raise DiffaugError(f"{path}: {name} must be a group of settings, not {values[name]!r:.80}")
    return values


@dataclass(frozen=True)
class _Summary:
    """What the report reads from a summary; a score that is not finite is None."""

    scores: dict[str, float | None] = field(default_factory=dict)
    before: dict[str, float | None] = field(default_factory=dict)
    best_at: dict[str, int] | None = None
    stage1_end: str | None = None
    seconds: float | None = None


def _summary(path: Path) -> _Summary | None:
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text("utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError, RecursionError) as error:
        raise DiffaugError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise DiffaugError(f"{path} contains no summary")
    names = [f.name for f in fields(_Summary)]
    found: _Summary = build(_Summary, {n: values[n] for n in names if values.get(n) is not None}, str(path))
    if found.best_at is not None and not {"stage", "step"} <= found.best_at.keys():
        raise DiffaugError(f"{path}: best_at must have stage and step")
    return found


def _scores(scores: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if score is None else score for name, score in scores.items()}


def _progress(folder: Path, metrics: list[dict[str, Any]]) -> str:
    resumable = ", can be resumed" if any((folder / "checkpoints").glob("stage*")) else ""
    if not metrics:
        return f"nothing logged yet{resumable}"
    return f"stage {metrics[-1]['stage']}, step {metrics[-1]['step']}{resumable}"


def resolve(source: str, folder: Path) -> str:
    """Resolve a recipe's relative path, against the current folder or a parent of the run's folder."""
    if ":" in source.split("/")[0] or Path(source).is_absolute() or Path(source).exists():
        return source
    return next((str(parent / source) for parent in folder.absolute().parents if (parent / source).exists()), source)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts `seed9` before `seed10`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
