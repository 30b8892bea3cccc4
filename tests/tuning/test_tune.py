"""`tune`: the search space, trials that are chosen, pruned, failed and continued, and what is reported in the end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from typer.testing import CliRunner

from diffaug import DiffaugError, Embedder, TuneResult, load_recipe, tune
from diffaug.cli import app
from diffaug.config import Recipe, read_settings
from diffaug.data.read import read_scored_pairs
from diffaug.tuning import worker
from diffaug.tuning.space import Choices, Range, as_changes, grid, grid_size, read_space

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
    result = tune(recipe, search, out, trials=3, report=lines.append)
    assert [trial.name for trial in result.trials] == ["default", "1", "2", "3"]
    assert sum("left" in line for line in lines) == 2
    assert TuneResult.from_dict(json.loads((out / "tune.json").read_text())).table() == result.table()
    assert result.model.is_dir()
    assert len(list(out.glob("trials/*/best"))) == 1
    # What chose: the score in the run's own summary. Its pairs and those that report make up the dev pairs.
    best = max(result.trials, key=lambda trial: trial.score or 0)
    assert result.chosen == best.name
    pairs = read_scored_pairs(str(recipe.data.dev))
    reported, chose = (int(words.split()[0]) for words in (result.reports, result.chooses))
    assert reported + chose == len(pairs)
    # Independently: the score of all dev pairs is none of the two parts', and the reported one is that of some half.
    from diffaug.adaptation.folds import split_folds

    held = split_folds(pairs, 2, recipe.seed)[0]
    assert len(held) == reported
    embedder = Embedder.from_pretrained(result.model)
    first, second = embedder.encode(pairs.first), embedder.encode(pairs.second)
    cosines = np.einsum("ij,ij->i", first, second)[held]
    assert result.score == pytest.approx(100 * spearmanr(cosines, np.array(pairs.scores)[held]).statistic, abs=1e-4)
    # The recipe that is written trains the same settings.
    written = load_recipe(str(out / "best.yaml"))
    assert written == replace(recipe, stage2=written.stage2)
    assert all(change.split("=")[0].startswith("stage2.") for change in result.changes)

    again = tune(recipe, search, out, trials=3, report=lines.append)
    assert again == result
    more = tune(recipe, search, out, trials=4)
    assert [trial.changes for trial in more.trials[:4]] == [trial.changes for trial in result.trials]
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


def test_an_interrupted_search_goes_on(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = ["stage2.learning_rate=log:1e-4..1e-2"]
    whole = tune(recipe, search, tmp_path / "whole", trials=3)
    trained = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        trained.append(args[1].name)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    real = worker.train
    monkeypatch.setattr(worker, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(recipe, search, tmp_path / "parts", trials=3)
    journal = tmp_path / "parts" / "study.log"
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 4, "wor')  # a disk was full in the middle of a line
    parts = tune(recipe, search, tmp_path / "parts", trials=3)
    assert trained == ["default", "000", "001", "001", "002"]
    assert [(t.changes, t.score) for t in parts.trials] == [(t.changes, t.score) for t in whole.trials]


def test_trials_that_fail_are_pruned_or_repeat(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are made up here: only what the search makes of them counts."""

    def train(recipe: Recipe, folder: Path, *, callbacks: list[Any], **_: Any) -> None:
        trained.append(folder.name)
        rate = recipe.stage2.learning_rate  # type: ignore[union-attr]
        if rate > 0.5:
            raise DiffaugError("the loss is not finite")
        (folder / "best").mkdir(parents=True)
        score = -rate if folder.name != "default" else -1.0
        (folder / "summary.json").write_text(json.dumps({"scores": {"dev": score}, "seconds": 1}))

    trained: list[str] = []
    monkeypatch.setattr(worker, "train", train)
    monkeypatch.setattr("diffaug.tuning.run._score", lambda model, pairs: _Fixed())
    result = tune(recipe, ["stage2.learning_rate=0.1,0.2,0.9"], tmp_path / "few", trials=20)
    assert trained == ["default", "000", "001", "002"]  # there are three combinations only
    assert [t.end for t in result.trials] == ["complete", "complete", "complete", "failed"]
    assert result.trials[3].failure == "the loss is not finite"
    assert result.changes == ["stage2.learning_rate=0.1"]
    assert len(list((tmp_path / "few").glob("trials/*/best"))) == 1

    trained.clear()
    search = ["stage2.learning_rate=0.1,0.2,0.9", "stage2.temperature=0.1,0.2,0.3"]
    result = tune(recipe, search, tmp_path / "many", trials=8)
    assert len(result.trials) == 9
    assert len(trained) - 1 == len({tuple(t.changes) for t in result.trials[1:]}) < 8
    assert any(t.end.startswith("same as") for t in result.trials)

    with pytest.raises(DiffaugError, match="all 2 trials failed; the first one: the loss is not finite"):
        tune(recipe, ["stage2.learning_rate=0.8,0.9"], tmp_path / "none")


class _Fixed:
    rows = 2

    def value(self) -> float:
        return 1.0

    def resampled(self, counts: Any) -> Any:
        return np.zeros(len(counts))
