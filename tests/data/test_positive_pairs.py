"""Pairs that belong together and no more: what is read as such, and what is not."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from diffaug.config import DataSettings
from diffaug.data.check import check
from diffaug.data.collate import Collator, collator_for
from diffaug.data.columns import Kind
from diffaug.data.corpus import Corpus
from diffaug.data.read import read_nli, read_positive_pairs
from diffaug.data.records import LabelledPairs, PositivePairs, Triplets
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError

ROWS = [("A dog runs fast.", "A quick dog."), ("Tea is hot.", "The tea is hot."), ("Rain fell.", "It rained.")]
NAMES = [
    ("sent0", "sent1"),
    ("anchor", "positive"),
    ("query", "answer"),
    ("Question", "Answer"),
    ("premise", "entailment"),
    ("sentence1", "sentence2"),
    ("text_a", "text_b"),
    ("question1", "question2"),
]


def file(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def table(folder: Path, header: str, *beside: str) -> Path:
    """A CSV file of the rows, with more cells behind them."""
    more = beside or ("",) * len(ROWS)
    return file(folder, "a.csv", header, *(",".join(row) + end for row, end in zip(ROWS, more, strict=True)))


@pytest.mark.parametrize("names", NAMES)
def test_usual_names_in_every_format(names: tuple[str, str], tmp_path: Path) -> None:
    objects = [dict(zip(names, row, strict=True)) for row in ROWS]
    sources: list[Any] = [
        table(tmp_path, ",".join(names)),
        file(tmp_path, "a.tsv", "\t".join(names), *("\t".join(row) for row in ROWS)),
        file(tmp_path, "a.jsonl", *map(json.dumps, objects)),
        objects,
    ]
    packed = tmp_path / "b.csv.gz"
    packed.write_bytes(gzip.compress(sources[0].read_bytes()))
    for source in [*sources, packed]:
        found = read_nli(source)
        assert type(found) is PositivePairs
        assert list(found) == ROWS
        assert list(read_positive_pairs(source)) == ROWS


def test_parquet_and_data_sets(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"anchor": [a for a, _ in ROWS], "positive": [b for _, b in ROWS], "id": [7, 8, 9]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert list(read_nli(tmp_path / "a.parquet")) == ROWS
    datasets = pytest.importorskip("datasets")
    assert list(read_nli(datasets.Dataset.from_dict(columns))) == ROWS


def test_without_names(tmp_path: Path) -> None:
    assert list(read_nli(ROWS)) == ROWS
    assert list(read_nli(file(tmp_path, "a.tsv", *("\t".join(row) for row in ROWS)))) == ROWS
    with pytest.raises(DiffaugError, match=r"line 1: title, body may be column names or data; set columns=.*'anchor'"):
        read_nli(table(tmp_path, "title,body"))
    with pytest.raises(DiffaugError, match="column 2 holds labels, not sentences"):
        read_positive_pairs([("A dog runs.", "entailment"), ("A cat.", "neutral")])


def test_columns_that_a_user_names(tmp_path: Path) -> None:
    path = table(tmp_path, "title,body,label", ",0", ",1", ",1")
    # Both are named by what they are: whatever else there is has been left out on purpose.
    assert list(read_nli(path, {"anchor": "title", "positive": "body"})) == ROWS
    assert list(read_nli(path, {"anchor": "body", "positive": "title"})) == [row[::-1] for row in ROWS]
    numbers = read_nli(file(tmp_path, "b.tsv", *("7\t" + "\t".join(row) for row in ROWS)), {"anchor": 2, "positive": 3})
    assert list(numbers) == ROWS
    with pytest.raises(DiffaugError, match=r"no column for negative \('rejected'\)"):
        read_nli(path, {"anchor": "title", "positive": "body", "negative": "rejected"})


@pytest.mark.parametrize(
    ("header", "cells", "what", "cure"),
    [
        (
            "sent0,sent1,label",
            ",1,0,1",
            "'label' may hold labels or scores",
            "'premise': 'sent0', 'hypothesis': 'sent1'",
        ),
        ("question1,question2,related", ",1,0,1", "'related' may hold labels", "'label': 'related'"),
        ("sentence1,sentence2,relation", ",same,other,same", "'relation' may hold labels", "'positive': 'sentence2'"),
        ("anchor,positive,agreement", ",0.9,0.1,0.5", "'agreement' may hold labels or scores", "data.columns"),
        (
            "anchor,positive,rank",
            ",1,2,2",
            "'rank' may hold labels or scores",
            "if all of them are positive pairs, columns=",
        ),
        ("query,positive,negative_1", ",No.,Never.,Not at all.", "hard negatives", "'negative': 'negative_1'"),
        ("sentence1,sentence2,hard_neg", ",No.,Never.,Not at all.", "hard negatives", "'negative': 'hard_neg'"),
    ],
)
def test_a_column_that_may_hold_labels_is_an_error(
    header: str, cells: str, what: str, cure: str, tmp_path: Path
) -> None:
    path = table(tmp_path, header, *(f",{cell}" for cell in cells[1:].split(",")))
    with pytest.raises(DiffaugError) as error:
        read_nli(path)
    assert what in str(error.value)
    assert cure in str(error.value)
    first, second, _ = header.split(",")
    named = read_nli(path, {"anchor": first, "positive": second})
    assert isinstance(named, PositivePairs)
    assert list(zip(named.anchors, named.positives, strict=True)) == ROWS
    assert not check(path).usable


def test_naming_anchor_and_positive_overrides_that_error(tmp_path: Path) -> None:
    path = table(tmp_path, "left,right,relation", ",same", ",other", ",same")
    for columns in ({"sentence1": "left", "sentence2": "right"}, {"anchor": "left", "sentence2": "right"}):
        with pytest.raises(DiffaugError, match="the column 'relation' may hold labels or scores"):
            read_nli(path, columns)
    assert list(read_nli(path, {"query": "left", "answer": "right"})) == ROWS
    rows = [(*row, word) for row, word in zip(ROWS, ("same", "other", "same"), strict=True)]
    with pytest.raises(DiffaugError, match="the column '3' may hold labels or scores, so 1 and 2 may not"):
        read_positive_pairs(rows, {"sentence1": 1, "sentence2": 2})
    assert list(read_positive_pairs(rows, {"anchor": 1, "positive": 2})) == ROWS
    with pytest.raises(DiffaugError, match="no column for anchor"):  # the second beside sent0, or the first?
        read_positive_pairs(table(tmp_path, "sent1,sent2"))


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("anchor,positive,id", ["7", "8", "9"]),
        ("anchor,positive,source", ["web", "web", "news"]),
        ("sentence1,sentence2,title", ["Dogs", "Tea", "Weather"]),
        ("sentence1,sentence2,id", ["1", "2", "3"]),
    ],
)
def test_other_columns_are_ignored(header: str, cells: list[str], tmp_path: Path) -> None:
    assert list(read_nli(table(tmp_path, header, *(f",{cell}" for cell in cells)))) == ROWS


def test_labels_and_negatives_come_first(tmp_path: Path) -> None:
    assert isinstance(read_nli(table(tmp_path, "sentence1,sentence2,label", ",1", ",0", ",1")), LabelledPairs)
    assert isinstance(read_nli(table(tmp_path, "sent0,sent1,hard_neg", ",a", ",b", ",c")), Triplets)
    # A premise and its hypothesis belong together or not: somebody has to say so.
    with pytest.raises(DiffaugError, match="no column for label"):
        read_nli(table(tmp_path, "premise,hypothesis"))


PAIR, TRIPLET = {"anchor": "a", "positive": "b"}, {"anchor": "a", "positive": "b", "negative": "c"}


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([TRIPLET, PAIR], "row 2: column 'negative' is missing"),
        ([PAIR, TRIPLET], "row 1: column 'negative' is missing"),
        ([TRIPLET] * 1500 + [PAIR], "row 1,501: column 'negative' is missing"),
        ([PAIR] * 1500 + [TRIPLET], "row 1501: the column 'negative' first occurs here"),
        ([TRIPLET, {**PAIR, "negative": ""}], "row 2: column 'negative' is empty"),
        ([("a b", "c"), ("a", "b", "c d"), ("a", "b c")], "row 2: expected 2 columns, got 3"),
        ([("a", "b", "c d"), ("a b", "c"), ("a", "b c", "d")], "row 2: expected 3 columns, got 2"),
    ],
)
def test_pairs_and_triplets_are_not_mixed(rows: list[Any], where: str) -> None:
    with pytest.raises(DiffaugError, match=f"{where}.*; all rows must be triplets, or all must be pairs"):
        read_nli(rows)


def test_more_columns_that_come_late_are_noticed_when_bad_rows_are_skipped() -> None:
    with pytest.raises(DiffaugError, match="all rows must be triplets"):
        read_nli([PAIR] * 1500 + [TRIPLET] * 5000, on_bad="skip")
    assert len(read_nli([PAIR] * 1500 + [{**PAIR, "comment": "c"}])) == 1501


def test_empty_sentences(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", "anchor,positive", "A dog.,A hound.", "A cat.,", "Tea.,Hot tea.")
    with pytest.raises(DiffaugError, match=r"line 3: column 'positive' is empty; fix the line"):
        read_nli(path)
    assert len(read_nli(path, on_bad="skip")) == 2


def test_check(tmp_path: Path) -> None:
    path = table(tmp_path, "query,answer")
    path.write_text(path.read_text("utf-8") + "Rain fell.,It rained.\nIt poured.,It rained.\nTea.,Tea.\n", "utf-8")
    report = check(path)
    text = str(report)
    assert report.usable
    for words in (
        "positive pairs (by the columns query, answer)",
        "6 usable",
        "1 rows repeat an earlier one",
        "1 anchors repeat an earlier one",
        "2 positives repeat an earlier one; in one batch they are negatives of each other",
        "1 positives equal their anchor",
        f"--set data.nli={path}   stage 1 and stage 2 of adapt-diffaug, simcse-sup and other supervised recipes",
    ):
        assert words in text
    path = table(tmp_path, "title,body")
    columns = {"anchor": "title", "positive": "body"}
    assert check(path, columns).usable
    assert check(path, columns, Kind.POSITIVE_PAIRS).usable


@pytest.fixture(scope="module")
def collator(tiny_bert: Path) -> Collator:
    embedder = Embedder.from_pretrained(tiny_bert)
    return collator_for(embedder.encoder, embedder.tokenizer)


def test_examples_of_a_run(collator: Collator, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = table(tmp_path, "anchor,positive")
    path.write_text(path.read_text("utf-8") + ",".join(ROWS[0]) + "\n", "utf-8")
    corpus = Corpus(DataSettings(nli=str(path)), collator)
    with caplog.at_level(logging.INFO):
        examples = corpus.triplets()
    assert "removed 1 duplicate pairs" in caplog.text
    expected = [tuple(collator.ids(row)[0]) for row in ROWS]
    assert examples.rows(range(len(examples))) == expected
    assert len(corpus.nli_sentences()) == 6
    assert set(corpus.positives(10)) == set(ROWS)
    assert len(corpus.related()) == 3


def test_draws_are_nested(collator: Collator, tmp_path: Path) -> None:
    lines = [f"A dog runs {i}.,An animal moves {i}." for i in range(40)]
    path = str(file(tmp_path, "a.csv", "anchor,positive", *lines))
    few, more = (Corpus(DataSettings(nli=path, labels=labels), collator).nli for labels in (5, 0.5))
    assert (len(few), len(more)) == (5, 20)
    assert set(few) < set(more)
