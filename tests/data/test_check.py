"""`data check`: what is said about a file, and whether it is called usable."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from diffaug.data.check import check
from diffaug.data.columns import Kind

TRIPLETS = ["sent0,sent1,hard_neg", "A dog runs fast.,A dog runs.,A dog is asleep."]


def file(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_sentences(tmp_path: Path) -> None:
    long = " ".join(["word"] * 40)
    path = file(tmp_path, "a.txt", "One two three.", "One two three.", "Four five.", long)
    report = check(path)
    text = str(report)
    assert report.usable
    assert f"{path}: a text file\n" in text
    assert "sentences (one per line)" in text
    assert "4 usable\n" in text
    assert "median 3 words, 90th percentile 28, maximum 40" in text
    assert "25.0 % of the sentences have more than the usual 32 tokens and would be truncated" in text
    assert "1 sentences repeat an earlier one" in text
    assert "most frequent, 2 times: 'One two three.'" in text
    assert f"--set data.unlabelled={path}" in text


def test_triplets(tmp_path: Path) -> None:
    rows = ["A cat sits.,A cat sits.,A cat runs.", "It rains.,It is wet.,It is wet."]
    path = file(tmp_path, "a.csv", *TRIPLETS, *rows, rows[0])
    report = check(path)
    text = str(report)
    assert report.usable
    assert "sent0, sent1, hard_neg (from the header)" in text
    assert "triplets (by the columns sent0, sent1, hard_neg)" in text
    assert "1 rows repeat an earlier one" in text
    assert "2 positives equal their anchor" in text
    assert "1 negatives equal their positive" in text
    assert f"--set data.nli={path}" in text


def test_labelled_pairs(tmp_path: Path) -> None:
    rows = ["It rains.\tIt is wet.\tentailment", "It rains.\tIt is dry.\tcontradiction", "It rains.\tA lot.\tneutral"]
    rows += ["A dog runs.\tIt moves.\tentailment", "A dog runs.\tIt moves.\tneutral"]
    report = check(file(tmp_path, "a.tsv", *rows))
    text = str(report)
    assert report.usable
    assert "labelled pairs (no header, two columns of text and a label in column 3)" in text
    assert "entailment: 2 (40.0 %)" in text
    assert "1 pairs occur with different labels" in text
    assert "1 can be built" in text
    assert "--set data.nli=" in text


def test_labelled_pairs_without_triplets(tmp_path: Path) -> None:
    report = check(file(tmp_path, "a.csv", "premise,hypothesis,label", "a,b,1", "c,d,0"))
    assert "2 pairs: 1 same, 1 different" in str(report)
    report = check(file(tmp_path, "b.csv", "premise,hypothesis,label", "a,b,entailment", "c,d,contradiction"))
    assert report.usable
    assert "none can be built" in str(report)
    assert "stage 1; stage 2 of the supervised setting needs triplets" in str(report)
    report = check(file(tmp_path, "b.csv", "premise,hypothesis,label", "a,b,1", "c,d,1"))
    assert not report.usable
    assert "unusable: both entailments and contradictions (or pairs labelled not_entailment) are needed" in str(report)


def test_scored_pairs(tmp_path: Path) -> None:
    rows = [f"{score}\tSentence {i} here.\tOther {i} there." for i, score in enumerate(np.linspace(0, 5, 103))]
    report = check(file(tmp_path, "a.tsv", *rows, "5\tOther 0 there.\tSentence 0 here."))
    text = str(report)
    assert report.usable
    assert "scored pairs (no header, two columns of text and a number in column 1)" in text
    assert "from 0 to 5, mean 2.52" in text
    assert sum("###" in line for line in text.splitlines()) == 5
    assert "1 pairs repeat an earlier one" in text
    assert "1 pairs occur with different scores" in text
    assert "--set data.dev=" in text
    assert "--set data.test=" in text
    # 100 (1 - 0.8^2) x 1.96 x 1.03 / sqrt(104 - 3)
    assert "a score of 80 on 104 pairs: about ±7 points" in text


def test_equal_scores_are_unusable(tmp_path: Path) -> None:
    report = check(file(tmp_path, "a.tsv", "3.5\tOne here.\tTwo there.", "3.5\tThree here.\tFour there."))
    assert not report.usable
    assert "every score is 3.5" in str(report)


def test_problems_are_shown_with_their_lines(tmp_path: Path) -> None:
    rows = [f"{i % 5}\tsentence {i}\tother {i}" for i in range(20)]
    rows[3] = "x\ta\tb"
    rows[7] = "1\t\tb"
    rows[9:15] = ["oops"] * 6
    report = check(file(tmp_path, "a.tsv", *rows))
    text = str(report)
    assert report.usable
    assert "12 usable, 8 with problems" in text
    assert "8 in total: 6 wrong number of columns, 1 invalid score, 1 empty sentence" in text
    assert "line 4: the score 'x' is not a number\n" in text
    assert text.index("line 4:") < text.index("line 8:") < text.index("line 10:")
    assert "...\n" in text
    assert "--set data.on_bad=skip" in text


def test_mostly_bad_is_unusable(tmp_path: Path) -> None:
    report = check(file(tmp_path, "a.csv", "premise,hypothesis,label", "a,b,1", "a,c,9", "a,d,9"))
    assert not report.usable
    assert "looks like labelled pairs (by the columns premise, hypothesis, label)" in str(report)
    assert "but most of the first labels are unknown: '9'" in str(report)
    assert "most rows have problems" in str(report)


@pytest.mark.parametrize(
    ("name", "lines", "verdict"),
    [
        ("a.csv", ["sent0,hard_neg", "a,b"], "looks like triplets, but .* no column for positive"),
        ("a.csv", ["premise,hypothesis,tag", "a,b,c"], "looks like labelled pairs, but .* no column for label"),
        ("a.csv", ["x,y,z,w", "1,2,3,4"], "it is not clear what the columns are"),
        (
            "a.txt",
            ["1\tHello there.", "0\tGoodbye."],
            "looks like sentences, but nearly every line has 1 tab, .*rename it",
        ),
        ("a.csv", ["sent0;sent1;hard_neg", "a;b;c"], "separated by semicolons"),
        ("a.txt", [], "is empty|the line is empty"),
        ("a.bin", ["x"], "unknown format of"),
    ],
)
def test_unclear_and_unusable_files(tmp_path: Path, name: str, lines: list[str], verdict: str) -> None:
    report = check(file(tmp_path, name, *lines))
    assert not report.usable
    heading, (sentence,) = report.parts[-1]
    assert heading == "verdict"
    assert re.search(verdict, sentence), sentence


def test_a_column_called_label_may_hold_scores(tmp_path: Path) -> None:
    header = "sentence1,sentence2,label"
    assert "scored pairs" in str(check(file(tmp_path, "a.csv", header, "a,b,4.2", "c,d,1", "e,f,0")))
    assert "labelled pairs" in str(check(file(tmp_path, "b.csv", header, "a,b,entailment", "c,d,neutral")))
    unsure = str(check(file(tmp_path, "c.csv", header, "a,b,0", "a,d,2")))
    assert "looks like labelled pairs" in unsure
    assert "could be scores" in unsure


def test_a_kind_and_columns_may_be_given(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", "left,right,mark", "a,b,0", "c,d,2", "e,f,1")
    columns = {"sentence1": "left", "sentence2": "right", "score": "mark"}
    report = check(path, columns, Kind.SCORED_PAIRS)
    assert "scored pairs (by the columns left, right, mark)" in str(report)
    assert "--set data.columns.KEY.ROLE=NAME" in str(report)


def test_half_a_surrogate_pair_can_be_printed(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", *(['{"text": "half a pair \\ud83d"}'] * 3))
    report = check(path)
    assert report.usable
    str(report).encode("utf-8")
