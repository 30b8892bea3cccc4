"""`tune`: the search space, trials that are chosen, pruned, failed and continued, and what is reported in the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from typer.testing import CliRunner

from diffaug import DiffaugError, Embedder, TuneResult, load_recipe, tune
from diffaug.adaptation.folds import split_folds
from diffaug.cli import app
from diffaug.config import Recipe, change_recipe, read_settings
from diffaug.data.read import read_scored_pairs
from diffaug.training.callbacks import Callback
from diffaug.tuning import worker
from diffaug.tuning.space import Choices, Range, as_changes, grid, grid_size, read_space
from diffaug.tuning.study import Trials

SUP = load_recipe("diffaug-sup", ["data.dev=dev.tsv"])


@pytest.fixture
def recipe(make_recipe: Callable[..., Recipe]) -> Recipe:
    """A run of a second without test pairs, so that the dev pairs are divided."""
    return make_recipe(data={"test": None}, stage1={"steps": 1}, stage2={"steps": 2}, loop={"eval_every": 1})


@pytest.mark.parametrize(
    ("text", "dimension", "first"),
    [
        ("stage2.learning_rate=log:1e-5..1e-4", Range(1e-5, 1e-4, log=True, whole=False), None),
        ("views.length = 4..6", Range(4, 6, log=False, whole=True), "views.length=4"),
        ("stage2.epochs=1..3", Range(1.0, 3.0, log=False, whole=False), None),
        ("stage2.temperature=0.03, 5e-2", Choices(("0.03", '"5e-2"')), "stage2.temperature=0.03"),
        ("model.pooling=cls,mean,null", Choices(('"cls"', '"mean"', "null")), "model.pooling=cls"),
        ("stage2.matryoshka=[8, 4],[]", Choices(("[8, 4]", "[]")), "stage2.matryoshka=[8, 4]"),
        ("stage1.steps=auto,100", Choices(('"auto"', "100")), "stage1.steps=auto"),
    ],
)
def test_search_space(text: str, dimension: Choices | Range, first: str | None) -> None:
    space = read_space([text], SUP)
    assert list(space.values()) == [dimension]
    if first is not None:
        found = next(grid(space))
        assert as_changes(found) == [first]


def test_search_space_of_a_mapping_and_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("stage2.learning_rate: log:1e-5..1e-4\nviews.length: [4, 8]\nstage2.batch_size: 16..18\n")
    space = read_space([str(path)], SUP)
    assert space == read_space(read_settings(path), SUP)
    assert grid_size(space) == float("inf")
    del space["stage2.learning_rate"]
    assert grid_size(space) == len(list(grid(space))) == 6


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (["stage2.learning_rat=1e-5,1e-4"], "did you mean 'learning_rate'"),
        (["stage2.learning_rate=1e-4..1e-5"], "from a lower to a higher number"),
        (["stage2.learning_rate=log:0..1e-4"], "must start above 0"),
        (["stage2.learning_rate=low..high"], "write two numbers"),
        (["stage2.temperature=-1..1"], "stage2.temperature = -1.0 does not fit"),
        (["views.length=1.5..3"], "must have whole numbers"),
        (["model.denoise=0..1"], "separated by commas"),
        (["stage2.temperature=0.05"], "at least two different values"),
        (["stage2.temperature=0.05,0.05"], "at least two different values"),
        (["stage2.temperature"], "write it as key=values"),
        (["stage2.epochs=1,2", "stage2.epochs=3,4"], "searched twice"),
        (["data.dev=a.csv,b.csv"], "cannot be searched"),
        (["model.backbone=a,b"], "cannot be searched"),
        ({"stage2.epochs": 3}, "must be a list or a range"),
        ({}, "nothing to search"),
        (["flow.levels.x=1,2"], "flow.levels"),
    ],
)
def test_bad_search_spaces(search: Any, words: str) -> None:
    with pytest.raises(DiffaugError, match=words):
        read_space(search, SUP)


def test_a_search_reports_on_pairs_that_chose_nothing(recipe: Recipe, tmp_path: Path) -> None:
    lines: list[str] = []
    out = tmp_path / "out"
    search = {"stage2.learning_rate": "log:1e-4..1e-2", "stage2.dropout": [True, False]}
    result = tune(recipe, search, out, trials=2, report=lines.append)
    assert [trial.name for trial in result.trials] == ["default", "1", "2"]
    assert sum("left" in line for line in lines) == 1
    assert TuneResult.from_dict(json.loads((out / "tune.json").read_text())).table() == result.table()
    assert result.model.is_dir()
    assert len(list(out.glob("trials/*/best"))) == 1
    best = max(result.trials, key=lambda trial: trial.score or 0)
    assert result.chosen == best.name
    # The pairs that chose and those that report are the dev pairs; the scores follow from the saved model.
    pairs = read_scored_pairs(str(recipe.data.dev))
    held = split_folds(pairs, 2, recipe.seed)[0]
    assert result.reports == f"{len(held)} held-out dev pairs"
    embedder = Embedder.from_pretrained(result.model)
    cosines = np.einsum("ij,ij->i", embedder.encode(pairs.first), embedder.encode(pairs.second))
    for rows, score in [(held, result.score), (np.setdiff1d(np.arange(len(pairs)), held), best.score)]:
        expected = 100 * spearmanr(cosines[rows], np.array(pairs.scores)[rows]).statistic
        assert score == pytest.approx(expected, abs=1e-3)
    # The recipe that is written trains the chosen settings.
    assert load_recipe(str(out / "best.yaml")) == change_recipe(recipe, result.changes)

    assert tune(recipe, search, out, trials=2) == result
    assert tune(recipe, search, out, trials=1) == result
    for other, words in [
        ({"stage2.learning_rate": "log:1e-4..1e-1", "stage2.dropout": [True, False]}, "stage2.learning_rate was"),
        ({**search, "stage2.temperature": [0.1, 0.2]}, "stage2.temperature was None"),
    ]:
        with pytest.raises(DiffaugError, match=words):
            tune(recipe, other, out)
    with pytest.raises(DiffaugError, match=r"stage2\.steps was 2, is 3"):
        tune(replace(recipe, stage2=replace(recipe.stage2, steps=3)), search, out)  # type: ignore[type-var]
    with pytest.raises(DiffaugError, match=r"data\.nli .* was"):
        tune(recipe, search, out, nli=recipe.data.dev)


class FakeTraining:
    """Stands for `train`: made-up scores, so that only what the search makes of them is tested."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folders: list[str] = []
        self.evaluations: dict[str, int] = {}
        self.interrupt_at: int | None = None
        self.default = -1.0
        monkeypatch.setattr(worker, "train", self)
        monkeypatch.setattr(worker, "_LOOK_EVERY", 0.01)
        monkeypatch.setattr("diffaug.tuning.run._score", lambda model, pairs: _Fixed())

    def __call__(self, recipe: Recipe, folder: Path, *, callbacks: list[Callback], **_: Any) -> None:
        self.folders.append(folder.name)
        if len(self.folders) == self.interrupt_at:
            raise KeyboardInterrupt
        assert recipe.stage2 is not None
        if recipe.stage2.learning_rate > 0.5:
            raise DiffaugError("the loss is not finite")
        score = self.default if folder.name == "default" else -recipe.stage2.learning_rate
        stage = SimpleNamespace(number=2, steps=20)
        for step in range(2, 21, 2):
            progress = SimpleNamespace(step=step, best={"selection": score})
            context: Any = SimpleNamespace(stages=[stage], progress=progress)
            self.evaluations[folder.name] = step
            for callback in callbacks:
                callback.on_evaluate_end(context, stage, last=step == 20)  # type: ignore[arg-type]
        (folder / "best").mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({"scores": {"dev": score}, "seconds": 1}))


class _Fixed:
    """A statistic that is always 1."""

    rows = 2

    def value(self) -> float:
        return 1.0

    def resampled(self, counts: Any) -> Any:
        return np.ones(len(counts))


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    return FakeTraining(monkeypatch)


def test_an_interrupted_search_goes_on(recipe: Recipe, tmp_path: Path, training: FakeTraining) -> None:
    search = ["stage2.learning_rate=log:1e-4..1e-2"]
    whole = tune(recipe, search, tmp_path / "whole", trials=12)
    training.folders.clear()
    training.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        tune(recipe, search, tmp_path / "parts", trials=12)
    journal = tmp_path / "parts" / "study.log"
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 4, "wor')  # a disk was full in the middle of a line
    parts = tune(recipe, search, tmp_path / "parts", trials=12)
    assert training.folders[:5] == ["default", "000", "001", "001", "002"]
    assert [(t.changes, t.score) for t in parts.trials] == [(t.changes, t.score) for t in whole.trials]
    assert len({tuple(t.changes) for t in parts.trials}) == 13


def test_two_searches_in_one_folder_share_the_trials(recipe: Recipe, tmp_path: Path, training: FakeTraining) -> None:
    """Locks belong to open files: two threads meet each other as two processes do."""

    def search(_: int) -> TuneResult:
        return tune(recipe, ["stage2.learning_rate=log:1e-4..1e-2"], tmp_path / "out", trials=12, prune=False)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(search, range(2))
    assert first == second
    assert sorted(training.folders) == [*(f"{n:03d}" for n in range(12)), "default"]


def test_trials_that_fail_or_repeat(recipe: Recipe, tmp_path: Path, training: FakeTraining) -> None:
    result = tune(recipe, ["stage2.learning_rate=0.1,0.2,0.9"], tmp_path / "few", trials=20)
    assert training.folders == ["default", "000", "001", "002"]  # there are three combinations only
    assert [t.end for t in result.trials] == ["complete", "complete", "complete", "failed"]
    assert result.trials[3].failure == "the loss is not finite"
    assert result.changes == ["stage2.learning_rate=0.1"]
    assert [path.parent.name for path in (tmp_path / "few").glob("trials/*/best")] == ["000"]

    training.folders.clear()
    search = ["stage2.learning_rate=0.1,0.2,0.9", "stage2.temperature=0.1,0.2,0.3"]
    result = tune(recipe, search, tmp_path / "many", trials=8)
    assert len(result.trials) == 9
    assert len(training.folders) - 1 == len({tuple(t.changes) for t in result.trials[1:]}) < 8
    assert any(t.end.startswith("same as") for t in result.trials)

    with pytest.raises(DiffaugError, match="all 2 trials failed; the first one: the loss is not finite"):
        tune(recipe, ["stage2.learning_rate=0.8,0.9"], tmp_path / "none")


def test_a_trial_below_the_median_is_pruned(recipe: Recipe, tmp_path: Path, training: FakeTraining) -> None:
    search = {"stage2.learning_rate": [n / 20 for n in range(1, 8)]}  # the first is the best
    result = tune(recipe, search, tmp_path / "out")
    assert [t.end for t in result.trials] == ["complete"] * 6 + ["pruned"] * 2
    # Not before a fifth of its steps.
    assert training.evaluations == {"default": 20, **{f"00{n}": 20 if n < 5 else 4 for n in range(7)}}
    assert not (tmp_path / "out" / "trials" / "006").exists()
    kept = tune(recipe, search, tmp_path / "all", prune=False)
    assert {t.end for t in kept.trials} == {"complete"}


def test_a_trial_that_kills_its_process_is_given_up(recipe: Recipe, tmp_path: Path, training: FakeTraining) -> None:
    out, search = tmp_path / "out", ["stage2.learning_rate=0.1,0.2"]
    training.interrupt_at = 2
    with pytest.raises(KeyboardInterrupt):
        tune(recipe, search, out)
    space = read_space(search, recipe)
    for _ in range(2):  # killed: nothing is noted
        claimed = Trials(out, space, 20, recipe.seed, prune=True).claim()
        assert claimed is not None
        claimed.held.close()
    result = tune(recipe, search, out)
    assert [t.failure for t in result.trials] == [None, "its process was killed 3 times", None]


def test_default_settings_stay_if_no_trial_is_better(recipe: Recipe, tmp_path: Path, training: FakeTraining) -> None:
    training.default = -0.1
    result = tune(recipe, ["stage2.learning_rate=0.1,0.2"], tmp_path / "out")
    assert (result.chosen, result.changes, result.comparison) == ("default", [], None)
    assert result.model == tmp_path / "out" / "default" / "best"
    assert "Keep the default settings" in result.verdict
    assert load_recipe(str(tmp_path / "out" / "best.yaml")) == recipe


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--search", "stage2.temperature=1,2"], "set data.dev"),
        (["--search", "stage2.temperatur=1,2"], "did you mean 'temperature'"),
        (["--search", "stage2.temperature=1,2", "-s", "data.dev=none.csv"], "none.csv"),
        (["--search", "stage2.temperature=1,2", "-s", "data.dev=few.tsv", "-s", "data.nli=few.tsv"], "at least 20"),
        (["--search", "stage1.steps=1,2", "-r", "simcse-unsup"], "has no stage1"),
    ],
)
def test_errors_before_anything_is_trained(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.tsv").write_text("".join(f"{n % 5}\tText {n}\tOther {n}\n" for n in range(30)))
    result = CliRunner().invoke(app, ["tune", "-r", "simcse-sup", *arguments, "-o", "out"])
    assert isinstance(result.exception, DiffaugError)
    assert words in str(result.exception)
    assert not Path("out").exists()


def test_a_cluster_that_cannot_be_used(
    recipe: Recipe, tmp_path: Path, training: FakeTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    search = ["stage2.learning_rate=0.1,0.2"]
    with pytest.raises(DiffaugError, match=r"the engine ray needs the package ray: pip install 'diffaug\[ray\]'"):
        tune(recipe, search, tmp_path / "out", engine="ray")
    with pytest.raises(DiffaugError, match="engine must be one of local, ray, got 'dask'"):
        tune(recipe, search, tmp_path / "out", engine="dask")  # type: ignore[arg-type]
    with pytest.raises(DiffaugError, match="numbers of trials and workers must be at least 1, got 0"):
        tune(recipe, search, tmp_path / "out", workers=0)
    assert not (tmp_path / "out").exists()
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    command = ["tune", "-r", str(path), "--search", *search, "-o", str(tmp_path / "out"), "--engine", "ray"]
    assert "needs the package ray" in str(CliRunner().invoke(app, command).exception)


def test_the_command(recipe: Recipe, tmp_path: Path, training: FakeTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    command = ["tune", "-r", str(path), "--search", "stage2.learning_rate=0.1,0.2", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "settings   stage2.learning_rate=0.1" in result.output
    assert "no difference shown" in result.output
    training.interrupt_at = len(training.folders) + 2
    result = CliRunner().invoke(app, [*command[:-1], str(tmp_path / "other")])
    assert result.exit_code == 130
    assert "the same command continues" in result.output
