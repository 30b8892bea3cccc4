"""What a grid would run, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from grid_work import ABOUT, finish
from made_grids import make_cell

from diffaug.experiments.grid import Grid
from diffaug.experiments.results import Cell
from diffaug.experiments.schedule import listing

SIMCSE = [make_cell("SimCSE, sup", "2,756", setting=setting) for setting in (0, 1)]
DIFFAUG = [make_cell("DiffAug, sup", recipe="diffaug-sup", setting=setting) for setting in (0, 1)]


def more(cell: Cell) -> list[Cell]:
    """Two seeds; for the one with few labels, two draws as well."""
    every = [(draw, seed) for draw in ((0, 1) if cell.column else (0,)) for seed in (1, 2)]
    return [replace(cell, seed=seed, draw=draw) for draw, seed in every if (draw, seed) != (0, 1)]


def begin(folder: Path) -> Grid:
    return Grid.begin(folder, {"experiment": "made-up"}, ABOUT, [*SIMCSE, *DIFFAUG])


def test_before_anything_has_run(tmp_path: Path) -> None:
    assert list(listing(begin(tmp_path / "grid"), more)) == [
        "SimCSE, sup  2,756  (simcse-sup)",
        "  setting 0  draw 0  seed 1  to do     stage2.learning_rate=1e-5",
        "  setting 1  draw 0  seed 1  to do     stage2.learning_rate=2e-5",
        "  then the best setting 3 more times, with other seeds and draws",
        "DiffAug, sup  (diffaug-sup)",
        "  setting 0  draw 0  seed 1  to do     stage2.learning_rate=1e-5",
        "  setting 1  draw 0  seed 1  to do     stage2.learning_rate=2e-5",
        "  then the best setting 1 more time, with other seeds",
        "",
        "8 runs: 4 to try every setting once, 4 to repeat the best with other seeds or draws.",
        "0 finished, 0 failed, 8 to do.",
    ]


def test_of_a_grid_that_is_under_way(tmp_path: Path) -> None:
    grid = begin(tmp_path / "grid")
    finish(grid, SIMCSE[0], 70.0)
    for cell, dev in zip(DIFFAUG, (70.0, 71.0), strict=True):
        finish(grid, cell, dev)
    grid.fail(SIMCSE[1], "no memory")
    grid.add(more(DIFFAUG[1]))
    lines = list(listing(grid, more))
    assert lines[5:9] == [
        "  setting 0  draw 0  seed 1  finished  stage2.learning_rate=1e-5",
        "  setting 1  draw 0  seed 1  finished  stage2.learning_rate=2e-5",
        "  setting 1  draw 0  seed 2  to do",
        "",
    ]
    assert lines[2] == "  setting 1  draw 0  seed 1  failed    stage2.learning_rate=2e-5"
    assert lines[-2:] == [
        "8 runs: 4 to try every setting once, 4 to repeat the best with other seeds or draws.",
        "3 finished, 1 failed, 4 to do.",
    ]


def test_of_some_rows(tmp_path: Path) -> None:
    lines = list(listing(begin(tmp_path / "grid"), more, {"DiffAug, sup"}))
    assert lines[0] == "DiffAug, sup  (diffaug-sup)"
    assert lines[-1] == "0 finished, 0 failed, 3 to do."


def test_of_a_row_that_is_not_tuned(tmp_path: Path) -> None:
    grid = Grid.begin(tmp_path / "grid", {"experiment": "made-up"}, ABOUT, DIFFAUG[:1])
    assert list(listing(grid, more))[1:3] == [
        "  setting 0  draw 0  seed 1  to do",
        "  then 1 more time, with other seeds",
    ]
