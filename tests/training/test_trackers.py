"""What trackers get: the numbers of metrics.jsonl, with steps that never go back; and what is said of a missing one."""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from diffaug.config import Recipe
from diffaug.errors import DiffaugError
from diffaug.training import trackers
from diffaug.training.run import train
from diffaug.training.trackers import check_trackers, flat
from diffaug.training.tracking import Tracker


def metrics(folder: Path, name: str) -> list[tuple[int, int, float]]:
    """Stage, step and value of everything of that name in the run's own record."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [(line["stage"], line["step"], round(line[name], 4)) for line in lines if name in line]


def test_tensorboard_gets_the_same_numbers(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(make_recipe("sup", loop={"trackers": ["tensorboard"]}), tmp_path / "run", quiet=True)
    (events,) = {path.parent for path in (tmp_path / "run").rglob("events.out.tfevents*")}
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    for name in ("dev", "loss", "alignment"):
        for stage in (1, 2):
            expected = [(step, value) for s, step, value in metrics(tmp_path / "run", name) if s == stage]
            if not expected:
                continue
            found = [(e.step, round(e.value, 4)) for e in accumulator.Scalars(f"stage{stage}/{name}")]
            # Stage 1 took four steps, and stage 2 goes on counting.
            assert found == [
                (step + (4 if stage == 2 else 0), pytest.approx(value, abs=1e-3)) for step, value in expected
            ]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_others(
    name: str, make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the package is installed, a run into local files; elsewhere, the error that says what to install."""
    recipe = make_recipe("sup", loop={"trackers": [name]})
    if find_spec(name) is None:
        with pytest.raises(DiffaugError, match=rf"{name} is not installed: pip install 'diffaug\[{name}\]'"):
            train(recipe, tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()
        return
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    train(recipe, tmp_path / "run", quiet=True)
    if name == "wandb":
        (record,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
        assert record.stat().st_size > 0
    else:
        import mlflow

        (run,) = mlflow.search_runs(experiment_names=["diffaug"], output_format="list")
        assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
        assert run.data.params["stage1.steps"] == "4"
        found = mlflow.MlflowClient().get_metric_history(run.info.run_id, "stage2/dev")
        assert [(m.step - 4, round(m.value, 4)) for m in found] == [m[1:] for m in metrics(tmp_path / "run", "dev")]


def test_unknown_and_missing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DiffaugError, match="no tracker 'tensorbord'; there are tensorboard, wandb, mlflow"):
        check_trackers(["tensorbord"])
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(DiffaugError, match=r"tensorboard is not installed: pip install 'diffaug\[tensorboard\]'"):
        check_trackers(["tensorboard"])


def test_one_that_does_not_start_is_one_sentence(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.tracking import TensorBoardTracker

    def fail(self: Any, *args: Any, **options: Any) -> None:
        raise RuntimeError("nobody\nis logged in")

    # Older versions of accelerate start a tracker as they make it.
    monkeypatch.setattr(TensorBoardTracker, "start" if hasattr(TensorBoardTracker, "start") else "__init__", fail)
    with pytest.raises(DiffaugError, match=r"tensorboard did not start \(nobody is logged in\)"):
        train(make_recipe("sup", loop={"trackers": ["tensorboard"]}), tmp_path / "run", quiet=True)


def test_a_tracker_is_finished_however_the_run_ends(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.tracking import TensorBoardTracker

    finished = []
    real = TensorBoardTracker.finish
    monkeypatch.setattr(TensorBoardTracker, "finish", lambda self: (finished.append(self), real(self)))
    options = {"stage2": {"learning_rate": 1e30, "steps": 20}, "loop": {"trackers": ["tensorboard"], "clip": None}}
    with pytest.raises(DiffaugError):
        train(make_recipe("sup", **options), tmp_path / "run", quiet=True)
    assert len(finished) == 1


class Recorder:
    """As much of an accelerator as `Tracker` uses."""

    is_main_process = True
    trackers = (types.SimpleNamespace(),)

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.steps += [(name, step) for name in values]


def test_steps_never_go_back_not_even_in_a_resumed_run(tmp_path: Path) -> None:
    first = Recorder()
    tracker = Tracker(tmp_path / "metrics.jsonl", first, quiet=True)  # type: ignore[arg-type]
    for stage, step in ((1, 0), (1, 5), (1, 7), (2, 0), (2, 2)):
        tracker.log(stage, step, {"loss": 1.0, "words": "no number"})
    assert first.steps == [
        ("stage1/loss", 0),
        ("stage1/loss", 5),
        ("stage1/loss", 7),
        ("stage2/loss", 7),
        ("stage2/loss", 9),
    ]
    length = tracker.tell()
    tracker.log(2, 4, {"loss": 1.0})
    second = Recorder()
    resumed = Tracker(tmp_path / "metrics.jsonl", second, quiet=True)  # type: ignore[arg-type]
    resumed.rewind(length)
    resumed.log(2, 3, {"loss": 1.0})
    assert second.steps == [("stage2/loss", 10)]


def test_what_a_checkpoint_counts_on_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Tracker(tmp_path / "metrics.jsonl", Recorder(), quiet=True)  # type: ignore[arg-type]
    assert tracker.tell() == 0
    tracker.log(1, 0, {"loss": 1.0})
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_size))
    length = tracker.tell()
    assert flushed == [length]
    assert length > 0


def test_settings_are_flat(make_recipe: Callable[..., Recipe]) -> None:
    settings = flat(make_recipe("sup").to_dict())
    assert settings["stage1.steps"] == 4
    assert settings["loop.trackers"] == "[]"
    assert all(isinstance(value, (bool, int, float, str)) for value in settings.values())
