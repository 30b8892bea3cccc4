"""`data check`: what is said about a file, and whether it is called usable."""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
import subprocess
import zipfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.data.check import DataReport, check
from diffaug.data.columns import Kind
from diffaug.data.read import read_classes, read_labelled, read_sentences, read_triplets
from diffaug.errors import DiffaugError

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
    assert "--recipe adapt-diffaug" in str(report), "it needs no triplets"
    report = check(file(tmp_path, "b.csv", "premise,hypothesis,label", "a,b,1", "c,d,1"))
    assert not report.usable
    assert "unusable: both entailments and contradictions (or pairs labelled same and pairs labelled different)" in str(
        report
    )


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
    assert "--set data.columns.dev.sentence1=left --set data.columns.dev.sentence2=right" in str(report)
    assert f"diffaug eval --model embedded --pairs {path} --column sentence1=left" in str(report)


def test_half_a_surrogate_pair_can_be_printed(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", *(['{"text": "half a pair \\ud83d"}'] * 3))
    report = check(path)
    assert report.usable
    str(report).encode("utf-8")


TICKETS = [
    ("Das Gerät startet nicht mehr", "Der Drucker ist aus und geht nicht an", "gleiches Problem"),
    ("Das Gerät startet nicht mehr", "Die Rechnung ist für mich nicht zu finden", "anderes Problem"),
    ("Ich habe keine Rechnung bekommen", "Die Rechnung für den März fehlt", "gleiches Problem"),
    ("Ich habe keine Rechnung bekommen", "Das Passwort wird nicht angenommen", "anderes Problem"),
    ("Wo ist meine Bestellung?", "Das Paket ist nicht da", "gleiches Problem"),
    ("Wo ist meine Bestellung?", "Das Bild auf dem Gerät ist unscharf", "anderes Problem"),
]


def tickets(path: Path, encoding: str = "utf-8") -> Path:
    lines = ["Nr;Ticket A;Ticket B;Urteil", *(";".join([f"T{i}", *row]) for i, row in enumerate(TICKETS))]
    path.write_bytes("\r\n".join([*lines, ""]).encode(encoding))
    return path


def typed(report: DataReport, after: str) -> list[str]:
    """The arguments of the command that a report says to type."""
    line = next(line for line in str(report).splitlines() if after in line)
    return shlex.split(line[line.index("diffaug ") :])[1:]


def test_from_a_foreign_file_to_a_run(tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Semicolons, names and labels in another language: each report says what to type next, and it works."""
    monkeypatch.chdir(tmp_path)
    first = check(str(tickets(Path("tickets.csv"))))
    assert not first.usable
    assert "a CSV file separated by semicolons" in str(first)
    arguments = typed(first, "by their content, the columns may be labelled pairs")
    assert arguments == ["data", "check", "tickets.csv", *chain.from_iterable(
        ("--column", option) for option in ("premise=Ticket A", "hypothesis=Ticket B", "label=Urteil")
    )]  # fmt: skip

    columns = {"premise": "Ticket A", "hypothesis": "Ticket B", "label": "Urteil"}
    second = typed(check("tickets.csv", columns), "say what the labels mean")
    assert second == [*arguments, "--label", "gleiches Problem=same", "--label", "anderes Problem=different"]

    runner = CliRunner()
    third = runner.invoke(app, second)
    assert third.exit_code == 0, third.output
    assert "same: 3 (50.0 %)" in third.output
    assert "the sentences seem to be German" in third.output
    command = third.output.splitlines()[-1]
    small = " ".join(f"--set {stage}.steps=1 --set {stage}.batch_size=4" for stage in ("stage1", "stage2"))
    short = f"--set model.backbone={tiny_bert} {small} -q"
    run = runner.invoke(app, shlex.split(f"{command[command.index('diffaug ') + 8 :]} {short}"))
    assert run.exit_code == 0, run.output + repr(run.exception)
    assert Path("runs/mine/best/diffaug.json").is_file()


@pytest.mark.parametrize("name", ["tickets.csv", "tickets.tsv"])
def test_a_column_of_two_values_is_never_called_sentences(tmp_path: Path, name: str) -> None:
    separator = "," if name.endswith(".csv") else "\t"
    rows = [separator.join(row) for row in (("Ticket A", "Ticket B", "Urteil"), *TICKETS)]
    report = str(check(file(tmp_path, name, *rows)))
    assert "negative" not in report
    assert "holds 2 different values, such as 'gleiches Problem', not sentences" in report


@pytest.mark.parametrize(("encoding", "words"), [("cp1252", "Windows-1252"), ("utf-16", "UTF-16")])
def test_windows_encodings_are_named(tmp_path: Path, encoding: str, words: str) -> None:
    report = str(check(tickets(tmp_path / "a.csv", encoding)))
    assert f"the file seems to be {words}" in report
    assert f"iconv -f {encoding} -t utf-8 {tmp_path / 'a.csv'} > utf8-a.csv" in report


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.xlsx"])
def test_a_workbook_is_recognised(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    report = check(tmp_path / name)
    assert not report.usable
    assert re.search("is (an Excel workbook|a spreadsheet).*; save it as 'CSV UTF-8'", str(report))


@pytest.mark.parametrize(
    ("sentences", "hint"),
    [
        (["The dog is in the park, and it is not with the man."], None),
        (["Le chien est dans le parc et il ne voit pas la pluie."], "French"),
        (["犬が公園を走っている。", "市場は月曜日に下落した。"], "another script than Latin"),
        (["Password reset", "Invoice PDF"], None),
    ],
)
def test_other_languages_are_noticed(tmp_path: Path, sentences: list[str], hint: str | None) -> None:
    report = str(check(file(tmp_path, "a.txt", *sentences * 5)))
    assert ("the sentences seem to be" in report) == (hint is not None)
    assert hint is None or hint in report


def test_semicolons_in_sentences_are_no_separators(tmp_path: Path) -> None:
    rows = ["sent0,sent1,hard_neg", "It rains; we stay.,We stay.,We go.", "A; b.,c; d.,e; f."]
    assert len(read_triplets(file(tmp_path, "a.csv", *rows))) == 2
    assert read_sentences(file(tmp_path, "b.csv", "sentence", "It rains; we stay.", "Yes; no.")) == [
        "It rains; we stay.",
        "Yes; no.",
    ]
    quoted = file(tmp_path, "c.csv", "sent0;sent1;hard_neg", '"A; b, c";"d";"e"', "1, 2;3;4")
    assert list(read_triplets(quoted)) == [("A; b, c", "d", "e"), ("1, 2", "3", "4")]


def test_a_header_is_no_class(tmp_path: Path) -> None:
    pairs = ("Ich habe das Passwort {} vergessen\tLogin", "Wo ist die Rechnung {} geblieben\tRechnung")
    rows = [pair.format(i) for i in range(6) for pair in pairs]
    report = check(file(tmp_path, "a.tsv", "Nachricht\tBereich", *rows))
    assert not report.usable
    assert "the columns may be sentences with a class; if so, type: " in str(report)
    assert "--column sentence=Nachricht --column class=Bereich" in str(report)
    assert "12 sentences of 2 classes" in str(check(file(tmp_path, "b.tsv", *rows)))
    assert "12 sentences of 2 classes" in str(check(tmp_path / "a.tsv", {"sentence": "Nachricht", "class": "Bereich"}))


INTENTS = ["lost card", "exchange_rate", "login"]


def intents(count: int = 24) -> list[tuple[str, str]]:
    return [(f"Sentence {i} is about something of mine", INTENTS[i % 3]) for i in range(count)]


def table(path: Path, *rows: tuple[object, ...], separator: str = ",") -> str:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter=separator).writerows(rows)
    return str(path)


def kind_of(report: DataReport) -> str:
    return dict(report.parts)["kind"][0]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_separators_of_csv_files(tmp_path: Path, separator: str) -> None:
    rows = [(f"{text},\nwith a {separator} and a second line", name) for text, name in intents()]
    path = table(tmp_path / "a.csv", ("text", "label"), *rows, separator=separator)
    assert list(read_classes(path)) == rows
    assert "a CSV file separated by" in str(check(path))
    content = Path(path).read_bytes()
    Path(path).write_bytes(b"sep=" + separator.encode() + b"\r\n" + content)
    assert list(read_classes(path)) == rows, "with Excel's line that names the separator"


def test_a_carriage_return_in_a_cell_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"sentence\nOne\rtwo\nThree\n")
    assert "broken quoting" in str(check(tmp_path / "a.csv"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    report = str(check(tickets(tmp_path / "a.csv", encoding)))
    assert f"is UTF-16, not UTF-8; convert it first (iconv -f {encoding} -t utf-8)" in report
    assert "a line is 'T0;Das Gerät startet nicht mehr;Der" in report, "a line by which one sees that this is right"


def test_a_json_array_is_named(tmp_path: Path) -> None:
    rows = [{"text": text, "label": name} for text, name in intents()]
    for indent in (None, 1):
        (tmp_path / "a.jsonl").write_text(json.dumps(rows, indent=indent))
        assert "is one JSON array; write one object per line instead" in str(check(tmp_path / "a.jsonl"))


def test_an_index_or_an_id_is_no_score(tmp_path: Path) -> None:
    """pandas writes its index as a first column without a name."""
    rows = [(i, *row) for i, row in enumerate(intents())]
    named = table(tmp_path / "a.csv", ("", "text", "label"), *rows)
    assert kind_of(check(named)) == "sentences with a class (by the columns text, label)"
    assert read_labelled(named) == read_classes(named)
    report = check(table(tmp_path / "b.csv", *rows))
    assert not report.usable
    assert typed(report, "may be sentences with a class")[-4:] == ["--column", "sentence=2", "--column", "class=3"]
    assert not check(table(tmp_path / "c.csv", ("", "Anfrage", "Absicht"), *rows)).usable


def test_many_classes_in_any_order_are_no_pairs(tmp_path: Path) -> None:
    """The first hundred rows of a shuffled file show most of its classes once."""
    rows = [(f"topic_{i % 70}", f"Sentence {i} is about something of mine.") for i in range(350)]
    random.Random(0).shuffle(rows)
    path = table(tmp_path / "a.tsv", *rows, separator="\t")
    assert kind_of(check(path)) == "sentences with a class (no header, text and a class in column 1)"
    assert len(set(read_classes(path).classes)) == 70
    long = [(f"the {name} that I asked about", text) for name, text in rows]
    report = check(table(tmp_path / "b.tsv", *long, separator="\t"))
    assert not report.usable
    assert "column 1 repeats few short texts" in str(report)
    headed = check(table(tmp_path / "c.tsv", ("Absicht", "Anfrage"), *rows, separator="\t"))
    assert typed(headed, "may be sentences with a class")[-3:] == ["sentence=Anfrage", "--column", "class=Absicht"]


def test_fasttext(tmp_path: Path) -> None:
    path = tmp_path / "my tickets.txt"
    rows = [(text, name.replace(" ", "_")) for text, name in intents()]
    path.write_text("".join(f"__label__{name} {text}\n" for text, name in rows))
    (line,) = (line for line in str(check(path)).splitlines() if "fastText" in line)
    subprocess.run(line.partition("type: ")[2], shell=True, check=True)
    converted = f"{path}.tsv"
    assert kind_of(check(converted)) == "sentences with a class (by the columns text, label)"
    assert list(read_classes(converted)) == rows


def test_a_header_that_is_a_question(tmp_path: Path) -> None:
    rows = [(f"First sentence {i} here", f"Second sentence {i} there", "yes" if i % 2 else "no") for i in range(30)]
    report = check(table(tmp_path / "a.csv", ("first", "second", "match?"), *rows))
    assert not report.usable
    assert typed(report, "may be labelled pairs")[-1] == "label=match?"


@pytest.mark.parametrize(
    ("header", "rows", "expected"),
    [
        # More values than two or three: a class of one sentence, not a verdict on two.
        (
            ("subject", "body", "queue"),
            [(f"Subject {i}", f"A longer text about the matter {i}", "abcd"[i % 4]) for i in range(30)],
            [("class", "body", "queue")],
        ),
        (
            ("Ticket ID", "Created", "Subject", "Description", "Priority", "Group"),
            [
                (
                    i,
                    f"2026-01-{i % 28 + 1:02}T10:00:00Z",
                    f"Subject {i}",
                    f"A text about {i}",
                    "HLN"[i % 3],
                    "abcd"[i % 4],
                )
                for i in range(30)
            ],
            [
                ("class", "Description", "Priority"),
                ("class", "Description", "Group"),
                ("label", "Subject", "Description", "Priority"),
            ],
        ),
        (
            ("subject", "body", "answer", "queue"),
            [(f"Subject {i}", f"A longer text {i} here", f"We say {i}", "abcd"[i % 4]) for i in range(30)],
            [("class", "body", "queue")],
        ),
        (
            ("句子一", "句子二", "是否相同"),
            [(f"我无法登录我的账户，订单{i}", f"我的发票在哪里呢{i}", "是否"[i % 2]) for i in range(30)],
            [("label", "句子一", "句子二", "是否相同")],
        ),
        (
            ("编号", "客户留言", "类别"),
            [(i, f"我的发票在哪里，订单{i}", ["登录", "账单"][i % 2]) for i in range(30)],
            [("class", "客户留言", "类别")],
        ),
        (
            ("Satz A", "Satz B", "Note"),
            [(f"Der erste Satz {i}", f"Der zweite Satz {i}", f"{i % 7},5") for i in range(30)],
            [("score", "Satz A", "Satz B", "Note")],
        ),
        (("Satz", "Note"), [(f"Der erste Satz {i}", i % 5) for i in range(30)], [("class", "Satz", "Note")]),
        (("Satz", "Land"), [(f"Der erste Satz {i}", "DE") for i in range(30)], [("sentence", "Satz")]),
    ],
)
def test_the_proposed_columns(
    tmp_path: Path, header: tuple[str, ...], rows: list[tuple[object, ...]], expected: list[tuple[str, ...]]
) -> None:
    report = check(table(tmp_path / "a.csv", header, *rows))
    lines = [line for line in str(report).splitlines() if "if so, type: " in line]
    found = [shlex.split(line[line.index("--column") :])[1::2] for line in lines]
    roles = {
        "class": ("sentence", "class"),
        "label": ("premise", "hypothesis", "label"),
        "score": ("sentence1", "sentence2", "score"),
        "sentence": ("sentence",),
    }
    assert found == [[f"{role}={name}" for role, name in zip(roles[k], names, strict=True)] for k, *names in expected]


def test_a_column_of_classes_beside_sentences_is_noticed(tmp_path: Path) -> None:
    rows = [(text, "high" if i % 2 else "low", name) for i, (text, name) in enumerate(intents())]
    report = check(table(tmp_path / "a.csv", ("text", "priority", "queue"), *rows))
    assert report.usable
    assert "the column queue may hold the class of each sentence; if so, type: " in str(report)
    assert typed(report, "the column priority may hold")[-1] == "class=priority"


def test_a_proposal_never_drops_the_scores(tmp_path: Path) -> None:
    rows = [(f"First {i} here", f"Second {i} there", f"{i}/5") for i in range(30)]
    report = str(check(table(tmp_path / "a.csv", ("sentence1", "sentence2", "score"), *rows)))
    assert "the score '0/5' is not a number" in report
    assert "may be" not in report


def test_the_guess_of_unknown_labels_reads_them(tmp_path: Path) -> None:
    for first, second in (("anderes Problem", "gleiches Problem"), ("不同", "相同"), ("v1.0 other", "v1.0 same")):
        rows = [(f"First {i} here", f"Second {i} there", (first, second)[i % 2]) for i in range(30)]
        path = table(tmp_path / "a.csv", ("sentence1", "sentence2", "label"), *rows)
        arguments = typed(check(path), "if this guess is right, type: ")
        assert arguments[-4:] == ["--label", f"{first}=different", "--label", f"{second}=same"]
    many = [(f"First {i} here", f"Second {i} there", f"grade {i % 5}") for i in range(30)]
    report = str(check(table(tmp_path / "b.csv", ("sentence1", "sentence2", "label"), *many)))
    assert "say what each of the 5 labels means" in report


def runs(report: DataReport, tmp_path: Path, **environment: str) -> None:
    """Run the commands that a report prints, with few steps, and check that they succeed."""
    for command in dict(report.parts)["type"]:
        words = shlex.split(command)[1:]
        if words[0] == "train":
            words[words.index("--out") + 1] = str(tmp_path / "run")
            sizes = [f"{stage}.{size}" for stage in ("stage1", "stage2") for size in ("steps=1", "batch_size=4")]
            words += ["-q", *chain.from_iterable(("--set", size) for size in sizes)]
        elif words[0] == "adapt":
            words[words.index("--out") + 1] = str(tmp_path / "adapted")
            words += ["-q", "--only", "as it is"]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{command}: {result.output}{result.exception!r}"


def test_the_printed_commands_work(tmp_path: Path) -> None:
    """Names with spaces, dots and equals signs, values that YAML reads as something else, labels that conflict."""
    rows = [*intents(), ("One sentence", "lone"), ("Two classes", INTENTS[0]), ("Two classes", INTENTS[1])]
    report = check(
        table(tmp_path / "my file: a.csv", ("my.text", "yes"), *rows), {"sentence": "my.text", "class": "yes"}
    )
    assert "1 sentences occur with different classes, for example 'Two classes': exchange_rate and lost card" in str(
        report
    )
    assert "not for diffaug adapt: the labels contradict each other: 'Two classes' is both" in str(report)
    assert len(dict(report.parts)["type"]) == 1
    runs(report, tmp_path / "a")

    pairs = [(f"First {i} here", f"Second {i} there", ("v1.0 = same", "no")[i % 2]) for i in range(30)]
    path = table(tmp_path / "b.csv", ("sentence1", "sentence2", "label"), *pairs)
    report = check(path, labels={"v1.0 = same": "same", "no": "different"})
    assert "diffaug adapt embedded" in str(report)
    runs(report, tmp_path / "b")

    path = table(tmp_path / "c.csv", ("text", "label"), *intents(), ("", INTENTS[0]))
    report = check(path)
    assert "--on-bad skip" in dict(report.parts)["type"][0]
    runs(report, tmp_path / "skipped")

    scored = [(first, second, i % 7) for i, (first, second, _) in enumerate(pairs)]
    path = table(tmp_path / "c d.csv", ("Erste", "Zweite", "Note"), *scored)
    report = check(path, {"sentence1": "Erste", "sentence2": "Zweite", "score": "Note"})
    commands = dict(report.parts)["type"]
    assert [command.split()[1] for command in commands] == ["eval", "adapt", "train"]
    runs(report, tmp_path / "c")


def test_numbers_are_classes(tmp_path: Path) -> None:
    """An empty cell makes pandas write whole numbers as decimals, and is no class itself."""
    nan = float("nan")
    rows = [{"text": f"Sentence {i}", "label": nan if i == 3 else float(i % 3)} for i in range(24)]
    assert set(read_classes(rows, on_bad="skip").classes) == {"0", "1", "2"}
    with pytest.raises(DiffaugError, match="row 4: the class is empty"):
        read_classes(rows)


def test_classes_that_training_cannot_use(tmp_path: Path) -> None:
    rows = [("One", "a"), ("Two", "a"), ("Three", "b"), ("Four", "c")]
    report = check(table(tmp_path / "a.csv", ("text", "label"), *rows))
    assert not report.usable
    assert "at least two classes with two sentences each are needed" in str(report)


def test_classes_that_differ_only_in_case_are_noticed(tmp_path: Path) -> None:
    rows = [f"Sentence number {i},{'Lost card' if i % 2 else 'lost  card'}" for i in range(20)]
    text = str(check(file(tmp_path, "a.csv", "text,label", *rows, "One more,rate", "And another,rate")))
    assert "the classes 'lost  card' and 'Lost card' differ only in case or spaces" in text


def test_many_classes_of_one_sentence_are_not_all_printed(tmp_path: Path) -> None:
    rows = [f"card,{'a very long label that was meant to be a sentence'} {i}" for i in range(50)]
    line = next(
        line for line in str(check(file(tmp_path, "a.csv", "text,label", *rows))).splitlines() if "occur" in line
    )
    assert line.endswith(" ...")
    assert len(line) < 300


@pytest.mark.parametrize("label", [["card"], ["card", "rate"], {"name": "card"}])
def test_a_list_or_an_object_is_no_class(label: object, tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"Sentence {i}", "label": label if i else "card"}) for i in range(3)]
    path = file(tmp_path, "a.jsonl", *rows)
    with pytest.raises(DiffaugError, match=r"line 2: the class is a list or an object, not a word or a number: [\[{]"):
        read_classes(path)


def test_an_object_of_json_is_not_proposed_as_text(tmp_path: Path) -> None:
    rows = [json.dumps({"data": {"text": f"A long sentence, number {i}"}, "label": f"c{i % 2}"}) for i in range(20)]
    assert "if so, type" not in str(check(file(tmp_path, "a.jsonl", *rows)))


def test_a_header_with_a_name_twice_is_no_row(tmp_path: Path) -> None:
    rows = [f"Sentence number {i},Sentence number {i},{'card' if i % 2 else 'rate'}" for i in range(20)]
    text = str(check(file(tmp_path, "a.csv", "text,text,label", *rows)))
    assert "has more than one column 'text'; rename one of them" in text
    assert "if so, type" not in text


def test_several_columns_of_negatives_are_proposed_as_triplets(tmp_path: Path) -> None:
    header, *rows = ["query,positive,negative_1,negative_2", *(f"Q {i}?,Yes {i}.,No {i}.,Never {i}." for i in range(9))]
    text = str(check(file(tmp_path, "a.csv", header, *rows)))
    assert "--column anchor=query --column positive=positive --column negative=negative_1" in text


def test_a_comma_before_three_digits_is_explained(tmp_path: Path) -> None:
    path = file(tmp_path, "a.csv", "sentence1;sentence2;score", "One two;Three four;3,500", "Five six;Seven;0,500")
    assert "the score '3,500' is not a number: it may be a thousand or a fraction, so write a decimal point" in str(
        check(path)
    )


def test_quotes_in_a_tsv_file_are_noticed(tmp_path: Path) -> None:
    rows = [(f'He said "no" {i} times', name) for i, (_, name) in enumerate(intents())]
    path = table(tmp_path / "a.tsv", ("text", "label"), *rows, separator="\t")
    hint = "some cells are in quotes, which are part of the text in a .tsv file; if they are not, rename it to .csv"
    assert hint in str(check(path))
    assert hint not in str(check(Path(path).rename(tmp_path / "a.csv")))
    assert list(read_classes(tmp_path / "a.csv")) == rows
    one = [('"Talks failed", says minister', "a"), ('"No"', "a"), *intents()]
    lines = ["text\tlabel", *("\t".join(row) for row in one)]
    assert hint not in str(check(file(tmp_path, "b.tsv", *lines)))
