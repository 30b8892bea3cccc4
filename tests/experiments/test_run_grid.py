"""Grids in worker processes: cells that fail, processes that die, a grid that is stopped and goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from grid_work import ABOUT, plan_of, quick_cell, task_folder

from diffaug.errors import DiffaugError
from diffaug.experiments import executor
from diffaug.experiments.data import TaskFiles
from diffaug.experiments.grid import SHARED, Grid, write_result
from diffaug.experiments.plan import Plan
from diffaug.experiments.results import Cell, Result
from diffaug.experiments.run import GridInterrupted, run_grid
from diffaug.training.loop import Loop


@pytest.fixture(autouse=True)
def _quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that inherit the imported libraries; `tests/cli/test_reproduce.py` starts one as they really start."""
    import diffaug.experiments.worker  # noqa: F401 - so that there is something to inherit

    monkeypatch.setattr(executor, "_PROCESSES", multiprocessing.get_context("fork"))


@pytest.fixture
def data(tmp_path: Path, data_files: dict[str, str]) -> Path:
    return task_folder(tmp_path / "data", data_files)


@pytest.fixture
def tasks(data: Path) -> TaskFiles:
    return TaskFiles((data,))


def begin(folder: Path, plan: Plan) -> Grid:
    return Grid.begin(folder, {"experiment": plan.spec.name}, ABOUT, plan.cells)


def names(cells: list[Cell]) -> list[str]:
    return sorted(cell.name for cell in cells)


def test_a_cell_that_fails_or_kills_its_process_does_not_stop_the_others(
    tiny_bert: Path, data: Path, tasks: TaskFiles, tmp_path: Path
) -> None:
    cells = [
        quick_cell("Killed", tiny_bert, data),
        quick_cell("Missing", tiny_bert, data, "data.nli=nowhere.csv"),
        quick_cell("Fine", tiny_bert, data, "stage2.learning_rate=0.001"),
        quick_cell("Fine", tiny_bert, data, setting=1),
    ]
    plan = plan_of(cells, (42, 43), "grid_work:kill_once")
    grid = begin(tmp_path / "grid", plan)
    failures = dict(run_grid(grid, plan, tasks, jobs=2, quiet=True))
    assert names(list(failures)) == names(cells[:2]), failures
    assert failures[cells[0]].startswith("the worker process was killed by SIGKILL")
    assert failures[cells[1]].startswith("there is no file nowhere.csv\n\nTraceback")
    assert grid.failures() == [(cell, failures[cell].rstrip() + "\n") for cell in cells[:2]]
    # Both settings of the third row were tried, and the better one went on with the other seed.
    (chosen,) = grid.chosen().values()
    scores = {cell: result.scores["STS-B dev"] for cell, result in grid.results()}
    assert scores[cells[2]] != scores[cells[3]]
    assert max(cells[2:], key=scores.__getitem__).setting == chosen
    assert [(cell.setting, cell.seed) for cell in grid.more] == [(chosen, 43)]
    assert len(scores) == 3

    when = {cell: (grid.folder_of(cell) / "result.json").stat().st_mtime_ns for cell in scores}
    again = begin(tmp_path / "grid", plan)
    assert [cell for cell, _ in run_grid(again, plan, tasks, quiet=True)] == [cells[1]]
    assert len(again.results()) == 5
    assert all((again.folder_of(cell) / "result.json").stat().st_mtime_ns == then for cell, then in when.items())


def test_a_stopped_grid_goes_on(tiny_bert: Path, data: Path, tasks: TaskFiles, tmp_path: Path) -> None:
    plan = plan_of(
        [quick_cell("First", tiny_bert, data), quick_cell("Second", tiny_bert, data)],
        (42, 43),
        "grid_work:stop_the_grid",
    )
    grid = begin(tmp_path / "grid", plan)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(GridInterrupted) as stopped:
        run_grid(grid, plan, tasks, quiet=True)
    assert stopped.value.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert grid.results() == grid.failures() == []
    trained = grid.folder_of(plan.cells[0]) / "summary.json"
    when = trained.stat().st_mtime_ns
    # Nothing is trained again, and what runs into an error costs its own process only.
    broken = plan_of([*plan.cells], (42, 43), "grid_work:break_down")
    assert run_grid(grid, broken, tasks, quiet=True, rows={"First"}) == []
    assert trained.stat().st_mtime_ns == when
    assert [cell.row for cell, _ in grid.results()] == ["First", "First"]


def test_a_cell_is_finished_though_its_process_died_right_after(
    tiny_bert: Path, data: Path, tasks: TaskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: Cell, folder: Path, *__: Any, **___: Any) -> None:
        write_result(folder, Result({"STS-B dev": 70.0, "average": 69.0}, 1.0, 0.5))
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("diffaug.experiments.worker.run_cell", die)
    plan = plan_of([quick_cell("First", tiny_bert, data)])
    grid = begin(tmp_path / "grid", plan)
    assert run_grid(grid, plan, tasks, quiet=True) == []
    assert [cell.seed for cell, _ in grid.results()] == [42, 43]
    assert grid.failures() == []


def test_a_cell_that_is_asked_to_stop_more_than_once_is_saved(
    tiny_bert: Path, data: Path, tasks: TaskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where all processes of a job are asked, and the main process then asks its workers as well."""
    step = Loop._step

    def asked(loop: Loop, *rest: Any) -> Any:
        if (loop.progress.stage, loop.progress.step) == (2, 1):
            os.kill(os.getppid(), signal.SIGTERM)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
        return step(loop, *rest)

    plan = plan_of([quick_cell("First", tiny_bert, data)], seeds=(42,))
    grid = begin(tmp_path / "grid", plan)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", asked)
        with pytest.raises(GridInterrupted):
            run_grid(grid, plan, tasks, quiet=True)
    assert grid.failures() == []
    (saved,) = (grid.folder_of(plan.cells[0]) / "checkpoints").iterdir()
    assert saved.name == "stage2-step0000002"
    assert run_grid(grid, plan, tasks, quiet=True) == []
    assert len(grid.results()) == 1


def test_cells_that_are_measured_have_a_process_of_their_own(
    tiny_bert: Path, data: Path, tasks: TaskFiles, tmp_path: Path
) -> None:
    cells = [quick_cell("Broken", tiny_bert, data), quick_cell("Fine", tiny_bert, data)]
    plan = plan_of(cells, (42,), "grid_work:break_down", "time-and-memory")
    grid = begin(tmp_path / "grid", plan)
    ((cell, failure),) = run_grid(grid, plan, tasks, jobs=3, quiet=True)
    assert cell == cells[0]
    assert failure.startswith("ZeroDivisionError: one by nothing\n\nTraceback")
    assert [cell for cell, _ in grid.results()] == [cells[1]]


@pytest.mark.parametrize("measured", [False, True], ids=["shared", "each its own where time is measured"])
def test_settings_of_a_row_and_rows_that_begin_the_same_train_stage_1_once(
    tiny_bert: Path, data: Path, tasks: TaskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: bool
) -> None:
    record, run_stage = tmp_path / "stages.txt", Loop._run_stage

    def recorded(loop: Loop, stage: Any, *rest: Any) -> None:
        with record.open("a", encoding="utf-8") as file:
            file.write(f"{loop.context.folder.name} {stage.number}\n")
        run_stage(loop, stage, *rest)

    monkeypatch.setattr(Loop, "_run_stage", recorded)
    cells = [
        quick_cell("First", tiny_bert, data),
        quick_cell("First", tiny_bert, data, "stage2.learning_rate=0.001", setting=1),
        quick_cell("Second", tiny_bert, data, "stage2.objective=nli_sentences"),
        quick_cell("Other", tiny_bert, data, "stage1.steps=3"),
    ]
    plan = plan_of(cells, (42,), *(["time-and-memory"] if measured else []))
    grid = begin(tmp_path / "grid", plan)
    assert run_grid(grid, plan, tasks, quiet=True) == []
    trained = record.read_text("utf-8").split("\n")[:-1]
    assert sorted(line for line in trained if line.endswith("2")) == sorted(f"{cell.name} 2" for cell in cells)
    own = cells if measured else [cells[0], cells[3]]
    assert sorted(line for line in trained if line.endswith("1")) == sorted(f"{cell.name} 1" for cell in own)
    # What it was decides nothing but the time: every cell says which steps its model has behind it.
    assert [result.steps for _, result in grid.results()] == [{"1": 3 if c is cells[3] else 2, "2": 4} for c in cells]
    assert not (grid.folder / SHARED).exists()


def test_what_would_fail_every_cell_fails_at_once(
    tiny_bert: Path, data: Path, tasks: TaskFiles, tmp_path: Path
) -> None:
    plan = plan_of([quick_cell("First", tiny_bert, data)])
    grid = begin(tmp_path / "grid", plan)
    (data / "STSB.test.tsv").write_text("1\ta\tb\n", "utf-8")
    with pytest.raises(DiffaugError, match=r"STSB\.test\.tsv: found 1 rows"):
        run_grid(grid, plan, tasks, quiet=True)
    with pytest.raises(DiffaugError, match="jobs must be at least 1"):
        run_grid(grid, plan, tasks, jobs=0)
    assert not (grid.folder / "cells").exists()
    assert json.loads((grid.folder / "grid.json").read_text("utf-8"))["more"] == []
