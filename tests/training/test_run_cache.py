"""Runs in a row: what one has loaded the next need not, and no bit of its result tells."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from diffaug.config import Recipe
from diffaug.data import read
from diffaug.data.tokens import TokenStore
from diffaug.training import run_cache as kept_module
from diffaug.training.run import train
from diffaug.training.run_cache import RunCache


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Every file that is opened, sentence tokenised for training and backbone loaded, as it happens."""
    done: dict[str, list[Any]] = {"files": [], "sentences": [], "backbones": []}
    open_table, add, load = read.open_table, TokenStore._add, kept_module.load_start

    def opened(source: Any, *rest: Any) -> Any:
        done["files"].append(Path(source).name)
        return open_table(source, *rest)

    def added(bank: TokenStore, sentences: list[str]) -> None:
        done["sentences"] += sentences
        add(bank, sentences)

    def loaded(source: str) -> Any:
        done["backbones"].append(source)
        return load(source)

    monkeypatch.setattr(read, "open_table", opened)
    monkeypatch.setattr(TokenStore, "_add", added)
    monkeypatch.setattr(kept_module, "load_start", loaded)
    return done


def assert_same(folder: Path, reference: Path) -> None:
    found, expected = (load_file(run / "best" / "diffaug.safetensors") for run in (folder, reference))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)
    lines = [(run / "metrics.jsonl").read_text("utf-8") for run in (folder, reference)]
    assert lines[0] == lines[1]
    scores = [json.loads((run / "summary.json").read_text("utf-8"))["scores"] for run in (folder, reference)]
    assert scores[0] == scores[1]


def test_a_second_run_reads_and_tokenises_nothing_and_comes_out_the_same(
    make_recipe: Callable[..., Recipe], work: dict[str, list[Any]], tmp_path: Path
) -> None:
    half = make_recipe("semi-aux", data={"labels": 0.5, "label_draw": 1, "test": None}, loop={"eval_every": 4})
    other = make_recipe("sup", data={"labels": 0.25, "label_draw": 1, "test": None}, loop={"eval_every": 4})
    kept = RunCache()
    train(make_recipe("semi", data={"test": None}, loop={"eval_every": 4}), tmp_path / "first", quiet=True, cache=kept)
    assert sorted(work["files"]) == ["dev.tsv", "sentences.txt", "triplets.csv"]
    assert len(set(work["sentences"])) == len(work["sentences"]) > 100
    assert len(work["backbones"]) == 1
    for found in work.values():
        found.clear()
    train(half, tmp_path / "half", quiet=True, cache=kept)
    train(other, tmp_path / "other", quiet=True, cache=kept)
    # The labels of the other runs lie within those of the first, whose sentences are known.
    assert work == {"files": [], "sentences": [], "backbones": []}

    for name, recipe in (("half", half), ("other", other)):
        train(recipe, tmp_path / f"{name}-alone", quiet=True)
        assert_same(tmp_path / name, tmp_path / f"{name}-alone")
    assert work["files"], "vacuous: reads are not counted"


def test_a_run_does_not_touch_what_the_next_is_given(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe, kept = make_recipe("sup", data={"test": None}, loop={"eval_every": 4}), RunCache()
    for name in ("first", "again"):
        train(recipe, tmp_path / name, quiet=True, cache=kept)
    assert_same(tmp_path / "again", tmp_path / "first")


def test_a_file_that_has_changed_is_read_again(
    make_recipe: Callable[..., Recipe], data_files: dict[str, str], work: dict[str, list[Any]], tmp_path: Path
) -> None:
    own = tmp_path / "dev.tsv"
    shutil.copy(data_files["dev"], own)
    kept = RunCache()
    recipe = make_recipe("sup", data={"dev": str(own), "test": None}, loop={"eval_every": 4})
    before = train(recipe, tmp_path / "before", quiet=True, cache=kept).scores["dev"]
    scores = own.read_text("utf-8").splitlines()
    own.write_text("\n".join(f"{9 - int(line[0])}{line[1:]}" for line in scores) + "\n", "utf-8")
    work["files"].clear()
    after = train(recipe, tmp_path / "after", quiet=True, cache=kept).scores["dev"]
    assert work["files"] == ["dev.tsv"]
    assert before != after


def test_a_backbone_is_scored_once_for_each_of_the_data(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[str] = []
    score = kept_module.final_scores
    monkeypatch.setattr(kept_module, "final_scores", lambda model, pairs: scored.extend(pairs) or score(model, pairs))
    kept = RunCache()
    before = [train(make_recipe(), tmp_path / name, quiet=True, cache=kept).before for name in ("first", "again")]
    assert before[0] == before[1] != {}
    assert len(scored) == 2, "dev and test, in the first run"
    train(make_recipe(data={"test": None}), tmp_path / "other", quiet=True, cache=kept)
    assert len(scored) == 3
    assert train(make_recipe(), tmp_path / "alone", quiet=True).before == before[0]


@pytest.mark.parametrize(
    "change",
    [{"max_length": 4}, {"template": None}, {"final_stop": False}],
    ids=["another length", "another template", "another ending"],
)
def test_sentences_are_tokenised_anew_for_a_model_that_reads_them_otherwise(
    make_recipe: Callable[..., Recipe], tmp_path: Path, change: dict[str, Any]
) -> None:
    kept = RunCache()
    train(make_recipe("sup", data={"test": None}, loop={"eval_every": 4}), tmp_path / "first", quiet=True, cache=kept)
    data = {"test": None, **({"max_length": 4} if "max_length" in change else {})}
    model = {key: value for key, value in change.items() if key != "max_length"}
    recipe = make_recipe("sup", data=data, model=model, loop={"eval_every": 4})
    train(recipe, tmp_path / "kept", quiet=True, cache=kept)
    train(recipe, tmp_path / "alone", quiet=True)
    assert_same(tmp_path / "kept", tmp_path / "alone")
