"""The data of a run: what it needs before a step is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diffaug.config import DataSettings
from diffaug.data.cache import DataCache
from diffaug.data.collate import Collator, collator_for
from diffaug.data.corpus import Corpus
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.models.config import ModelConfig


@pytest.fixture(scope="module")
def collator(tiny_bert: Path) -> Collator:
    embedder = Embedder.from_pretrained(tiny_bert)
    return collator_for(embedder.encoder, embedder.tokenizer)


def pairs(path: Path, *labels: str) -> str:
    rows = [f"A dog runs {i}.,An animal moves {i}.,{label}" for i, label in enumerate(labels)]
    path.write_text("\n".join(["premise,hypothesis,label", *rows]), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("labels", "settings", "found"),
    [
        (["entailment"] * 4, {}, "all 4 pairs that are used have the label entailment"),
        (["entailment", "neutral", "entailment"], {}, "the label entailment"),
        (["contradiction"] * 3, {}, "the label contradiction"),
        (["neutral"] * 3, {"nli_classes": 3}, "the label neutral"),
        (["neutral"] * 3, {}, "the label neutral"),
        (["entailment"] * 50 + ["contradiction"], {"labels": 2}, "all 2 pairs that are used"),
    ],
)
def test_one_class_is_refused(
    labels: list[str], settings: dict[str, Any], found: str, collator: Collator, tmp_path: Path
) -> None:
    corpus = Corpus(DataSettings(nli=pairs(tmp_path / "one.csv", *labels), **settings), collator)
    with pytest.raises(DiffaugError, match=found) as error:
        corpus.related()
    assert "one.csv" in str(error.value)


@pytest.mark.parametrize("labels", [["entailment", "contradiction"], ["1", "0"], ["entailment", "not_entailment"]])
def test_two_classes_are_enough(labels: list[str], collator: Collator, tmp_path: Path) -> None:
    corpus = Corpus(DataSettings(nli=pairs(tmp_path / "two.csv", *labels)), collator)
    assert corpus.related().labels == (1, 0)


def test_label_names(collator: Collator, tmp_path: Path) -> None:
    path, cache = pairs(tmp_path / "own.csv", "alike", "other", "alike"), DataCache()
    names = {"alike": "entailment", "other": "contradiction"}
    assert Corpus(DataSettings(nli=path, label_names=names), collator, cache=cache).related().labels == (1, 0, 1)
    turned = {"alike": "contradiction", "other": "entailment"}  # the same file, but not the cached labels
    assert Corpus(DataSettings(nli=path, label_names=turned), collator, cache=cache).related().labels == (0, 1, 0)
    with pytest.raises(DiffaugError, match=r"the label 'alike' is unknown.*in a recipe: data\.label_names"):
        Corpus(DataSettings(nli=path), collator).related()
    with pytest.raises(DiffaugError, match="the label 'alike' cannot mean 'equal'"):
        Corpus(DataSettings(nli=path, label_names={"alike": "equal"}), collator).related()


def test_a_cached_file_is_not_read_again(collator: Collator, tmp_path: Path) -> None:
    settings = DataSettings(nli=pairs(tmp_path / "kept.csv", "entailment", "contradiction"))
    cache = DataCache()
    assert Corpus(settings, collator, cache=cache).nli is Corpus(settings, collator, cache=cache).nli


@pytest.mark.parametrize("name", ["dev", "test"])
@pytest.mark.parametrize("rows", [["3.0\tA dog.\tA cat."], ["3\tA dog.\tA cat.", "3.0\tTea.\tCoffee."]])
def test_equal_scores_are_refused(name: str, rows: list[str], collator: Collator, tmp_path: Path) -> None:
    (tmp_path / "same.tsv").write_text("\n".join(rows), "utf-8")
    corpus = Corpus(DataSettings(**{name: str(tmp_path / "same.tsv")}), collator)
    with pytest.raises(DiffaugError, match=rf"data\.{name}=.*same\.tsv: every score is 3, so there is no ranking"):
        getattr(corpus, name)()


def test_columns_by_number(collator: Collator, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("x\t4\tA dog.\tA cat.\nx\t1\tTea.\tA cat.\n", "utf-8")
    columns: dict[str, dict[str, str | int]] = {"dev": {"score": 2, "sentence1": 3, "sentence2": 4}}
    dev = Corpus(DataSettings(dev=str(tmp_path / "dev.tsv"), columns=columns), collator).dev()
    assert dev is not None
    assert dev.scores == [4.0, 1.0]


def test_truncation_is_logged(collator: Collator, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limited = Collator(collator.tokenizer, ModelConfig(), max_length=4)
    (tmp_path / "raw.txt").write_text("A dog runs through the park and home.\nTea.\n", "utf-8")
    with caplog.at_level("INFO", "diffaug.data"):
        Corpus(DataSettings(unlabelled=str(tmp_path / "raw.txt")), limited).sentences()
    assert "50 % of the sentences of data.unlabelled reach the maximum of 4 tokens" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "diffaug.data"):
        Corpus(DataSettings(unlabelled=str(tmp_path / "raw.txt")), collator).sentences()
    assert not caplog.text
