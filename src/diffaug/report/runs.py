"""Find the runs in a folder and read their files, whether a run is finished or not."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from diffaug.config import read_settings
from diffaug.errors import DiffaugError
from diffaug.experiments.results import Cell, Result

State = Literal["finished", "unfinished", "failed", "waiting"]

RECIPE, METRICS, SUMMARY, FAILURE = "recipe.yaml", "metrics.jsonl", "summary.json", "failure.txt"
GRID = "grid.json"
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
    metrics = list(_metrics(folder / METRICS))
    run = Run(folder, name, "unfinished", _progress(folder, metrics), _recipe(folder / RECIPE), metrics, family=name)
    summary = _json(folder / SUMMARY)
    if summary is not None:
        run.state, run.detail = "finished", ""
        run.scores, run.before = dict(summary.get("scores") or {}), dict(summary.get("before") or {})
        run.best_at, run.stage1_end = summary.get("best_at"), summary.get("stage1_end")
        run.seconds = summary.get("seconds")
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


def _metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file; the last line may be incomplete while the run continues."""
    if not path.is_file():
        return
    lines = path.read_text("utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            yield {**values, "stage": int(values["stage"]), "step": int(values["step"])}
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            if number < len(lines):
                raise DiffaugError(
                    f"{path}, line {number}: not a JSON object with stage and step: {line[:80]!r}"
                ) from error


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DiffaugError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise DiffaugError(f"{path} contains no summary")
    return values


def _progress(folder: Path, metrics: list[dict[str, Any]]) -> str:
    resumable = ", can be resumed" if any((folder / "checkpoints").glob("stage*")) else ""
    if not metrics:
        return f"nothing logged yet{resumable}"
    return f"stage {metrics[-1]['stage']}, step {metrics[-1]['step']}{resumable}"


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts `seed9` before `seed10`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
