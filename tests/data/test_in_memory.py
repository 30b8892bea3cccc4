"""Data passed in Python is read like the same data in a file."""

from __future__ import annotations

import types
from collections import deque
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow
import pytest

from diffaug.data.check import check
from diffaug.data.labels import Label
from diffaug.data.read import read_labelled_pairs, read_nli, read_scored_pairs, read_sentences, read_triplets
from diffaug.data.records import LabelledPairs, ScoredPairs, Triplets
from diffaug.data.table import InMemoryRows
from diffaug.errors import DiffaugError
from diffaug.evaluation.retrieval_data import read_retrieval

ROWS = [
    {"sent0": "A dog runs.", "sent1": "It moves.", "hard_neg": "It sleeps."},
    {"sent0": "Prices fell.", "sent1": "It is cheaper.", "hard_neg": "Prices rose, sharply."},
]
TUPLES = [tuple(row.values()) for row in ROWS]


def forms(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same rows as everything that can be passed."""
    data = datasets.Dataset.from_list(rows)
    return {
        "mappings": rows,
        "a generator": (row for row in rows),
        "sequences": [tuple(row.values()) for row in rows],
        "a deque": deque(list(row.values()) for row in rows),
        "a data set": data,
        "one in another format": data.with_format("numpy"),
        "one with more columns": data.add_column("id", list(range(len(rows)))),
        "part of one": datasets.concatenate_datasets([data, data]).select(range(len(rows))),
        "a stream": data.to_iterable_dataset(),
        "a stream without features": datasets.IterableDataset.from_generator(lambda: iter(rows)),
        "pandas": pandas.DataFrame(rows),
        "pyarrow": pyarrow.Table.from_pylist(rows),
        "like polars": types.SimpleNamespace(columns=list(rows[0]), to_dicts=lambda: rows),
    }


@pytest.mark.parametrize("form", forms(ROWS))
def test_triplets_in_every_form(form: str, tmp_path: Path) -> None:
    pandas.DataFrame(ROWS).to_csv(tmp_path / "a.csv", index=False)
    expected = read_triplets(tmp_path / "a.csv")
    assert list(expected) == TUPLES
    assert read_triplets(forms(ROWS)[form]) == expected
    assert read_nli(forms(ROWS)[form]) == expected
    taken = InMemoryRows.collect("the data passed as nli", forms(ROWS)[form])
    assert str(taken) == "passed in memory, 2 rows"
    for _ in range(2):  # it can be read again
        assert read_triplets(taken) == expected


@pytest.mark.parametrize("form", forms([{"sentence1": "a", "sentence2": "b", "score": 1.5}]))
def test_scores_in_every_form(form: str) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": 1.5}, {"sentence1": "c", "sentence2": "d", "score": 4}]
    assert read_scored_pairs(forms(rows)[form]) == ScoredPairs(["a", "c"], ["b", "d"], [1.5, 4.0])


def test_our_own_records_can_be_passed() -> None:
    triplets = Triplets(["A dog runs."], ["It moves."], ["It sleeps."])
    assert read_triplets(triplets) == triplets
    pairs = LabelledPairs(["A dog runs."] * 2, ["It moves.", "It sleeps."], [Label.ENTAILMENT, Label.CONTRADICTION])
    assert read_labelled_pairs(pairs) == pairs
    scored = ScoredPairs(["a", "c"], ["b", "d"], [1.5, 4.0])
    assert read_scored_pairs(scored) == scored


@pytest.mark.parametrize("format", [None, "numpy", "torch"])
def test_coded_labels_go_by_their_names(format: str | None) -> None:
    """What 0 means differs from one data set to the next."""
    meaning = datasets.ClassLabel(names=["contradiction", "neutral", "entailment"])
    rows = [{"premise": "a", "hypothesis": h, "label": code} for code, h in enumerate("bcd")]
    data = datasets.Dataset.from_list(rows).cast_column("label", meaning).with_format(format)
    expected = [Label.CONTRADICTION, Label.NEUTRAL, Label.ENTAILMENT]
    assert read_labelled_pairs(data).labels == expected
    assert read_labelled_pairs(data.to_iterable_dataset()).labels == expected
    assert read_labelled_pairs(InMemoryRows.collect("x", data)).labels == expected


def test_sentences() -> None:
    texts = ["One.", "Two."]
    data = datasets.Dataset.from_dict({"text": texts})
    for form in (
        texts,
        iter(texts),
        np.array(texts),
        dict.fromkeys(texts).keys(),
        data,
        data["text"],
        [(t,) for t in texts],
    ):
        assert read_sentences(form) == texts
    assert read_sentences(data.rename_column("text", "body"), {"sentence": "body"}) == texts


def test_problems_name_the_data_and_the_row() -> None:
    with pytest.raises(DiffaugError, match=r"^the data passed as nli, row 2: column 'sent1' is empty"):
        read_triplets(InMemoryRows.collect("the data passed as nli", [ROWS[0], {**ROWS[1], "sent1": " "}]))
    with pytest.raises(DiffaugError, match=r"the data given, row 1: column 'sent1' is not text: nan"):
        read_triplets(pandas.DataFrame([{**ROWS[0], "sent1": float("nan")}, ROWS[1]]))


def test_objects_without_rows() -> None:
    split = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS)})
    with pytest.raises(DiffaugError, match="from a DatasetDict with 'train', 'test'; pass one of its entries"):
        read_triplets(split)
    assert len(read_triplets(split["train"])) == 2
    for nothing in (5, b"bytes", None):
        with pytest.raises(DiffaugError, match="cannot read data from a"):
            read_sentences(nothing)  # type: ignore[arg-type]


def test_check() -> None:
    report = check(datasets.Dataset.from_list(ROWS))
    assert report.usable
    assert "triplets" in str(report)


def test_retrieval() -> None:
    rows = [{"query": "a", "document": "x"}, {"query": "a", "document": "y"}, {"query": "b", "document": "y"}]
    for form in (rows, datasets.Dataset.from_list(rows), [tuple(row.values()) for row in rows]):
        found = read_retrieval(form)
        assert (found.queries, found.corpus, found.relevant) == (["a", "b"], ["y", "x"], [{1: 1, 0: 1}, {0: 1}])
    with pytest.raises(
        DiffaugError, match=r"the data given: retrieval needs the columns query and document, found: a, b"
    ):
        read_retrieval([{"a": "x", "b": "y"}])
