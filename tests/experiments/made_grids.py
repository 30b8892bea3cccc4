"""Grids whose folders are written by hand: results and similarities without any training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from diffaug.experiments.grid import SIMILARITIES, Grid, write_result
from diffaug.experiments.results import DEV, Cell, Result

Array = NDArray[np.float32]

PAIRS = {"STS12": 60, "STS14": 50, "STS-B": 40}
"""The tasks, and how many pairs they have."""
MACHINE = {"device": "cpu", "torch": "2.13.0"}


def make_cell(row: str, column: str = "", recipe: str = "simcse-sup", **more: Any) -> Cell:
    """A cell with the first seed, 1; setting, labels, draw and seed are among its changes, as plans have them."""
    labels = (f"data.labels={column.replace(',', '')}", "data.label_draw=0") if column else ()
    changes = (*labels, f"stage2.learning_rate={more.get('setting', 0) + 1}e-5", "seed=1")
    return Cell(row, column, recipe, changes, seed=1, **more)


def again(first: Cell, seed: int, draw: int = 0) -> Cell:
    """The same with another seed and draw."""
    kept = [change for change in first.changes if not change.startswith(("seed=", "data.label_draw="))]
    drawn = [f"data.label_draw={draw}"] if first.column else []
    return replace(first, seed=seed, draw=draw, changes=(*kept, *drawn, f"seed={seed}"))


def begin(
    folder: Path,
    first: Sequence[Cell],
    experiment: str = "main",
    *,
    encoder: str = "small",
    seeds: Sequence[int] = (1, 2, 3),
    draws: int = 1,
    columns_are: str = "",
) -> Grid:
    """A grid in which nothing has run yet."""
    request = {"experiment": experiment, "encoder": encoder, "seeds": list(seeds), "draws": draws}
    about = {"title": "A table", "columns_are": columns_are, "notes": ["Made by hand"]}
    return Grid.begin(folder, request, about, first)


def gold(task: str) -> Array:
    """The scores of a task's pairs, some of them equal."""
    return np.random.default_rng(PAIRS[task]).integers(0, 21, PAIRS[task]).astype(np.float32) / 4


def noisy(done: Cell, noise: float) -> Callable[[str], Array]:
    """Cosines that follow the gold scores the worse the more noise there is; others for every cell."""
    rng = np.random.default_rng(list(done.name.encode()))
    return lambda task: (gold(task) + noise * rng.normal(size=PAIRS[task])).astype(np.float32)


def finish(grid: Grid, done: Cell, cosine: Callable[[str], Array] | float, dev: float = 70.0) -> Result:
    """Write what a finished cell leaves.

    Args:
        grid: the cell's.
        done: the cell.
        cosine: of the pairs of a task; a number is for `noisy`.
        dev: the score on the dev pairs.
    """
    cosine = cosine if callable(cosine) else noisy(done, cosine)
    arrays: dict[str, Array] = {}
    scores = {DEV: dev}
    for task in PAIRS:
        arrays |= {f"{task}/cosine": cosine(task), f"{task}/gold": gold(task)}
        scores[task] = 100 * float(spearmanr(arrays[f"{task}/cosine"], gold(task)).statistic)
    return keep(grid, done, scores | {"average": float(np.mean([scores[task] for task in PAIRS]))}, arrays)


def keep(
    grid: Grid, done: Cell, scores: dict[str, float], arrays: Mapping[str, Array] | None = None, **more: Any
) -> Result:
    """Write a result with these scores, and ``more`` of a result; without arrays, no similarities."""
    folder = grid.folder_of(done)
    folder.mkdir(parents=True, exist_ok=True)
    if arrays is not None:
        np.savez(folder / SIMILARITIES, **arrays)  # type: ignore[arg-type]
    result = Result(scores, 60.0 * done.seed, 2.0, machine=MACHINE, **more)
    write_result(folder, result)
    return result
