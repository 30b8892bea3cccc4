"""Runs that begin the same: the first trains stage 1 for all, the others take it over, and no bit of theirs tells."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from test_run_cache import assert_same

from diffaug.config import Recipe, load_recipe
from diffaug.training.checkpoint import checkpoints
from diffaug.training.loop import Loop, TrainingInterrupted
from diffaug.training.precision import Precision
from diffaug.training.run import train
from diffaug.training.run_cache import RunCache


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The stages that are trained, as it happens."""
    found: list[int] = []
    run_stage = Loop._run_stage

    def counted(loop: Loop, stage: Any, *rest: Any) -> None:
        found.append(stage.number)
        run_stage(loop, stage, *rest)

    monkeypatch.setattr(Loop, "_run_stage", counted)
    return found


@pytest.fixture(scope="module")
def brief(make_recipe: Callable[..., Recipe]) -> Callable[..., Recipe]:
    """A recipe with one evaluation a stage, so that the best model is the last; keywords are changes of it."""

    def make(setting: str, **groups: dict[str, Any]) -> Recipe:
        groups["data"] = {"test": None, **groups.get("data", {})}
        groups["loop"] = {"eval_every": 4, **groups.get("loop", {})}
        return make_recipe(setting, **groups)

    return make


@pytest.fixture(scope="module")
def begun(brief: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, `first`, and with the stage 1 that it left for others, `shared`; not to be changed."""
    folder = tmp_path_factory.mktemp("begun")
    train(brief("semi"), folder / "first", quiet=True, cache=RunCache(folder / "shared"))
    return folder


def left(shared: Path) -> list[Path]:
    return sorted(shared.glob("stage1-*"))


def assert_takes_over(shared: Path, second: Recipe, folder: Path, trained: list[int]) -> None:
    """The second run trains no stage 1 of its own, and is the same as one that does."""
    assert len(left(shared)) == 1
    trained.clear()
    train(second, folder / "second", quiet=True, cache=RunCache(shared))
    assert trained == [2]
    train(second, folder / "alone", quiet=True)
    assert trained == [2, 1, 2]
    assert_same(folder / "second", folder / "alone")
    ends = [json.loads((folder / run / "summary.json").read_text("utf-8")) for run in ("second", "alone")]
    assert ends[0]["stage1_end"] == ends[1]["stage1_end"] is not None
    assert ends[0]["best_at"] == ends[1]["best_at"]


@pytest.mark.parametrize(
    ("setting", "groups"),
    [
        ("semi-aux", {}),
        ("sup", {"loop": {"patience": 3}}),
        ("semi", {"stage2": {"learning_rate": 3e-3, "steps": 8, "batch_size": 4, "weight_decay": 0.1}}),
        ("semi", {"stage2": {"frozen": ["views"], "gradient_cache": 4, "dropout": False}}),
    ],
    ids=["auxiliary loss", "supervised", "other rate and steps", "frozen views in chunks"],
)
def test_settings_that_differ_in_stage_2_share_stage_1(
    brief: Callable[..., Recipe], begun: Path, trained: list[int], tmp_path: Path, setting: str, groups: dict[str, Any]
) -> None:
    assert_takes_over(begun / "shared", brief(setting, **groups), tmp_path, trained)


@pytest.mark.parametrize(
    ("first", "second"),
    [("simcse-sup-unsup", "simcse-sup-joint"), ("sbert-flow-nli", "sbert-flow-target")],
)
def test_other_methods_share_it_where_the_backbone_learns(
    tiny_bert: Path,
    data_files: dict[str, str],
    labelled_pairs: str,
    trained: list[int],
    tmp_path: Path,
    first: str,
    second: str,
) -> None:
    def brief(name: str) -> Recipe:
        files = {**data_files, "nli": labelled_pairs}
        changes = [f"model.backbone={tiny_bert}", "data.max_length=16", "loop.eval_every=3"]
        changes += [f"data.{name}={path}" for name, path in files.items()]
        changes += [f"{stage}.{change}" for stage in ("stage1", "stage2") for change in ("steps=3", "batch_size=8")]
        return load_recipe(name, changes)

    train(brief(first), tmp_path / "first", quiet=True, cache=RunCache(tmp_path / "shared"))
    assert trained == [1, 2]
    assert_takes_over(tmp_path / "shared", brief(second), tmp_path, trained)


def test_the_end_that_the_curves_decide_is_taken_over_too(
    brief: Callable[..., Recipe], trained: list[int], tmp_path: Path
) -> None:
    first, second = (
        brief(setting, stage1={"steps": "auto", "max_steps": 80}, loop={"eval_every": 1}, stage2={"steps": 2})
        for setting in ("semi", "sup")
    )
    train(first, tmp_path / "first", quiet=True, cache=RunCache(tmp_path / "shared"))
    assert_takes_over(tmp_path / "shared", second, tmp_path, trained)
    assert "delta, now" in json.loads((tmp_path / "second" / "summary.json").read_text())["stage1_end"]


class Found(Exception):  # noqa: N818 - not an error
    """Ends a run before its first step, with the file of its first stage."""


@pytest.fixture
def stage_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path | None]:
    """The file of a run's first stage, or None if it has to train its own; nothing is trained."""
    first_stage = RunCache.first_stage

    def find(cache: RunCache, *run: Any) -> None:
        cached = first_stage(cache, *run)
        raise Found(cached and cached._path)

    monkeypatch.setattr(RunCache, "first_stage", find)

    def stage(recipe: Recipe, shared: Path | None, **data: Any) -> Path | None:
        with pytest.raises(Found) as found:
            train(recipe, tmp_path / "run", quiet=True, cache=RunCache(shared), **data)
        shutil.rmtree(tmp_path / "run")
        return found.value.args[0]

    return stage


def test_whatever_decides_stage_1_keeps_runs_apart(
    brief: Callable[..., Recipe],
    data_files: dict[str, str],
    tiny_roberta: Path,
    stage_of: Callable[..., Path | None],
    tmp_path: Path,
) -> None:
    own = tmp_path / "triplets.csv"
    shutil.copy(data_files["nli"], own)
    data = {"nli": str(own), "labels": 0.5}
    schedule = {"stage1_schedule_of_stage2": True}
    recipes = {
        "first": brief("semi", data=data),
        "stage 1's rate": brief("semi", data=data, stage1={"learning_rate": 2e-2}),
        "stage 1's steps": brief("semi", data=data, stage1={"steps": 3}),
        "number of labels": brief("semi", data={**data, "labels": 0.25}),
        "draw of labels": brief("semi", data={**data, "label_draw": 1}),
        "length of the prefix": brief("semi", data=data, views={"length": 4}),
        "evaluations": brief("semi", data=data, loop={"eval_every": 2}),
        "a schedule that stage 2 decides": brief("semi", data=data, released=schedule, stage2={"steps": 6}),
        "the same, another stage 2": brief("semi", data=data, released=schedule, stage2={"steps": 7}),
        "other backbone": brief("semi", data=data, model={"backbone": str(tiny_roberta), "template": "{} [MASK]"}),
        "seed": replace(brief("semi", data=data), seed=43),
    }
    stages = {what: stage_of(recipe, tmp_path) for what, recipe in recipes.items()}
    assert None not in stages.values()
    assert len(set(stages.values())) == len(stages), stages
    assert stage_of(brief("sup", data=data), tmp_path) == stages["first"]  # not vacuous
    os.utime(own, ns=(1, 1))
    assert stage_of(recipes["first"], tmp_path) not in stages.values()


def test_a_model_that_begins_with_other_weights_trains_its_own(
    brief: Callable[..., Recipe], begun: Path, trained: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would be if stage 2 asked for a module that takes random numbers away from the prefixes."""
    from diffaug.methods.diffaug import DiffAug

    shared = shutil.copytree(begun / "shared", tmp_path / "shared")
    build_views = DiffAug.build_views

    def disturbed(*arguments: Any) -> Any:
        import torch

        torch.rand(1)
        return build_views(*arguments)

    monkeypatch.setattr(DiffAug, "build_views", disturbed)
    trained.clear()
    train(brief("semi"), tmp_path / "second", quiet=True, cache=RunCache(shared))
    assert trained == [1, 2]


def test_runs_that_share_nothing(
    brief: Callable[..., Recipe], stage_of: Callable[..., Path | None], data_files: dict[str, str], tmp_path: Path
) -> None:
    assert stage_of(brief("sup"), tmp_path) is not None
    assert stage_of(brief("sup"), None) is None
    # A checkpoint of stage 1 may be the result, and the next run would not have it.
    assert stage_of(brief("sup", released={"best_from_stage1": True}), tmp_path) is None
    rows = [tuple(line.split(",")) for line in Path(data_files["nli"]).read_text("utf-8").splitlines()[1:]]
    nli = [dict(zip(("sent0", "sent1", "hard_neg"), row, strict=True)) for row in rows]
    assert stage_of(brief("sup"), tmp_path, nli=nli) is None
    # Without a stage 2 it is stage 1 that is the result.
    assert stage_of(replace(brief("sup"), stage2=None), tmp_path) is None


def test_an_interrupted_stage_1_leaves_nothing_until_it_is_finished(
    brief: Callable[..., Recipe], trained: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, shared = brief("semi"), tmp_path / "shared"
    step = Loop._step

    def stopped(loop: Loop, *rest: Any) -> Any:
        if loop.progress.step == 2:
            loop._stop.signal = 15
        return step(loop, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", stopped)
        with pytest.raises(TrainingInterrupted):
            train(recipe, tmp_path / "first", quiet=True, cache=RunCache(shared))
    assert left(shared) == []
    train(brief("sup"), tmp_path / "second", quiet=True, cache=RunCache(shared))
    assert trained == [1, 1, 2]
    # A run that is under way trains its own to the end: what it has measured so far stands in its record.
    train(recipe, tmp_path / "first", quiet=True, resume=True, cache=RunCache(shared))
    assert trained == [1, 1, 2, 1, 2]


def test_all_of_the_state_in_stage_2_is_that_of_a_run_that_trained_stage_1(
    brief: Callable[..., Recipe], begun: Path, trained: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, recipe = shutil.copytree(begun / "shared", tmp_path / "shared"), brief("semi-aux")
    step = Loop._step

    def stopped(loop: Loop, *rest: Any) -> Any:
        if (loop.progress.stage, loop.progress.step) == (2, 1):
            loop._stop.signal = 15
        return step(loop, *rest)

    trained.clear()
    states = []
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", stopped)
        for name, kept in (("alone", None), ("second", RunCache(shared))):
            with pytest.raises(TrainingInterrupted):
                train(recipe, tmp_path / name, quiet=True, cache=kept)
            (state,) = checkpoints(tmp_path / name / "checkpoints")
            states.append((json.loads((state / "state.json").read_text()), load_file(state / "state.safetensors")))
    assert trained == [1, 2, 2]
    (described, expected), (found_described, found) = states
    assert found_described == described
    assert described["curves"]["steps"] == [0, 4]
    assert found.keys() == expected.keys()
    assert {name.split(".")[0] for name in found} == {"model", "optimizer", "random"}
    assert all(found[name].equal(expected[name]) for name in expected)

    # Once it is under way it does not need what it took over.
    shutil.rmtree(shared)
    for name in ("alone", "second"):
        train(recipe, tmp_path / name, quiet=True, resume=True, cache=RunCache(shared))
    assert trained == [1, 2, 2, 2, 2]
    assert_same(tmp_path / "second", tmp_path / "alone")


@pytest.mark.parametrize("harm", ["a disk that is full", "a file that is none"])
def test_what_cannot_be_shared_does_no_harm(
    brief: Callable[..., Recipe], begun: Path, trained: list[int], tmp_path: Path, harm: str
) -> None:
    shared = tmp_path / "shared"
    if harm == "a disk that is full":
        shared.touch()  # a file, in which nothing can be written either
    else:
        (path,) = left(shutil.copytree(begun / "shared", shared))
        path.write_bytes(b"not a file of weights")
    trained.clear()
    train(brief("semi"), tmp_path / "second", quiet=True, cache=RunCache(shared))
    assert trained == [1, 2]
    assert_same(tmp_path / "second", begun / "first")


def test_the_scaling_of_losses_goes_on_where_stage_1_left_it(
    brief: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored = []
    monkeypatch.setattr(Precision, "state", lambda _: {"scale": 1024.0, "_growth_tracker": 7})
    monkeypatch.setattr(Precision, "restore", lambda _, state: restored.append(state))
    for name in ("first", "second"):
        train(brief("semi"), tmp_path / name, quiet=True, cache=RunCache(tmp_path / "shared"))
    assert restored == [{"scale": 1024.0, "_growth_tracker": 7}]


def test_a_stage_begins_without_the_gradients_of_the_last(
    brief: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros are not the same as no gradient: weight decay goes by the difference, and a run that took over has none."""
    found = []
    announce = Loop._announce

    def look(loop: Loop, *rest: Any) -> None:
        found.append([name for name, parameter in loop.context.method.named_parameters() if parameter.grad is not None])
        announce(loop, *rest)

    monkeypatch.setattr(Loop, "_announce", look)
    train(brief("semi"), tmp_path / "run", quiet=True)
    assert found == [[], []]
