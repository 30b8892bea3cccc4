"""Runs of another grid that are taken over."""

from __future__ import annotations

import multiprocessing
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grid_work import ABOUT, finish, plan_of, quick_cell, task_folder
from safetensors.torch import load_file, save_file

from diffaug.config import Recipe, load_recipe
from diffaug.errors import DiffaugError
from diffaug.experiments import executor, worker
from diffaug.experiments.data import TaskFiles
from diffaug.experiments.grid import Grid
from diffaug.experiments.inputs import CurrentInputs
from diffaug.experiments.plan import Plan
from diffaug.experiments.results import Cell
from diffaug.experiments.reuse import Reuse
from diffaug.experiments.run import run_grid
from diffaug.experiments.schedule import Schedule, listing


@pytest.fixture
def data(tmp_path: Path, data_files: dict[str, str]) -> Path:
    return task_folder(tmp_path / "data", data_files)


def begin(folder: Path, plan: Plan) -> Grid:
    return Grid.begin(folder, {"experiment": plan.spec.name}, ABOUT, plan.cells)


def gold_of(data: Path) -> list[float]:
    return [float(line.split("\t")[0]) for line in (data / "STSB.test.tsv").read_text("utf-8").splitlines()]


def leave(grid: Grid, cell: Cell, dev: float, gold: Sequence[float], task: str = "STS-B") -> Path:
    """The folder of a cell that has finished."""
    finish(grid, cell, dev)
    folder = grid.folder_of(cell)
    recipe = load_recipe(cell.recipe, cell.changes)
    (folder / "recipe.yaml").write_text(recipe.to_yaml(), "utf-8")
    CurrentInputs().of(recipe).save(folder)
    for name in ("metrics.jsonl", "summary.json", "best/model.safetensors", ".left-over"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{cell.name}: {name}", "utf-8")
    arrays: dict[str, Any] = {f"{task}/cosine": np.zeros(len(gold), np.float32), f"{task}/gold": np.float32(gold)}
    np.savez(folder / "similarities.npz", **arrays)
    return folder


class Source:
    """A grid with a row of two settings and two seeds; the second setting is the better one."""

    def __init__(self, folder: Path, backbone: Path, data: Path) -> None:
        self.cells = [
            quick_cell("Source", backbone, data, f"stage2.learning_rate={rate}", setting=setting)
            for setting, rate in enumerate(("1e-4", "2e-4"))
        ]
        self.plan = plan_of(self.cells)
        self.grid = begin(folder, self.plan)
        self.second = self.plan.more(self.cells[1])
        self.grid.add(self.second)
        for cell, dev in zip([*self.cells, *self.second], (60.0, 70.0, 71.0), strict=True):
            leave(self.grid, cell, dev, gold_of(data))


@pytest.fixture
def source(tmp_path: Path, tiny_bert: Path, data: Path) -> Source:
    return Source(tmp_path / "source", tiny_bert, data)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def schedule_of(grid: Grid, plan: Plan, reuse: Reuse, **others: Any) -> tuple[Schedule, list[Cell]]:
    """What is left to run when the rest has been taken over."""
    schedule = Schedule(grid, plan.more, take_over=lambda cell: reuse.take_over(cell, grid.folder_of(cell), **others))
    left = []
    while (cell := schedule.next()) is not None:
        left.append(cell)
    return schedule, left


def test_both_rounds_are_taken_over_and_what_differs_is_run(
    source: Source, tiny_bert: Path, data: Path, tmp_path: Path
) -> None:
    same = [replace(cell, row="Mine", column="100 %") for cell in source.cells]
    other = quick_cell("Mine", tiny_bert, data, "stage2.learning_rate=3e-4")
    plan = plan_of([*same, other], seeds=(42, 43, 44))
    grid = begin(tmp_path / "grid", plan)
    # What a failed attempt left goes.
    grid.fail(same[1], "no memory")
    (grid.folder_of(same[1]) / "checkpoints").mkdir()
    before = contents(source.grid.folder)

    reuse = Reuse([source.grid.folder], plan, grid.folder, TaskFiles((data,)))
    schedule, left = schedule_of(grid, plan, reuse)
    second = {cell.seed: cell for cell in grid.more}
    assert {(cell.setting, cell.seed) for cell in grid.more} == {(1, 43), (1, 44)}
    assert left == [other, second[44]]
    assert (schedule.finished, schedule.total) == (3, 7)
    assert grid.failures() == []
    for cell, origin in zip([*same, second[43]], [*source.cells, *source.second], strict=True):
        run = source.grid.folder_of(origin)
        theirs, ours = contents(run), contents(grid.folder_of(cell))
        assert ours.pop("taken-over.txt").decode() == f"{run}\n"
        assert ours == {name: text for name, text in theirs.items() if name != ".left-over"}
    assert sorted(path.name for path in (grid.folder / "cells").iterdir()) == sorted(
        cell.name for cell in (*same, second[43])
    )
    assert contents(source.grid.folder) == before
    assert reuse.news() == [f"3 runs copied from {source.grid.folder}"]
    assert reuse.news() == []
    # The grid goes on without the other one as well as with it.
    shutil.rmtree(source.grid.folder)
    assert Schedule(begin(tmp_path / "grid", plan), plan.more).finished == 3


def test_nothing_that_is_not_finished_and_no_models_unless_they_are_kept(
    source: Source, data: Path, tmp_path: Path
) -> None:
    (source.grid.folder_of(source.cells[0]) / "result.json").unlink()
    shutil.rmtree(source.grid.folder_of(source.second[0]) / "best")
    grid = begin(tmp_path / "grid", source.plan)
    _, left = schedule_of(grid, source.plan, Reuse([source.grid.folder], source.plan, grid.folder, TaskFiles((data,))))
    assert left == source.cells[:1]
    assert (grid.folder_of(source.cells[1]) / "best" / "model.safetensors").is_file()

    slim = begin(tmp_path / "slim", source.plan)
    # The first of several grids that has a cell gives it.
    sources = Reuse([grid.folder, source.grid.folder], source.plan, slim.folder, TaskFiles((data,)))
    schedule_of(slim, source.plan, sources, keep_model=False)
    assert sources.news() == [f"1 run copied from {grid.folder}"]
    where = (slim.folder_of(source.cells[1]) / "taken-over.txt").read_text("utf-8")
    assert where == f"{source.grid.folder_of(source.cells[1])}\n"
    assert "best" not in {path.name for path in slim.folder_of(source.cells[1]).iterdir()}


@pytest.mark.parametrize(
    "change",
    [
        "seed=7",
        "data.label_draw=1",
        "data.labels=0.5",
        "loop.eval_every=1",
        "views.length=4",
        "model.backbone=another",
        "data.dev=sample:dev",
    ],
)
def test_whatever_decides_the_result_must_be_the_same(change: str, source: Source, data: Path, tmp_path: Path) -> None:
    reuse = Reuse([source.grid.folder], source.plan, tmp_path / "grid", TaskFiles((data,)))
    first = source.cells[0]
    assert reuse.source(first) == source.grid.folder
    assert reuse.source(replace(first, changes=(*first.changes, change))) is None


def test_a_run_that_is_gone_by_now_is_trained(source: Source, data: Path, tmp_path: Path) -> None:
    reuse = Reuse([source.grid.folder], source.plan, tmp_path / "grid", TaskFiles((data,)))
    (source.grid.folder_of(source.cells[0]) / "result.json").unlink()
    shutil.rmtree(source.grid.folder_of(source.cells[1]))
    assert [reuse.source(cell) for cell in source.cells] == [None, None]


def test_what_decides_nothing_may_differ(
    source: Source, tiny_bert: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reuse = Reuse([source.grid.folder], source.plan, tmp_path / "grid", TaskFiles((data,)))
    first = source.cells[0]
    monkeypatch.chdir(tiny_bert)
    own = tmp_path / "grid" / "data" / "STSB.dev.tsv"
    own.parent.mkdir(parents=True)
    shutil.copy(data / "STSB.dev.tsv", own)
    changes = ("name=mine", "loop.save_minutes=1", "loop.trackers=[wandb]", "model.backbone=.", f"data.dev={own}")
    other = replace(first, changes=(*first.changes, *changes))
    assert reuse.source(other) == source.grid.folder
    own.write_text(own.read_text("utf-8") + "1\ta\tb\n", "utf-8")
    fresh = Reuse([source.grid.folder], source.plan, tmp_path / "grid", TaskFiles((data,)))
    assert fresh.source(other) is None


def swap_labels(data: Path, _: Path) -> None:
    text = (data / "triplets.csv").read_text("utf-8")
    (data / "triplets.csv").write_text(text.replace("sent1,hard_neg", "hard_neg,sent1"), "utf-8")


def swap_weights(_: Path, backbone: Path) -> None:
    weights = load_file(backbone / "model.safetensors")
    first = next(iter(weights))
    save_file({**weights, first: weights[first] + 1}, backbone / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [(swap_labels, r"data\.nli \(triplets\.csv\) was"), (swap_weights, "backbone was"), (None, "without a record")],
)
def test_inputs_that_were_exchanged_after_a_run_are_named(
    change: Callable[[Path, Path], None] | None, reason: str, tiny_bert: Path, data: Path, tmp_path: Path
) -> None:
    """The paths are those of the run; the content is not."""
    backbone = shutil.copytree(tiny_bert, tmp_path / "backbone")
    source = Source(tmp_path / "source", backbone, data)
    if change is None:
        (source.grid.folder_of(source.cells[0]) / "provenance.json").unlink()
        (source.grid.folder_of(source.cells[1]) / "provenance.json").unlink()
    else:
        change(data, backbone)
    grid = begin(tmp_path / "grid", source.plan)
    reuse = Reuse([source.grid.folder], source.plan, grid.folder, TaskFiles((data,)))
    _, left = schedule_of(grid, source.plan, reuse)
    assert left == source.cells
    (line,) = reuse.news()
    assert re.match(rf"2 runs not copied from {source.grid.folder} \({reason}", line)

    forced = Reuse([source.grid.folder], source.plan, grid.folder, TaskFiles((data,)), force=True)
    _, left = schedule_of(grid, source.plan, forced)
    assert left == []
    (note,) = forced.forced
    assert re.match(rf"Copied by force from {source.grid.folder}: {reason}", note)


def test_joined_files_count_by_their_content(source: Source, data: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
        for name in ("a.txt", "b.txt"):
            (folder / name).write_text(f"A sentence of {name}.\n", "utf-8")
    here, there = (f"data.unlabelled=[{folder / 'a.txt'}, {folder / 'b.txt'}]" for folder in folders)
    first = replace(source.cells[0], changes=(*source.cells[0].changes, here))
    leave(source.grid, first, 60.0, gold_of(data))
    reuse = Reuse([source.grid.folder], source.plan, tmp_path / "grid", TaskFiles((data,)))
    moved = replace(first, changes=(*first.changes, there))
    assert reuse.source(moved) == source.grid.folder
    turned = f"data.unlabelled=[{folders[0] / 'b.txt'}, {folders[0] / 'a.txt'}]"
    assert reuse.source(replace(first, changes=(*first.changes, turned))) is None


def test_what_a_run_was_made_with_counts_not_what_its_recipe_is_today(
    source: Source, data: Path, tmp_path: Path
) -> None:
    first, second = source.cells
    of_run = source.grid.folder_of(first) / "recipe.yaml"
    of_run.write_text(of_run.read_text("utf-8").replace("temperature: 0.05", "temperature: 0.06"), "utf-8")
    (source.grid.folder_of(second) / "recipe.yaml").write_text("of: another version", "utf-8")
    reuse = Reuse([source.grid.folder], source.plan, tmp_path / "grid", TaskFiles((data,)))
    assert reuse.source(first) is None
    assert reuse.source(second) is None
    assert reuse.source(replace(first, changes=(*first.changes, "stage2.temperature=0.06"))) == source.grid.folder


def test_runs_that_were_scored_on_other_pairs_are_not_taken_over(source: Source, data: Path, tmp_path: Path) -> None:
    gold = gold_of(data)
    leave(source.grid, source.cells[0], 60.0, gold, "STS12")
    leave(source.grid, source.cells[1], 70.0, [*gold[:-1], gold[-1] + 1])
    (source.grid.folder_of(source.second[0]) / "similarities.npz").write_bytes(b"PK\x03\x04 half a file")
    reuse = Reuse([source.grid.folder], source.plan, tmp_path / "grid", TaskFiles((data,)))
    assert [reuse.source(cell) for cell in source.grid.cells] == [None, None, None]
    # Another grid may have the run with the right pairs.
    right = begin(tmp_path / "right", source.plan)
    leave(right, source.cells[0], 60.0, gold)
    reuse = Reuse([source.grid.folder, right.folder], source.plan, tmp_path / "grid", TaskFiles((data,)))
    assert [reuse.source(cell) for cell in source.cells] == [right.folder, None]


def test_folders_and_experiments_that_do_not_fit(source: Source, data: Path, tmp_path: Path) -> None:
    folder, plan = source.grid.folder, source.plan
    with pytest.raises(DiffaugError, match="is the grid itself"):
        Reuse([folder / ".." / folder.name], plan, folder, TaskFiles((data,)))
    with pytest.raises(DiffaugError, match="nowhere holds no grid"):
        Reuse([folder, tmp_path / "nowhere"], plan, tmp_path / "grid", TaskFiles((data,)))
    for measure in ("time-and-memory", "dropout-divergence"):
        with pytest.raises(DiffaugError, match="made-up measures more than scores"):
            Reuse([folder], plan_of(plan.cells, (42, 43), measure), tmp_path / "grid", data)


def test_the_listing_counts_them(source: Source, data: Path, tmp_path: Path) -> None:
    grid = begin(tmp_path / "grid", source.plan)
    reuse = Reuse([source.grid.folder], source.plan, grid.folder, TaskFiles((data,)))
    lines = list(listing(grid, source.plan.more, reuse=reuse))
    assert lines[-2:] == ["0 finished, 0 failed, 3 to do.", f"At least 2 of them copied from {source.grid.folder}."]
    assert not (grid.folder / "cells").exists()
    for cell in source.cells:
        leave(grid, cell, 60.0 + cell.setting, gold_of(data))
    lines = list(listing(grid, source.plan.more, reuse=reuse))
    assert lines[-2:] == ["2 finished, 0 failed, 1 to do.", f"1 of them copied from {source.grid.folder}."]
    untuned = plan_of(source.cells[1:])
    lines = list(listing(begin(tmp_path / "untuned", untuned), untuned.more, reuse=reuse))
    assert lines[-1] == f"2 of them copied from {source.grid.folder}."


def test_a_grid_that_runs(
    tiny_bert: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Children that inherit the imported libraries, and what is replaced below.
    monkeypatch.setattr(executor, "_PROCESSES", multiprocessing.get_context("fork"))
    theirs = plan_of([quick_cell("Theirs", tiny_bert, data)])
    source = begin(tmp_path / "source", theirs)
    assert run_grid(source, theirs, TaskFiles((data,)), quiet=True) == []

    trained = tmp_path / "trained.txt"
    train = worker.train

    def noted(recipe: Recipe, *rest: Any, **others: Any) -> Any:
        with trained.open("a") as file:
            print(recipe.views.length, recipe.seed, file=file)
        return train(recipe, *rest, **others)

    monkeypatch.setattr(worker, "train", noted)
    mine = plan_of([quick_cell("Mine", tiny_bert, data), quick_cell("New", tiny_bert, data, "views.length=2")])
    grid = begin(tmp_path / "grid", mine)
    for _ in range(2):  # the second time nothing is left to do
        reuse = Reuse([source.folder], mine, grid.folder, TaskFiles((data,)))
        assert run_grid(grid, mine, TaskFiles((data,)), reuse=reuse) == []
        assert trained.read_text("utf-8") == "2 42\n2 43\n"
    assert f"2 runs copied from {source.folder}\n" in capfd.readouterr().err.replace("\r", "")
    results = {(cell.row, cell.seed): result for cell, result in grid.results()}
    assert [results["Mine", seed] for seed in (42, 43)] == [result for _, result in source.results()]
    assert len(results) == 4
