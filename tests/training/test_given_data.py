"""Training and evaluation on data passed in Python: as with the files it came from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pytest
import yaml
from safetensors.torch import load_file

from diffaug import Embedder, evaluate
from diffaug.config import Recipe
from diffaug.data.read import read_scored_pairs, read_sentences, read_triplets
from diffaug.errors import DiffaugError
from diffaug.training.run import train

NAMES = ("nli", "unlabelled", "dev", "test")


@pytest.fixture
def rows(data_files: dict[str, str]) -> dict[str, Any]:
    """The data of the tiny runs, each in another form."""
    triplets = read_triplets(data_files["nli"])
    pairs = read_scored_pairs(data_files["dev"])
    columns = {"sentence1": pairs.first, "sentence2": pairs.second, "score": pairs.scores}
    return {
        "nli": datasets.Dataset.from_list(
            [dict(zip(("sent0", "sent1", "hard_neg"), t, strict=True)) for t in triplets]
        ),
        "unlabelled": iter(read_sentences(data_files["unlabelled"])),
        "dev": list(pairs),
        "test": datasets.Dataset.from_dict(columns),
    }


def test_the_same_run_as_with_files(
    make_recipe: Callable[..., Recipe], rows: dict[str, Any], data_files: dict[str, str], tmp_path: Path
) -> None:
    recipe = make_recipe("semi-aux")
    by_file = train(recipe, tmp_path / "files", quiet=True)
    bare = make_recipe("semi-aux", data=dict.fromkeys(NAMES))
    passed = train(bare, tmp_path / "rows", **rows, quiet=True)
    assert passed.scores == by_file.scores
    assert passed.before == by_file.before
    first, second = (load_file(tmp_path / name / "best" / "diffaug.safetensors") for name in ("files", "rows"))
    assert all(first[name].equal(second[name]) for name in first)

    kept = yaml.safe_load((tmp_path / "rows" / "recipe.yaml").read_text("utf-8"))["data"]
    assert [kept[name] for name in NAMES] == ["passed in memory, 40 rows"] * 4
    assert Embedder.from_pretrained(passed.model).provenance.recipe["data"] == kept
    assert "- labelled (NLI): passed in memory, 40 rows" in (passed.model / "README.md").read_text("utf-8")


def test_a_path_takes_the_place_of_the_recipes(
    make_recipe: Callable[..., Recipe], data_files: dict[str, str], tmp_path: Path
) -> None:
    bare = make_recipe("sup", data=dict.fromkeys(NAMES), stage1={"steps": 1}, stage2={"steps": 1})
    train(bare, tmp_path / "run", nli=Path(data_files["nli"]), dev=data_files["dev"], quiet=True)
    kept = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text("utf-8"))["data"]
    assert (kept["nli"], kept["dev"], kept["test"]) == (data_files["nli"], data_files["dev"], None)


def test_to_go_on_pass_it_again(
    make_recipe: Callable[..., Recipe], rows: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = make_recipe("sup", data=dict.fromkeys(NAMES), loop={"save_minutes": 0.0})
    whole = train(bare, tmp_path / "whole", nli=rows["nli"], dev=rows["dev"], quiet=True)

    from diffaug.training.loop import Loop

    def stop(self: Loop, *args: Any) -> None:
        saved(self, *args)
        if self.progress.stage == 2:
            raise KeyboardInterrupt

    saved = Loop._save
    monkeypatch.setattr(Loop, "_save", stop)
    with pytest.raises(KeyboardInterrupt):
        train(bare, tmp_path / "cut", nli=rows["nli"], dev=rows["dev"], quiet=True)
    monkeypatch.undo()
    with pytest.raises(
        DiffaugError, match=r"data\.nli was 'passed in memory, 40 rows', is 'passed in memory, 39 rows'"
    ):
        train(bare, tmp_path / "cut", nli=list(rows["nli"])[1:], dev=rows["dev"], resume=True, quiet=True)
    result = train(bare, tmp_path / "cut", nli=rows["nli"], dev=rows["dev"], resume=True, quiet=True)
    assert result.scores == whole.scores


def test_a_recipe_that_names_passed_data_says_what_to_do(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe("sup", data={"nli": "passed in memory, 40 rows"})
    with pytest.raises(
        DiffaugError, match=r"data\.nli was passed in memory, 40 rows, .* train\(recipe, out, nli=rows\)"
    ):
        train(recipe, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_evaluation(tiny_bert: Path, data_files: dict[str, str], rows: dict[str, Any]) -> None:
    options: dict[str, Any] = {"resamples": 0, "device": "cpu"}
    by_file = evaluate(tiny_bert, pairs=data_files["dev"], triplets=data_files["nli"], **options)
    passed = evaluate(tiny_bert, pairs=rows["test"], triplets=rows["nli"], **options)
    assert list(passed.scores.values()) == list(by_file.scores.values())
    splits = datasets.DatasetDict({"one": rows["test"], "two": rows["test"].select(range(9))})
    assert evaluate(tiny_bert, pairs=splits, **options).scores["one"] == passed.scores["pairs"]


def test_what_dev_and_test_share_with_the_training_data_is_said_and_recorded(
    make_recipe: Callable[..., Recipe], data_files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anchor, positive, _ = next(iter(read_triplets(data_files["nli"])))
    dev = [(anchor.upper(), positive, 5.0), ("Nothing of the kind was seen before.", "Nor this.", 0.0)]
    recipe = make_recipe("sup", data={"test": None}, stage1={"steps": 1}, stage2={"steps": 1})
    train(recipe, tmp_path / "run", dev=dev)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("leakage: ")]
    assert len(said) == 1
    assert "of data.dev, the training data contains" in said[0]
    assert "1 of 2 pairs (1 exactly, 0 nearly)" in said[0]
    kept = json.loads((tmp_path / "run" / "data.json").read_text("utf-8"))
    assert kept["leakage"]["dev"]["exact_pairs"] == 1
    assert kept["leakage"]["dev"]["example"] == [anchor.upper(), positive]
    assert kept["hub"] == {}


def test_the_revision_of_a_hub_data_set_is_recorded_and_read_again(
    make_recipe: Callable[..., Recipe],
    rows: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cut_off: Callable[[Recipe, Path], None],
) -> None:
    commits, read = ["1" * 40, "2" * 40], []

    class Api:
        def dataset_info(self, name: str, revision: str | None, timeout: float) -> SimpleNamespace:
            return SimpleNamespace(sha=commits.pop(0))

    def load_dataset(name: str, config: str | None, split: str, revision: str | None) -> datasets.Dataset:
        read.append(revision)
        return rows["nli"]

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    recipe = make_recipe("sup", data={"nli": "hub:owner/nli"}, loop={"save_minutes": 0.0})
    cut_off(recipe, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "data.json").read_text("utf-8"))["hub"] == {
        "hub:owner/nli": f"hub:owner/nli@{'1' * 40}"
    }
    train(recipe, tmp_path / "run", resume=True, quiet=True)
    assert read == ["1" * 40] * 2, "not what the hub has meanwhile"
