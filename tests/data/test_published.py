"""Public data as it is published: read as it is, skipped rows counted, several files joined."""

from __future__ import annotations

import csv
import gzip
import logging
import shlex
from pathlib import Path
from typing import Any

import datasets
import pytest
from published_data import (
    MULTINLI,
    SNLI,
    STSB_ROWS,
    Pair,
    nli_jsonl,
    nli_text,
    write_all_nli,
    write_stsb,
)

from diffaug.config import DataSettings, load_recipe
from diffaug.data.cache import DataCache
from diffaug.data.check import check
from diffaug.data.collate import Collator, collator_for
from diffaug.data.corpus import Corpus
from diffaug.data.problems import ProblemCount
from diffaug.data.read import read_labelled_pairs, read_nli, read_scored_pairs, read_sentences
from diffaug.data.records import LabelledPairs, PositivePairs
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.evaluation import evaluate
from diffaug.training.preflight import check_start


@pytest.fixture(scope="module")
def collator(tiny_bert: Path) -> Collator:
    embedder = Embedder.from_pretrained(tiny_bert)
    return collator_for(embedder.encoder, embedder.tokenizer)


def with_gold(pairs: list[Pair]) -> list[Pair]:
    return [pair for pair in pairs if pair[2] != "-"]


def plain(pairs: PositivePairs | LabelledPairs) -> list[tuple[Any, ...]]:
    assert isinstance(pairs, LabelledPairs)
    return [(premise, hypothesis, label.value) for premise, hypothesis, label in pairs]


@pytest.mark.parametrize("name", ["sts-dev.csv", "dev.tsv", "my dev pairs.txt", "sts-dev.csv.gz"])
def test_sts_benchmark_is_recognised_by_its_content(name: str, tmp_path: Path) -> None:
    path = write_stsb(tmp_path / name)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    pairs = read_scored_pairs(path)
    assert list(pairs) == [(row[5], row[6], float(row[4])) for row in rows]
    assert list(read_scored_pairs(path, {"score": 5, "sentence1": 6, "sentence2": 7})) == list(pairs)
    report = check(path)
    assert report.usable
    assert f"--set {shlex.quote(f'data.dev={path}')}" in str(report)
    assert "in the form of the STS Benchmark" in str(report)
    assert "4 usable\n" in str(report)


def test_sts_benchmark_serves_as_dev_test_and_own_pairs(collator: Collator, tmp_path: Path) -> None:
    path = str(write_stsb(tmp_path / "sts-dev.csv"))
    recipe = load_recipe("quickstart", [f"data.dev={path}", f"data.test={path}"])
    check_start(recipe, tmp_path / "run", resume=False)
    corpus = Corpus(recipe.data, collator)
    for pairs in (corpus.dev(), corpus.test()):
        assert pairs is not None
        assert pairs.scores == [5.0, 0.5, 2.6, 1.0]
    report = evaluate(lambda sentences: [[len(text), 1.0] for text in sentences], pairs=path, resamples=0)
    assert list(report.scores) == ["sts-dev"]


def test_bad_rows_of_sts_benchmark_are_named_by_line(tmp_path: Path) -> None:
    bad = ("main-news", "x", "2013", "1", "n/a", "One.", "Two.")
    path = write_stsb(tmp_path / "sts-dev.csv", [*STSB_ROWS * 20, bad])
    with pytest.raises(DiffaugError, match=r"sts-dev\.csv, line 81: the score 'n/a' is not a number"):
        read_scored_pairs(path)
    path = write_stsb(tmp_path / "sts-dev.csv", [*STSB_ROWS * 20, ("main-news", "x", "2013", "1", "3", "One.")])
    with pytest.raises(DiffaugError, match=r"line 81: column 'sentence2' is missing"):
        read_scored_pairs(path)
    assert len(read_scored_pairs(path, on_bad="skip")) == 80


def test_sts_benchmark_is_not_recognised_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "sts-dev.csv"
    path.write_text('sentence1,sentence2,score\n"One, two",Three,4.5\nFour,Five,1\n', "utf-8")
    assert list(read_scored_pairs(path)) == [("One, two", "Three", 4.5), ("Four", "Five", 1.0)]
    # Column 5 is no score of similarity, or the sentences are not where they should be: nothing is guessed.
    for cells in (["2012", "Some.", "Other."], ["3.5", "4.5", "Other."]):
        path = tmp_path / "own.tsv"
        path.write_text("\n".join("\t".join(["a", "b", "c", "d", *cells]) for _ in range(5)), "utf-8")
        with pytest.raises(DiffaugError, match="has 7 columns without names"):
            read_scored_pairs(path)


@pytest.mark.parametrize("name", ["snli", "multinli"])
@pytest.mark.parametrize("ending", [".jsonl", ".txt", ".tsv", ".txt.gz"])
def test_snli_and_multinli_as_published(
    name: str, ending: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = {"snli": SNLI, "multinli": MULTINLI}[name]
    content = (nli_jsonl if ending == ".jsonl" else nli_text)(name, pairs).encode()
    path = tmp_path / f"{name}_1.0_train{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith(".gz") else content)
    with caplog.at_level(logging.WARNING, "diffaug.data"):
        assert plain(read_nli(path)) == with_gold(pairs)
    counted = "skipped 1 of 5 rows (1 without a gold label)" in caplog.text
    assert counted == (name == "snli")
    report = check(path)
    assert report.usable
    assert "labelled pairs (by the columns sentence1, sentence2, gold_label)" in str(report)
    rows = "4 usable, 1 skipped (1 without a gold label)\n" if name == "snli" else "3 usable\n"
    assert rows in str(report)


def test_rows_of_the_text_form_may_lack_annotators_but_not_sentences(tmp_path: Path) -> None:
    header, *rows = nli_text("snli", SNLI).splitlines()
    path = tmp_path / "snli_1.0_train.txt"
    path.write_text("\n".join([header, *(row.rstrip("\t") for row in rows)]), "utf-8")
    assert plain(read_nli(path)) == with_gold(SNLI)
    path.write_text("\n".join([header, rows[0].replace("A dog runs.", "A dog\truns.")]), "utf-8")
    with pytest.raises(DiffaugError, match="line 2: expected 14 columns, got 17; a sentence must not contain a tab"):
        read_nli(path)
    path.write_text("\n".join([header, "\t".join(rows[0].split("\t")[:6])]), "utf-8")
    with pytest.raises(DiffaugError, match="line 2: column 'sentence2' is missing"):
        read_nli(path)


@pytest.mark.parametrize("unknown", ["-", -1, "-1", -1.0])
def test_rows_without_a_gold_label_are_skipped(unknown: object) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, unknown, 2)]
    problems = ProblemCount()
    assert len(read_labelled_pairs(rows, on_bad=problems)) == 2
    assert not problems
    assert len(read_labelled_pairs(rows, labels={0: "entailment", 2: "contradiction"})) == 2
    # Who gives it a meaning has said what it is.
    given = {0: "entailment", 2: "contradiction", str(unknown).removesuffix(".0"): "neutral"}
    assert len(read_labelled_pairs(rows, labels=given)) == 3
    with pytest.raises(DiffaugError, match=r"has no usable row \(2 without a gold label\)"):
        read_labelled_pairs(rows[1:2] * 2)


def test_data_sets_of_the_hub_and_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {"entailment": 0, "neutral": 1, "contradiction": 2, "-": -1}
    rows = [{"premise": a, "hypothesis": b, "label": codes[label]} for a, b, label in SNLI]
    meaning = datasets.ClassLabel(names=["entailment", "neutral", "contradiction"])
    data = datasets.Dataset.from_list(rows).cast_column("label", meaning)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: data)
    assert plain(read_nli("hub:stanfordnlp/snli")) == with_gold(SNLI)
    pytest.importorskip("pyarrow.parquet")
    data.to_parquet(tmp_path / "train.parquet")
    assert plain(read_nli(tmp_path / "train.parquet")) == with_gold(SNLI)
    assert "4 usable, 1 skipped (1 without a gold label)" in str(check(tmp_path / "train.parquet"))
    # With these names the numbers could be scores, if it were not for what -1 means.
    names = {"premise": "sentence1", "hypothesis": "sentence2"}
    renamed = [{names.get(key, key): value for key, value in row.items()} for row in rows]
    assert "looks like labelled pairs" in str(check(renamed))


def test_only_the_train_split_of_all_nli_is_read(tmp_path: Path) -> None:
    path = write_all_nli(tmp_path / "AllNLI.tsv.gz")
    assert plain(read_nli(path)) == with_gold(SNLI + MULTINLI)
    assert "7 usable, 2 skipped (2 not in split train)" in str(check(path))
    # A column of that name in a file of one's own says nothing.
    own = tmp_path / "own.tsv"
    own.write_text("split\tpremise\thypothesis\tlabel\nfirst\ta\tb\tentailment\nhalf\ta\tc\tneutral\n", "utf-8")
    assert len(read_nli(own)) == 2


def test_stsbenchmark_with_all_splits(collator: Collator, tmp_path: Path) -> None:
    lines = ["split\tgenre\tdataset\tyear\tsid\tscore\tsentence1\tsentence2"]
    for split, scores in (("train", (1, 2)), ("dev", (0, 3, 5)), ("test", (4, 2))):
        lines += [f"{split}\tnews\tx\t2013\t1\t{score}\tOne {score}.\tTwo." for score in scores]
    path = tmp_path / "stsbenchmark.tsv"
    path.write_text("\n".join(lines), "utf-8")
    corpus = Corpus(DataSettings(dev=str(path), test=str(path)), collator, cache=DataCache())
    dev, test = corpus.dev(), corpus.test()
    assert dev is not None
    assert test is not None
    assert (dev.scores, test.scores) == ([0, 3, 5], [4, 2])
    assert len(read_scored_pairs(path)) == 7
    assert "data.dev reads the rows of the split dev, data.test those of the split test" in str(check(path))


def test_several_files_are_joined(collator: Collator, tmp_path: Path) -> None:
    snli, multinli = tmp_path / "snli_1.0_train.jsonl", tmp_path / "multinli_1.0_train.txt"
    snli.write_text(nli_jsonl("snli", SNLI), "utf-8")
    multinli.write_text(nli_text("multinli", MULTINLI), "utf-8")
    recipe = load_recipe("diffaug-sup", [f"data.nli=[{snli}, {multinli}]"])
    check_start(recipe, tmp_path / "run", resume=False)
    cache = DataCache()
    corpus = Corpus(recipe.data, collator, cache=cache)
    assert plain(corpus.nli) == with_gold(SNLI + MULTINLI)
    # A premise meets its contradiction from another file.
    assert len(corpus.triplets()) == 3
    assert Corpus(recipe.data, collator, cache=cache).nli is corpus.nli
    single = Corpus(DataSettings(nli=str(snli)), collator, cache=cache)
    assert plain(single.nli) == with_gold(SNLI)
    assert len(single.triplets()) == 1
    multinli.write_text(nli_text("multinli", MULTINLI[:1]), "utf-8")
    assert len(Corpus(recipe.data, collator, cache=cache).nli) == 5


def test_columns_and_labels_apply_to_all_files(collator: Collator, tmp_path: Path) -> None:
    files = []
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f"x,y,z\nOne {name},Two,same\nOne {name},Three,other\n", "utf-8")
        files.append(str(tmp_path / name))
    settings = DataSettings(
        nli=files,
        columns={"nli": {"premise": "x", "hypothesis": "y", "label": "z"}},
        label_names={"same": "entailment", "other": "contradiction"},
        labels=3,
    )
    assert len(Corpus(settings, collator).nli) == 3


def test_files_of_different_kinds_are_not_joined(collator: Collator, tmp_path: Path) -> None:
    pairs = tmp_path / "snli.jsonl"
    pairs.write_text(nli_jsonl("snli", SNLI), "utf-8")
    with pytest.raises(DiffaugError, match=r"sample:triplets and .*snli\.jsonl holds triplets and labelled pairs"):
        Corpus(DataSettings(nli=["sample:triplets", str(pairs)]), collator).nli  # noqa: B018
    with pytest.raises(DiffaugError, match=r"data\.nli is an empty list"):
        load_recipe("diffaug-sup", ["data.nli=[]"])
    with pytest.raises(DiffaugError, match=r"there is no file .*none\.csv"):
        check_start(load_recipe("diffaug-sup", [f"data.nli=[{pairs}, none.csv]"]), tmp_path / "run", resume=False)


def test_empty_lines_of_plain_text_are_skipped_and_counted(
    collator: Collator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"One {name}.\n\n  \nTwo {name}.\n\n", "utf-8")
    problems = ProblemCount()
    with caplog.at_level(logging.WARNING, "diffaug.data"):
        assert read_sentences(tmp_path / "a.txt") == ["One a.txt.", "Two a.txt."]
        assert "skipped 2 of 4 rows (2 empty line)" in caplog.text
        assert len(read_sentences(tmp_path / "a.txt", on_bad=problems)) == 2
    assert not problems
    assert "2 usable, 2 skipped (2 empty line)" in str(check(tmp_path / "a.txt"))
    corpus = Corpus(DataSettings(unlabelled=[str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]), collator)
    assert len(corpus.sentences()) == 4
