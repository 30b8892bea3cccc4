"""One cell: a run, its scores, and what is left when it is cut off."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grid_work import quick_cell, task_folder
from scipy.stats import spearmanr

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.evaluation import evaluate
from diffaug.experiments import worker
from diffaug.experiments.data import StsTasks
from diffaug.experiments.results import Cell, Result
from diffaug.experiments.worker import run_cell
from diffaug.training.loop import Loop, TrainingInterrupted


@pytest.fixture
def data(tmp_path: Path, data_files: dict[str, str]) -> Path:
    return task_folder(tmp_path / "data", data_files)


@pytest.fixture
def cell(tiny_bert: Path, data: Path) -> Cell:
    return quick_cell("DiffAug", tiny_bert, data)


def test_scores_are_those_of_an_evaluation_and_pairs_are_kept(cell: Cell, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    result = run_cell(cell, folder, StsTasks.load(data))
    assert Result(**json.loads((folder / "result.json").read_text("utf-8"))) == result
    report = evaluate(folder / "best", data, "STS-B", resamples=0)
    assert result.scores["STS-B"] == result.scores["average"] == report.scores["STS-B"]
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert result.scores["STS-B dev"] == summary["scores"]["dev"]
    assert result.best_at == summary["best_at"]
    assert result.stage1_end == "after 2 steps: the number of steps asked for"
    assert result.steps == {"1": 2, "2": 4}
    assert result.seconds > 0
    assert result.gib > 0
    assert {"device", "torch", "transformers"} <= result.machine.keys()

    pairs = np.load(folder / "similarities.npz")
    assert set(pairs) == {"STS-B/cosine", "STS-B/gold"}
    rows = [line.split("\t") for line in (data / "STSB.test.tsv").read_text("utf-8").splitlines()]
    vectors = [Embedder.from_pretrained(folder / "best").encode([row[i] for row in rows]) for i in (1, 2)]
    np.testing.assert_allclose(pairs["STS-B/cosine"], (vectors[0] * vectors[1]).sum(1), atol=1e-5)
    np.testing.assert_array_equal(pairs["STS-B/gold"], [float(row[0]) for row in rows])
    again = 100 * spearmanr(pairs["STS-B/cosine"], pairs["STS-B/gold"]).statistic
    assert result.scores["STS-B"] == pytest.approx(again, abs=0.01)
    assert pairs["STS-B/cosine"].dtype == pairs["STS-B/gold"].dtype == np.float32


def test_an_interrupted_cell_goes_on_and_ends_the_same(
    cell: Cell, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = StsTasks.load(data)
    whole = run_cell(cell, tmp_path / "whole", tasks)
    step = Loop._step

    def stopped(loop: Loop, *rest: Any) -> Any:
        if loop.progress.stage == 2 and loop.progress.step == 1:
            loop._stop.signal = 15
        return step(loop, *rest)

    folder = tmp_path / "parts"
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", stopped)
        with pytest.raises(TrainingInterrupted):
            run_cell(cell, folder, tasks)
    assert not (folder / "result.json").exists()
    first = json.loads((folder / "spent.json").read_text("utf-8"))["seconds"]
    assert first > 0

    # It is killed again when it has been trained but not scored: nothing is trained twice.
    with monkeypatch.context() as patch:
        patch.setattr(StsTasks, "score", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            run_cell(cell, folder, tasks)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "train", None)
        parts = run_cell(cell, folder, tasks)
    assert parts.scores == whole.scores
    assert (parts.steps, parts.best_at) == (whole.steps, whole.best_at)
    assert parts.seconds > first


def test_a_failed_cell_can_be_tried_again(cell: Cell, tiny_bert: Path, data: Path, tmp_path: Path) -> None:
    tasks, folder = StsTasks.load(data), tmp_path / "cell"
    hidden = data / "triplets.csv"
    hidden.rename(data / "elsewhere.csv")
    with pytest.raises(DiffaugError, match="there is no file"):
        run_cell(cell, folder, tasks)
    folder.mkdir(exist_ok=True)
    (folder / "failure.txt").write_text("there is no file", "utf-8")
    (data / "elsewhere.csv").rename(hidden)
    assert run_cell(cell, folder, tasks, keep_model=False).scores["average"]
    assert not (folder / "failure.txt").exists()
    assert not (folder / "best").exists()


def test_a_process_that_ended_right_after_training_costs_nothing_but_a_number(
    cell: Cell, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed when the run was over, and what it took not yet written."""
    tasks, folder = StsTasks.load(data), tmp_path / "cell"
    with monkeypatch.context() as patch:
        patch.setattr(StsTasks, "score", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            run_cell(cell, folder, tasks)
    (folder / "spent.json").unlink()
    result = run_cell(cell, folder, tasks)
    assert result.seconds == json.loads((folder / "summary.json").read_text("utf-8"))["seconds"] > 0
    assert result.gib == 0


def test_a_model_that_was_being_removed_is_none(
    cell: Cell, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(path: Path) -> None:
        (path / "diffaug.safetensors").unlink()
        raise KeyboardInterrupt

    folder = tmp_path / "cell"
    with monkeypatch.context() as patch:
        patch.setattr(worker, "shutil", SimpleNamespace(rmtree=die))
        with pytest.raises(KeyboardInterrupt):
            run_cell(cell, folder, StsTasks.load(data), keep_model=False)
    assert (folder / "result.json").exists()
    assert not (folder / "best").exists()


def test_something_else_is_measured_before_a_cell_is_finished(cell: Cell, data: Path, tmp_path: Path) -> None:
    seen = []

    def record(run: Path) -> None:
        seen.append(sorted(path.name for path in run.iterdir()))

    run_cell(cell, tmp_path / "cell", StsTasks.load(data), measures=[record])
    assert "summary.json" in seen[0]
    assert "result.json" not in seen[0]


def test_untrained_models_and_cells_without_dev_pairs(tiny_bert: Path, data: Path, tmp_path: Path) -> None:
    tasks = StsTasks.load(data)
    plain = Cell("Mean", "", "untrained-mean", (f"model.backbone={tiny_bert}", f"data.dev={data / 'STSB.dev.tsv'}"))
    assert run_cell(plain, tmp_path / "plain", tasks).steps == {}
    blind = Cell("Mean", "", "untrained-mean", (f"model.backbone={tiny_bert}",))
    with pytest.raises(DiffaugError, match=r"data\.dev"):
        run_cell(blind, tmp_path / "blind", tasks)


def test_a_folder_without_tasks_and_a_model_without_opinions(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DiffaugError, match="no task to score models on"):
        StsTasks.load(tmp_path / "empty")

    class Same(Embedder):
        def __init__(self) -> None:
            pass

        def fingerprint(self) -> str:
            return ""

        def encode(self, sentences: Any, *_: Any, **__: Any) -> Any:
            return np.ones((len(sentences), 3), np.float32)

    with pytest.raises(DiffaugError, match="STS-B has no score"):
        StsTasks.load(data).score(Same())
