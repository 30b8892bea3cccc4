"""Grids of made-up results, laid out as `diffaug reproduce` leaves them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from diffaug.experiments.grid import RESULT, Grid
from diffaug.experiments.results import Cell, Result

SEEDS = (42, 43, 44)

Row = tuple[str, str, str, bool]
"""A row, its recipe, its group, and whether it is a baseline."""


def make_grid(
    folder: Path, experiment: str, cells: Iterable[Cell], result: Callable[[Cell], Result | None], columns_are: str = ""
) -> Grid:
    """A grid whose cells are finished where ``result`` gives one."""
    cells = list(cells)
    first = [cell for cell in cells if cell.seed == SEEDS[0] and cell.draw == 0]
    about = {"title": experiment, "columns_are": columns_are, "notes": []}
    grid = Grid.begin(folder, {"experiment": experiment}, about, first)
    grid.add(cells)
    for cell in cells:
        left = result(cell)
        if left is not None:
            # Straight to the file: hundreds of careful writes, each flushed to the disk, would take seconds.
            grid.folder_of(cell).mkdir(parents=True)
            (grid.folder_of(cell) / RESULT).write_text(json.dumps(asdict(left)), "utf-8")
    return grid


def cells_of(rows: Sequence[Row], columns: Sequence[str] = ("",), seeds: Sequence[int] = SEEDS) -> list[Cell]:
    """A cell for each row, column and seed."""
    return [
        Cell(row, column, recipe, (), seed=seed, group=group, baseline=baseline)
        for row, recipe, group, baseline in rows
        for column in columns
        for seed in seeds
    ]


def scored(value: float, **values: float) -> Result:
    """A result with that dev score, and an average that is somewhat lower."""
    scores = {"STS-B dev": value, "STS-B": value - 2, "STS12": value - 4, "average": value - 3}
    return Result(scores, seconds=values.get("seconds", 60.0), gib=values.get("gib", 4.0))


def jitter(cell: Cell, size: float) -> float:
    """Noise that depends on the cell alone."""
    return random.Random(cell.name).gauss(0.0, size)


def write_metrics(folder: Path, entries: Iterable[dict[str, float]]) -> None:
    """A run's record."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (folder / "metrics.jsonl").write_text(lines, "utf-8")


def stage1_record(steps: int, every: int = 50, noise: random.Random | None = None) -> list[dict[str, float]]:
    """delta, which rises and then falls slowly, kappa, which falls, and a loss that falls, through stage 1."""
    noise = noise or random.Random(0)
    scale = noise.gauss(1.0, 0.05)  # runs differ as a whole, and from one measurement to the next
    entries = []
    for step in range(0, steps + 1, every):
        delta = 0.4 + 6.0 * (step / 900) * math.exp(1 - step / 900) if step < 900 else 6.4 - 0.0006 * (step - 900)
        kappa = 3.0 + 9.0 * math.exp(-step / 600)
        if step:
            loss = 0.15 + 0.55 * math.exp(-step / 700) + noise.gauss(0, 0.01)
            entries.append({"stage": 1, "step": step, "nli": loss, "loss": loss})
        values = {"delta": scale * delta + noise.gauss(0, 0.06), "kappa": scale * kappa + noise.gauss(0, 0.05)}
        entries.append({"stage": 1, "step": step, **values})
    return entries
