"""A grid is continued with the data and models that its runs were made from."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from grid_work import ABOUT, plan_of, quick_cell, task_folder

from diffaug.errors import DiffaugError
from diffaug.experiments import executor
from diffaug.experiments.data import TaskFiles
from diffaug.experiments.grid import Grid
from diffaug.experiments.run import run_grid
from diffaug.experiments.summary import summarise
from diffaug.experiments.tables import render
from diffaug.provenance import PROVENANCE, RunProvenance


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_changed_data_is_refused_and_force_stands_below_the_tables(
    tiny_bert: Path,
    data_files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(executor, "_PROCESSES", multiprocessing.get_context("fork"))
    data = task_folder(tmp_path / "data", data_files)
    tasks = TaskFiles((data,))
    plan = plan_of([quick_cell("Mine", tiny_bert, data)])
    grid = Grid.begin(tmp_path / "grid", {"experiment": "made-up"}, ABOUT, plan.cells)
    assert run_grid(grid, plan, tasks, quiet=True) == []
    first, second = (grid.folder_of(cell) for cell in grid.cells)
    recorded = RunProvenance.load(first)
    assert recorded is not None
    assert set(recorded.data) == {"nli", "dev", "tasks"}

    # One run is finished, the other is not; then a task and the training data change.
    (second / "result.json").unlink()
    edit(data / "triplets.csv", "park", "rain")
    edit(data / "STSB.test.tsv", "park", "rain")
    grid = Grid.open(tmp_path / "grid")
    with pytest.raises(DiffaugError, match=r"inputs of .*grid have changed .*data\.nli \(triplets\.csv\) .*\(2 runs\)"):
        run_grid(grid, plan, tasks, quiet=True)
    assert not (second / "result.json").exists()
    assert run_grid(grid, plan, tasks, force=True, quiet=True) == []
    shown = render(summarise(Grid.open(grid.folder)), "markdown")
    assert "Continued by force although inputs had changed: data.nli (triplets.csv)" in shown

    # Runs of other versions stand below the tables, and runs of older versions are continued.
    result = json.loads((second / "result.json").read_text("utf-8"))
    result["machine"]["torch"] = "1.0"
    (second / "result.json").write_text(json.dumps(result), "utf-8")
    assert "The runs come from different versions: torch " in render(summarise(grid), "markdown")
    (second / "result.json").unlink()
    (first / PROVENANCE).unlink()
    (second / PROVENANCE).unlink()
    capfd.readouterr()
    assert run_grid(Grid.open(grid.folder), plan, tasks) == []
    assert "1 run without a record of their inputs" in capfd.readouterr().err
