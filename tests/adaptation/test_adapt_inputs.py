"""Labels that cannot decide anything: one clear sentence each, and nothing is written."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from adaptation.adapt_data import KINDS, STATEMENTS, classes, same_or_different, scored, triplets, unlabelled
from typer.testing import CliRunner

from diffaug import DiffaugError, adapt, forecast
from diffaug.adaptation.inputs import read_inputs
from diffaug.cli import app


def _one_class() -> list[dict[str, Any]]:
    return [{"text": text, "label": "news"} for text in STATEMENTS]


def _single_sentence() -> list[dict[str, Any]]:
    return [*classes(), {"text": "What is this?", "label": "question"}]


def _equal_scores() -> list[dict[str, Any]]:
    return [{**row, "score": 3.0} for row in scored()]


def _all_same() -> list[dict[str, Any]]:
    return [{**row, "label": "same"} for row in same_or_different()]


def _two_classes() -> list[dict[str, Any]]:
    return [*classes(), {"text": STATEMENTS[0].upper(), "label": "cat"}]


def _same_and_different() -> list[dict[str, Any]]:
    first = same_or_different()[0]
    swapped = {"sentence1": first["sentence2"], "sentence2": first["sentence1"], "label": "same"}
    return [*same_or_different(), swapped]


def _positive_and_negative() -> list[dict[str, Any]]:
    first = triplets()[0]
    return [*triplets(), {**first, "positive": first["negative"], "negative": "Something else."}]


BAD = {
    "ten labels": (lambda: classes()[:10], "the labels are 10 rows; at least 20 are needed"),
    "one class": (_one_class, "one class only ('news')"),
    "a class with one sentence": (_single_sentence, "1 of 9 classes of the labels have one sentence only, such as 'qu"),
    "all scores equal": (_equal_scores, "every score is 3"),
    "one kind of pairs": (_all_same, "have 40 pairs that are the same and 0 that differ; at least 5"),
    "a sentence in two classes": (_two_classes, "contradict each other: 'THE DOG IS IN THE NEWS.' is both 'dog' and"),
    "a pair same and different": (_same_and_different, "are both 'different' and 'same'"),
    "a positive that is a negative": (_positive_and_negative, "are both 'negative' and 'positive'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_labels_are_one_sentence(kind: str, tiny_bert: Path, tmp_path: Path) -> None:
    make, message = BAD[kind]
    for call in (
        lambda: adapt(tiny_bert, make(), tmp_path / "out"),
        lambda: forecast(tiny_bert, make()),
    ):
        with pytest.raises(DiffaugError) as error:
            call()
        assert message in str(error.value)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        (lambda: [{"text": f"{text} ", "label": "dog"} for text in STATEMENTS[:3]] + _fresh("dog")[3:], "3 of 20 rows"),
        (lambda: _fresh("bird"), "1 classes of the dev labels have no labels, such as 'bird'"),
        (scored, "the dev labels are scored pairs, the labels sentences with a class"),
        (lambda: _fresh("dog")[:5], "the dev labels are 5 rows"),
    ],
)
def test_bad_dev_labels(dev: Any, message: str, tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(DiffaugError) as error:
        adapt(tiny_bert, classes(), tmp_path / "out", dev=dev())
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def _fresh(name: str) -> list[dict[str, Any]]:
    return [{"text": f"New sentence {i}", "label": name if i % 2 else "cat"} for i in range(20)]


def test_dev_pairs_that_share_one_sentence_are_reported() -> None:
    lines: list[str] = []
    dev = [{**row, "sentence2": f"Sentence {i}."} for i, row in enumerate(scored())]
    read_inputs(scored(), None, dev, None, 10, 0, lines.append)
    assert lines == ["48 of 48 rows of the dev labels have a sentence that is among the labels"]


def test_text_is_drawn_from_the_whole_file_without_labelled_sentences() -> None:
    lines: list[str] = []
    text = [*STATEMENTS[:5], *unlabelled(), *unlabelled()]
    inputs = read_inputs(classes(), text, None, None, 12, 0, lines.append)
    assert len(inputs.text) == len(set(inputs.text)) == 12
    assert not set(inputs.text) & set(STATEMENTS)
    assert lines == ["12 of 48 unlabelled sentences are used, drawn at random"]
    # The file is sorted by topic; the part has sentences from everywhere.
    assert len({sentence.split()[1] for sentence in inputs.text}) >= 5


@pytest.mark.parametrize("content", ["file", "folder"])
def test_other_files_are_not_written_over(content: str, tiny_bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if content == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    with pytest.raises(DiffaugError, match="is not a folder of adapt; choose another folder"):
        adapt(tiny_bert, classes(), out)
    assert (out if content == "file" else out / "notes.txt").read_text() == "mine"


def test_unknown_candidates_are_named(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match=r"'magic' for these labels; there are 'as it is', .*, 'SimCSE, averaged', "):
        adapt(tiny_bert, scored(), tmp_path / "out", only=["magic"])
    with pytest.raises(DiffaugError, match="does not learn from scored pairs"):
        forecast(tiny_bert, scored(), candidate="As it is")


@pytest.mark.parametrize("folds", [1, 11])
def test_folds_are_from_2_to_10(folds: int, tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match=f"the number of folds must be from 2 to 10, got {folds}"):
        adapt(tiny_bert, classes(), tmp_path / "out", folds=folds)
    words = ["adapt", str(tiny_bert), "--labels", "labels.csv", "--out", str(tmp_path / "out"), "--folds", str(folds)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "--folds" in result.output
    assert not (tmp_path / "out").exists()


def test_folds_need_five_labels_each(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DiffaugError, match="48 labels are too few for 10 folds of at least 5 labels each; use at most 9"
    ):
        adapt(tiny_bert, scored(), tmp_path / "out", folds=10)
    assert not (tmp_path / "out").exists()
    result = adapt(tiny_bert, scored(), tmp_path / "out", folds=9, only=[])
    assert -100 <= result.rows[0].score <= 100  # nan is not


def test_the_command_reports_an_error_in_one_line(tiny_bert: Path, tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("text,label\none,a\ntwo,b\nthree,a\nfour,b\n")
    result = CliRunner().invoke(
        app, ["adapt", str(tiny_bert), "--labels", str(tmp_path / "few.csv"), "--out", str(tmp_path / "out")]
    )
    assert isinstance(result.exception, DiffaugError)
    assert "at least 20 are needed" in str(result.exception)


def test_every_kind_is_read() -> None:
    for make in KINDS.values():
        assert len(read_inputs(make(), None, None, None, 10, 0, print).labelled) >= 40


def test_other_names_of_labels_and_columns_and_bad_rows() -> None:
    names = {"same": "ja", "different": "nein"}
    rows = [{**row, "label": names[row["label"]]} for row in same_or_different()]
    text = [{"Nr": i, "Betreff": sentence} for i, sentence in enumerate(["One.", "Two.", " "])]
    with pytest.raises(DiffaugError, match=r"the label '(ja|nein)' is unknown"):
        read_inputs(rows, None, None, None, 10, 0, print)
    inputs = read_inputs(
        [*rows, {**rows[0], "sentence1": ""}],
        text,
        None,
        None,
        10,
        0,
        print,
        label_names={"ja": "same", "nein": "different"},
        text_column="Betreff",
        on_bad="skip",
    )
    assert len(inputs.labelled) == len(rows)
    assert inputs.text == ["One.", "Two."]


def _write(path: Path, rows: list[dict[str, Any]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.mark.parametrize("command", ["adapt", "forecast"])
def test_the_commands_read_foreign_labels_and_skip_bad_rows(command: str, tiny_bert: Path, tmp_path: Path) -> None:
    names = {"same": "Ja", "different": "Nein"}
    rows = [{**row, "label": names[row["label"]]} for row in same_or_different()]
    labels = _write(tmp_path / "labels.csv", rows)
    words = [command, str(tiny_bert), "--labels", labels]
    words += ["--out", str(tmp_path / "out"), "--only", "As It Is"] if command == "adapt" else []

    with pytest.raises(
        DiffaugError, match=r"labels.csv, line 2: the label 'Nein' is unknown.*--label LABEL=entailment"
    ):
        CliRunner().invoke(app, words, catch_exceptions=False)
    words += ["--label", "Ja=same", "--label", "Nein=different"]
    _write(tmp_path / "labels.csv", [*rows, {**rows[0], "sentence2": ""}])
    with pytest.raises(
        DiffaugError, match=r"line 42: column 'sentence2' is empty; .* skip such lines with --on-bad skip"
    ):
        CliRunner().invoke(app, words, catch_exceptions=False)
    result = CliRunner().invoke(app, [*words, "--on-bad", "skip"])
    assert result.exit_code == 0, result.output
    # The forecast learns from one of two halves.
    assert ("40 pairs: 20 same, 20 different" if command == "adapt" else " 20 labels") in result.output


@pytest.mark.parametrize("command", ["adapt", "forecast"])
def test_the_commands_read_text_of_another_column(command: str, tiny_bert: Path, tmp_path: Path) -> None:
    labels = _write(tmp_path / "labels.csv", classes())
    text = _write(tmp_path / "text.csv", [{"Nr": str(i), "Betreff": line} for i, line in enumerate(unlabelled())])
    words = [command, str(tiny_bert), "--labels", labels, "--text", text]
    words += ["--out", str(tmp_path / "out"), "--only", "label spreading"] if command == "adapt" else []
    for wrong in ([], ["--text-column", "Text"]):
        with pytest.raises(DiffaugError, match=r"are: Nr, Betreff; name the column .* --text-column") as error:
            CliRunner().invoke(app, [*words, *wrong], catch_exceptions=False)
        assert "--column" not in str(error.value)
    result = CliRunner().invoke(app, [*words, "--text-column", "Betreff"])
    assert result.exit_code == 0, result.output
    if command == "adapt":
        assert "label spreading" in result.stdout


@pytest.mark.parametrize(("name", "content"), [("a.csv", "1,One here\n2,Two here\n"), ("b.tsv", "Nr\tName\n1\tOne.\n")])
def test_no_message_on_text_recommends_the_option_of_the_labels(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DiffaugError, match="with --text-column") as error:
        read_inputs(classes(), str(tmp_path / name), None, None, 10, 0, print)
    assert "--column" not in str(error.value)


def test_lines_have_no_columns_to_name(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("One.\nTwo.\n")
    with pytest.raises(DiffaugError, match="has one sentence per line and no columns; leave out --text-column"):
        read_inputs(classes(), str(tmp_path / "raw.txt"), None, None, 10, 0, print, text_column="Betreff")
