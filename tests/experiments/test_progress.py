"""What is shown while a grid runs: step and time left of every running cell."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from grid_work import ABOUT, finish, made_up_cell
from rich.console import Console

from diffaug.config import Recipe
from diffaug.experiments import run as running
from diffaug.experiments.grid import Grid
from diffaug.experiments.run import Display
from diffaug.experiments.schedule import Schedule
from diffaug.training import tracking
from diffaug.training.loop import Loop
from diffaug.training.run import train

CELLS = [made_up_cell("A"), made_up_cell("B")]


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    grid = Grid.begin(tmp_path / "grid", {"experiment": "made-up"}, ABOUT, CELLS)
    folder = grid.folder_of(CELLS[0])
    folder.mkdir(parents=True)
    values = {"stage": "stage 2", "step": 1200, "steps": 3000, "loss": 0.5, "seconds_left": 95.4}
    (folder / "progress.json").write_text(json.dumps(values), "utf-8")
    return grid


def shown(grid: Grid, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    output = io.StringIO()
    display = Display(grid, Schedule(grid, lambda cell: []))
    display.console = Console(file=output, force_terminal=terminal, width=120, color_system=None)
    display._live.console = display.console
    monkeypatch.setattr(running, "_LOG_EVERY", 0.0)
    with display:
        display.running(CELLS)
        display.running(CELLS)  # too soon to look again
        finish(grid, CELLS[1], 70.0)
        display.finished(CELLS[1], grid.results()[0][1])
    return output.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_running_cells_have_a_line_with_step_and_time_left(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    text = shown(grid, monkeypatch, terminal=terminal)
    line = "A  setting 0  draw 0  seed 42: stage 2, step 1,200 of 3,000, 0:01:35 left of the stage"
    assert line in text
    assert "B  setting 0  draw 0  seed 42: dev 70.00  average 69.00  (1 s)" in text
    if not terminal:
        assert text.splitlines() == [
            f"0/2  {line}",
            "0/2  B  setting 0  draw 0  seed 42",  # it has not begun to train
            "0/2  B  setting 0  draw 0  seed 42: dev 70.00  average 69.00  (1 s)",
        ]


def test_a_quiet_run_writes_its_progress_while_it_trains(
    make_recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    step = Loop._step

    def looking(loop: Loop, *rest: Any) -> Any:
        if (tmp_path / "run" / "progress.json").exists():
            seen.append(json.loads((tmp_path / "run" / "progress.json").read_text("utf-8")))
        return step(loop, *rest)

    monkeypatch.setattr(tracking, "_FILE_EVERY", 0.0)
    monkeypatch.setattr(Loop, "_step", looking)
    recipe: Recipe = make_recipe("sup")
    train(recipe, tmp_path / "run", quiet=True)
    assert [(found["stage"], found["step"], found["steps"]) for found in seen] == [
        (f"stage {stage}", step, 4) for stage in (1, 2) for step in (1, 2, 3)
    ]
    assert all(found["seconds_left"] >= 0 for found in seen)
    assert not (tmp_path / "run" / "progress.json").exists()
