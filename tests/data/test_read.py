"""Typed columns: which column is what, labels, scores, and what becomes of bad rows."""

from __future__ import annotations

import logging
from pathlib import Path

import datasets
import pytest

from diffaug.data.check import check
from diffaug.data.labels import Label
from diffaug.data.problems import ProblemCount
from diffaug.data.read import read_labelled_pairs, read_nli, read_scored_pairs, read_sentences, read_triplets
from diffaug.data.records import LabelledPairs, Triplets
from diffaug.errors import DiffaugError


def file(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "header",
    [
        "sent0,sent1,hard_neg",
        "anchor,positive,negative",
        "Premise,Entailment,Contradiction",
        " query , pos , hard-neg ",
    ],
)
def test_triplets_by_any_usual_names_in_any_order(tmp_path: Path, header: str) -> None:
    path = file(tmp_path, "a.csv", header, "A dog runs.,An animal runs.,A dog sleeps.")
    assert list(read_triplets(path)) == [("A dog runs.", "An animal runs.", "A dog sleeps.")]
    names = header.split(",")
    path = file(
        tmp_path, "b.csv", f"id,{names[2]},{names[0]},{names[1]}", "1,A dog sleeps.,A dog runs.,An animal runs."
    )
    assert list(read_triplets(path)) == [("A dog runs.", "An animal runs.", "A dog sleeps.")]


def test_a_users_mapping_comes_first(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "text\tbody\t2", "one\ttwo\tthree")
    assert read_sentences(path) == ["one"]
    assert read_sentences(path, {"sentence": "body"}) == ["two"]
    assert read_sentences(path, {"text": "BODY"}) == ["two"]
    # A name that is a number is a name where there is such a column, and a place elsewhere.
    assert read_sentences(path, {"sentence": "2"}) == ["three"]
    assert read_sentences(path, {"sentence": 2}) == ["body", "two"]
    with pytest.raises(
        DiffaugError, match=r"a\.tsv, line 1: no column for sentence \('title'\).*the columns are: text, body, 2"
    ):
        read_sentences(path, {"sentence": "title"})
    with pytest.raises(DiffaugError, match="sentences have no column 'score'; their columns are sentence"):
        read_sentences(path, {"score": "2"})


def test_column_numbers_for_files_without_header(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "news\t2012\t7\t3.5\tA man eats.\tA man is eating.")
    numbers = {"score": 4, "sentence1": 5, "sentence2": "6"}
    assert list(read_scored_pairs(path, numbers)) == [("A man eats.", "A man is eating.", 3.5)]
    with pytest.raises(DiffaugError, match=r"has no column 7; its columns are 1 to 6"):
        read_scored_pairs(path, {**numbers, "score": 7})
    with pytest.raises(DiffaugError, match="not for score"):
        read_scored_pairs(path, {"sentence1": 5, "sentence2": 6})
    with pytest.raises(
        DiffaugError, match=r"has 6 columns without names, .*number them as in columns=\{'sentence1': 1"
    ):
        read_scored_pairs(path)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
def test_scored_pairs_without_header_wherever_the_score_stands(tmp_path: Path, order: tuple[int, int, int]) -> None:
    rows = [("3.25", "A man eats.", "A man is eating."), ("0", "Rain fell.", "The bank closed."), ("5", "2", "two")]
    lines = ["\t".join(row[i] for i in order) for row in rows]
    pairs = read_scored_pairs(file(tmp_path, "a.tsv", *lines))
    assert list(pairs) == [
        ("A man eats.", "A man is eating.", 3.25),
        ("Rain fell.", "The bank closed.", 0),
        ("2", "two", 5),
    ]


def test_labelled_pairs_without_header(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "A man eats.\tA man.\tentailment", "A man eats.\tA cat.\tcontradiction")
    assert list(read_labelled_pairs(path)) == [
        ("A man eats.", "A man.", Label.ENTAILMENT),
        ("A man eats.", "A cat.", Label.CONTRADICTION),
    ]
    assert isinstance(read_nli(path), LabelledPairs)


def test_a_possible_header_with_unknown_names_is_an_error(tmp_path: Path) -> None:
    rows = ["A dog runs fast.,An animal runs.,The dog is asleep.", "It rained all day.,It was wet.,It was dry all day."]
    path = file(tmp_path, "a.csv", "first,second,third", *rows)
    with pytest.raises(DiffaugError, match=r"line 1: first, second, third may be column names or data"):
        read_triplets(path)
    assert len(read_triplets(path, {"anchor": "first", "positive": "second", "negative": "third"})) == 2
    assert len(read_triplets(path, {"anchor": 1, "positive": 2, "negative": 3})) == 3
    assert len(read_triplets(file(tmp_path, "b.csv", *rows))) == 2
    # Single words throughout are data: nothing sets the first row apart.
    assert len(read_triplets(file(tmp_path, "c.csv", "cat,feline,dog", "big,large,small", "hot,warm,cold"))) == 3
    path = file(tmp_path, "d.csv", "comments", "This is quite a long sentence.", "And so is this one.")
    with pytest.raises(DiffaugError, match="comments may be column names or data"):
        read_sentences(path)
    path = file(tmp_path, "e.tsv", "left\tright\trating", "A man eats.\tHe eats.\t4.5", "Rain.\tSun.\t1")
    with pytest.raises(DiffaugError, match=r"line 1: no column for sentence1 .*the columns are: left, right, rating"):
        read_scored_pairs(path)


@pytest.mark.parametrize(
    ("name", "lines", "hint"),
    [
        ("a.tsv", ["sent0;sent1;hard_neg", "a;b;c"], r"separated by semicolons, not by tabs: rename it to \.csv"),
        ("a.tsv", ["sent0,sent1,hard_neg", "a,b,c"], r"separated by commas, not by tabs: rename it to \.csv"),
        ("a.txt", ["sent0,sent1,hard_neg", "a,b,c"], r"a \.txt file with one sentence per line; triplets need a \.tsv"),
        ("a.csv", ["sent0,sent1", "a,b"], r"no column for negative \(hard_neg or negative or contradiction\)"),
        (
            "a.jsonl",
            ['{"sent0": "a"}'],
            r"no column for positive .*, negative .*the columns are: sent0; rename a column",
        ),
        ("a.csv", ["sent0,sent0,sent1,hard_neg", "a,b,c,d"], "more than one column 'sent0'"),
    ],
)
def test_missing_columns_errors_list_the_columns(tmp_path: Path, name: str, lines: list[str], hint: str) -> None:
    with pytest.raises(DiffaugError, match=hint):
        read_triplets(file(tmp_path, name, *lines))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["entailment", "Neutral ", "CONTRADICTION"], [Label.ENTAILMENT, Label.NEUTRAL, Label.CONTRADICTION]),
        (["0", "1", "2"], [Label.ENTAILMENT, Label.NEUTRAL, Label.CONTRADICTION]),
        (["1", "0", "1"], [Label.ENTAILMENT, Label.NOT_ENTAILMENT, Label.ENTAILMENT]),
        (["entailment", "not entailment", "non-entailment"], [Label.ENTAILMENT, *[Label.NOT_ENTAILMENT] * 2]),
        ([0, 1.0, 2], [Label.ENTAILMENT, Label.NEUTRAL, Label.CONTRADICTION]),
        ([True, False, True], [Label.ENTAILMENT, Label.NOT_ENTAILMENT, Label.ENTAILMENT]),
    ],
)
def test_labels_as_files_write_them(written: list[object], meant: list[Label]) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in written]
    assert read_labelled_pairs(rows).labels == meant


def test_labels_by_a_users_mapping() -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, "1", "maybe")]
    names = {0: "entailment", "1": "not_entailment"}
    problems = ProblemCount()
    assert read_labelled_pairs(rows, labels=names, on_bad=problems).binary() == [1, 0]
    assert "the label 'maybe' is unknown; known are 0, 1" in str(problems.first[0])
    with pytest.raises(DiffaugError, match="the label 0 cannot mean 'perhaps'"):
        read_labelled_pairs(rows, labels={0: "perhaps"})


@pytest.mark.parametrize("label", ["", "3", "-2", "entailmant", None, 1.5, "1.5"])
def test_unknown_labels(label: object) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": value} for value in (0, 1, label)]
    with pytest.raises(DiffaugError, match=r"the data given, row 3: the label .* is unknown; known are entailment"):
        read_labelled_pairs(rows)
    assert len(read_labelled_pairs(rows, on_bad="skip")) == 2


def test_words_and_numbers_do_not_mix() -> None:
    rows = [("a", "b", "entailment"), ("a", "c", "0")]
    with pytest.raises(DiffaugError, match="row 2: the label '0' mixes words and numbers"):
        read_labelled_pairs(rows)


@pytest.mark.parametrize(
    "score", ["nan", "inf", "-Infinity", "four", "1,234", "3,5,1", "1_0", "", None, True, float("nan")]
)
def test_scores_that_are_no_numbers(score: object) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": value} for value in (1, "2.5", score)]
    with pytest.raises(DiffaugError, match=r"the data given, row 3: the score .* is not a number"):
        read_scored_pairs(rows)
    assert read_scored_pairs(rows, on_bad="skip").scores == [1.0, 2.5]


def test_decimal_commas(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", "sentence1;sentence2;score", "a;b;3,5", "c;d;0,125", "e;f;-1,5", "g;h;4")
    assert read_scored_pairs(path).scores == [3.5, 0.125, -1.5, 4.0]


def test_skipped_rows_are_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = file(tmp_path, "a.tsv", "1\ta\tb", "2\t \tb", "x\ta\tb", "3\ta", "4\tc\td", "y\ta\tb")
    with caplog.at_level(logging.WARNING, "diffaug.data"):
        assert read_scored_pairs(path, on_bad="skip").scores == [1.0, 4.0]
    assert "skipped 4 of 6 rows with problems (2 invalid score, 1 empty sentence, 1 wrong number" in caplog.text
    assert "line 2: column 2 is empty" in caplog.text
    problems = ProblemCount()
    caplog.clear()
    read_scored_pairs(path, on_bad=problems)
    assert len(problems) == 4
    assert [problem.number for problem in problems.first] == [2, 3, 4, 6]
    assert not caplog.records


def test_nothing_usable_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\n\xff\n")
    with pytest.raises(DiffaugError, match=r"has no usable row \(2 not UTF-8\); the first problem: .*line 1"):
        read_sentences(path, on_bad="skip")
    with pytest.raises(DiffaugError, match=r"has no usable row \(2 unknown label\)"):
        read_labelled_pairs([{"premise": "a", "hypothesis": "b", "label": "?"}] * 2, on_bad="skip")


def test_an_unknown_on_bad_is_refused() -> None:
    with pytest.raises(DiffaugError, match="on_bad must be 'error', 'skip' or a function, got 'ignore'"):
        read_sentences(["a"], on_bad="ignore")  # type: ignore[arg-type]


def test_read_nli_of_each_kind_and_of_none(tmp_path: Path) -> None:
    assert isinstance(read_nli([{"sent0": "a", "sent1": "b", "hard_neg": "c"}]), Triplets)
    assert isinstance(read_nli([{"premise": "a", "hypothesis": "b", "label": 1}]), LabelledPairs)
    columns = {"premise": "x", "hypothesis": "y", "label": "z"}
    assert isinstance(read_nli([{"x": "a", "y": "b", "z": 1}], columns), LabelledPairs)
    nothing = r"holds no labels that are recognised \(diffaug data check proposes columns\)"
    with pytest.raises(DiffaugError, match=f"{nothing}; as triplets: .*; as labelled pairs: "):
        read_nli([{"premise": "Hello there.", "author": "me", "year": 1999}], {"label": "mood", "negative": "tone"})
    # Two columns of three are there: what triplets would need is beside the point.
    with pytest.raises(DiffaugError, match=f"{nothing}; as labelled pairs: .*no column for label"):
        read_nli(file(tmp_path, "b.csv", "premise,hypothesis", "A dog.,A hound."))
    with pytest.raises(DiffaugError, match=f"{nothing}; as triplets: .*no column for positive"):
        read_nli(file(tmp_path, "c.csv", "anchor,negative", "A dog.,A cat."))
    # Nothing is known, and pairs have the fewest columns.
    with pytest.raises(DiffaugError, match=f"{nothing}; as positive pairs: .*no column for anchor"):
        read_nli(file(tmp_path, "a.csv", "text,author", "Hello there.,me"))


def test_errors_after_the_inspected_rows(tmp_path: Path) -> None:
    lines = [f"{i % 6}\tsentence {i}\tother {i}" for i in range(500)]
    path = file(tmp_path, "a.tsv", *lines, "not a score\ta\tb")
    with pytest.raises(DiffaugError, match=r"a\.tsv, line 501: the score 'not a score' is not a number"):
        read_scored_pairs(path)
    assert read_scored_pairs(path, on_bad="skip").scores == [i % 6 for i in range(500)]


@pytest.mark.parametrize(
    ("column", "labels", "binary", "guess"),
    [
        ("label", [0, 1], [0, 1], True),
        ("label", [0, 1, -1], [1, 0], False),  # SNLI on the hub without contradictions: 0 is entailment, 1 neutral
        ("label", [0, 1, "-"], [1, 0], False),
        ("label", [0, 1, 2], [1, 0, 0], False),
        ("is_entailment", [0, 1], [0, 1], False),
        ("label", ["entailment", "neutral"], [1, 0], False),
        ("label", [True, False], [1, 0], False),
    ],
)
def test_the_meaning_of_two_labels_is_read_or_said_to_be_a_guess(
    column: str, labels: list[object], binary: list[int], guess: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"premise": f"a {i}", "hypothesis": f"b {i}", column: label} for i, label in enumerate(labels)]
    assert read_labelled_pairs(rows, {"label": column}).binary() == binary
    said = "the labels 0 and 1 are read 0 as not_entailment and 1 as entailment, which is a guess" in caplog.text
    assert said == guess
    caplog.clear()
    names = {0: "entailment", 1: "neutral", 2: "contradiction"}
    if guess:
        assert "--set data.label_names.0=entailment" in str(check(rows, {"label": column}))
        assert read_labelled_pairs(rows, labels=names).binary() == [1, 0]
        assert "guess" not in caplog.text


def test_a_parquet_file_of_datasets_says_what_its_labels_mean(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    meaning = datasets.ClassLabel(names=["entailment", "neutral", "contradiction"])
    rows = [{"premise": "a", "hypothesis": "b", "label": 0}, {"premise": "a", "hypothesis": "c", "label": 1}]
    datasets.Dataset.from_list(rows).cast_column("label", meaning).to_parquet(tmp_path / "snli.parquet")
    pairs = read_labelled_pairs(tmp_path / "snli.parquet")
    assert [label.value for label in pairs.labels] == ["entailment", "neutral"]
    assert "guess" not in caplog.text
