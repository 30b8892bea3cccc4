"""Reading the STS tasks in all their layouts, refusing what is not them, and scoring."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_up import embed, pairs_of, sts_spec, write_senteval, write_tsv
from test_statistics import pearson_by_hand, spearman_by_hand

from diffaug.errors import DiffaugError
from diffaug.evaluation.folder import DataFolder
from diffaug.evaluation.protocol import STS, StsSpec, choose_tasks
from diffaug.evaluation.sts import StsTask, load_sts, load_sts_from_hub
from diffaug.evaluation.tasks import Embeddings

SMALL = StsSpec("STS77", {"one": 3, "two": 2}, tsv="STS77", folders=("STS77-en-test", "gold-77"))


def load(spec: StsSpec, folder: Path) -> StsTask | None:
    return load_sts(spec, DataFolder([folder]))


def test_the_seven_tasks_have_the_published_sizes() -> None:
    sizes = {spec.name: spec.rows for spec in STS}
    assert sizes == {
        "STS12": 3108,
        "STS13": 1500,
        "STS14": 3750,
        "STS15": 3000,
        "STS16": 1186,
        "STS-B": 1379,
        "SICK-R": 4927,
        "STS-B-dev": 1500,
    }
    assert choose_tasks("sts") == ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]


@pytest.mark.parametrize("name", ["STS12", "STS13", "STS14", "STS15", "STS16"])
def test_both_layouts_of_a_year_hold_the_same(name: str, tmp_path: Path) -> None:
    spec = sts_spec(name)
    write_tsv(tmp_path / "a" / "sts", spec)
    write_senteval(tmp_path / "b" / "SentEval" / "data" / "downstream", spec)
    tsv, senteval = load(spec, tmp_path / "a"), load(spec, tmp_path / "b")
    assert tsv is not None
    assert senteval == tsv
    assert list(tsv.subtasks) == list(spec.subtasks)
    for sub, pairs in tsv.subtasks.items():
        assert list(pairs) == [(first, second, score) for score, first, second in pairs_of(spec, sub)]


def test_the_organisers_names_of_2016_are_known(tmp_path: Path) -> None:
    spec = sts_spec("STS16")
    write_senteval(tmp_path, spec)
    home = tmp_path / "STS" / "STS16-en-test"
    for path in list(home.iterdir()):
        path.rename(home / path.name.replace("STS.", "STS2016."))
    home.rename(tmp_path / "STS" / "sts2016-english-with-gs-v1.0")
    assert load(spec, tmp_path) is not None


def test_the_original_files_of_stsb_and_sick(tmp_path: Path) -> None:
    stsb, sick = sts_spec("STS-B"), sts_spec("SICK-R")
    (tmp_path / "STS" / "STSBenchmark").mkdir(parents=True)
    (tmp_path / "SICK").mkdir()
    rows = pairs_of(stsb, "test")
    # Some rows of the original go on with the sources of their sentences.
    lines = [
        f"main-news\tMSRpar\t2012test\t0001\t{score}\t{a}\t{b}" + ("\thttp://x\thttp://y" if i % 7 == 0 else "")
        for i, (score, a, b) in enumerate(rows)
    ]
    (tmp_path / "STS" / "STSBenchmark" / "sts-test.csv").write_text("\n".join(lines) + "\n", "utf-8")
    sick_rows = pairs_of(sick, "test")
    lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
    lines += [f"{i}\t{a}\t{b}\t{score}\tNEUTRAL" for i, (score, a, b) in enumerate(sick_rows)]
    (tmp_path / "SICK" / "SICK_test_annotated.txt").write_text("\r\n".join(lines) + "\r\n", "utf-8")
    for spec, expected in ((stsb, rows), (sick, sick_rows)):
        task = load(spec, tmp_path)
        assert task is not None
        assert list(task.subtasks["test"]) == [(a, b, score) for score, a, b in expected]


def write_small(folder: Path, one: str, two: str = "1\ta\tb\n2\tc\td\n") -> Path:
    (folder / "STS77.one.tsv").write_bytes(one.encode())
    (folder / "STS77.two.tsv").write_bytes(two.encode())
    return folder


def test_quotation_marks_and_strange_characters_are_text(tmp_path: Path) -> None:
    rows = '\ufeff1\t"open\tno "end"\r\n2.5\tone\u2028two\u0085\t\x1cthree\n0\t a  b \tc'
    task = load(SMALL, write_small(tmp_path, rows))
    assert task is not None
    assert list(task.subtasks["one"]) == [('"open', 'no "end"', 1.0), ("one two", "three", 2.5), ("a b", "c", 0.0)]


@pytest.mark.parametrize(
    ("one", "message"),
    [
        ("1\ta\tb\n2\tc\td\n", "STS77.one.tsv: found 2 rows, but STS77 one has 3"),
        ("1\ta\tb\n" * 4, "STS77.one.tsv: found 4 rows"),
        ("1\ta\tb\n1\ta\n1\ta\tb\n", "STS77.one.tsv, line 2: expected 3 columns, found 2"),
        ("1\ta\tb\n1\ta\tb\tc\n1\ta\tb\n", "STS77.one.tsv, line 2: expected 3 columns, found 4"),
        ("1\ta\tb\nx\ta\tb\n1\ta\tb\n", "STS77.one.tsv, line 2: the score 'x' is not a number"),
    ],
)
def test_damaged_files_are_named(one: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match=message.replace(".", r"\.")):
        load(SMALL, write_small(tmp_path, one))


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    write_small(tmp_path, "")
    (tmp_path / "STS77.one.tsv").write_bytes(b"1\ta\tb\n1\tcaf\xe9\tb\n")
    with pytest.raises(DiffaugError, match=r"STS77\.one\.tsv, line 2: byte 6 \(0xe9\) is not UTF-8"):
        load(SMALL, tmp_path)


def test_a_task_that_is_not_there_is_none_and_half_a_task_is_an_error(tmp_path: Path) -> None:
    assert load(SMALL, tmp_path) is None
    write_small(tmp_path, "1\ta\tb\n" * 3)
    (tmp_path / "STS77.two.tsv").unlink()
    with pytest.raises(DiffaugError, match=r"STS77 is incomplete.*not STS77\.two\.tsv"):
        load(SMALL, tmp_path)


def test_scores_and_sentences_of_different_length_are_refused(tmp_path: Path) -> None:
    home = tmp_path / "gold-77"
    home.mkdir()
    for sub, rows in SMALL.subtasks.items():
        (home / f"STS.input.{sub}.txt").write_text("a\tb\n" * rows)
        (home / f"STS.gs.{sub}.txt").write_text("1\n" * rows)
    assert load(SMALL, tmp_path) is not None
    (home / "STS.gs.two.txt").write_text("1\n")
    with pytest.raises(DiffaugError, match=r"STS\.gs\.two\.txt has 1 lines and STS\.input\.two\.txt 2"):
        load(SMALL, tmp_path)


def test_another_edition_with_the_right_rows_is_a_warning(sts_folder: Path) -> None:
    folder = DataFolder([sts_folder])
    assert load_sts(sts_spec("STS12"), folder) is not None
    assert len(folder.warnings) == 5
    assert "STS12.MSRpar.tsv is not the published file (SHA-256 " in folder.warnings[0]
    assert len(folder.files) == 5


def test_the_three_aggregations_against_a_reference(tmp_path: Path) -> None:
    spec = StsSpec("STS78", {"a": 60, "b": 90, "c": 150}, tsv="STS78", folders=("78",))
    write_tsv(tmp_path, spec)
    task = load(spec, tmp_path)
    assert task is not None
    result = task.score(_embeddings(task))

    joined: tuple[list[float], list[float]] = ([], [])
    parts: dict[str, tuple[int, float, float]] = {}
    for sub in spec.subtasks:
        rows = pairs_of(spec, sub)
        cosines = []
        for _, a, b in rows:
            u, v = (vector.astype(np.float32).astype(float) for vector in embed([a, b]))
            cosines.append(float(np.dot(u, v) / np.sqrt(np.dot(u, u) * np.dot(v, v))))
        gold = [score for score, _, _ in rows]
        parts[sub] = len(rows), 100 * spearman_by_hand(cosines, gold), 100 * pearson_by_hand(cosines, gold)
        joined[0].extend(cosines)
        joined[1].extend(gold)
    assert result.score == pytest.approx(100 * spearman_by_hand(*joined), abs=1e-6)
    assert result.rows == 300
    assert result.details["all"]["pearson"] == pytest.approx(100 * pearson_by_hand(*joined), abs=1e-6)
    for at, measure in enumerate(("spearman", "pearson"), start=1):
        for sub, values in parts.items():
            assert result.details["subtasks"][sub][measure] == pytest.approx(values[at], abs=1e-6)
        mean = sum(values[at] for values in parts.values()) / 3
        weighted = sum(values[0] * values[at] for values in parts.values()) / 300
        assert result.details["mean"][measure] == pytest.approx(mean, abs=1e-6)
        assert result.details["wmean"][measure] == pytest.approx(weighted, abs=1e-6)
    numbers = [result.details[name]["spearman"] for name in ("all", "mean", "wmean")]
    assert len({round(number, 3) for number in numbers}) == 3, "the three would not be told apart"


def test_hub_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = sts_spec("STS13")
    rows = [
        {"sentence1": a, "sentence2": b, "score": score} for sub in spec.subtasks for score, a, b in pairs_of(spec, sub)
    ]
    asked = []

    def load_dataset(name: str, *, revision: str, split: str) -> list[dict[str, object]]:
        asked.append((name, revision, split))
        return rows

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    task = load_sts_from_hub(spec)
    assert asked == [("mteb/sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca", "test")]
    assert len(task.subtasks["all"]) == 1500
    details = task.score(_embeddings(task)).details
    assert "mean" not in details, "a source without sub-tasks has no mean over them"
    rows.pop()
    with pytest.raises(DiffaugError, match=r"mteb/sts13-sts \(test\): found 1,499 rows, but STS13 has 1,500"):
        load_sts_from_hub(spec)


def _embeddings(task: StsTask) -> Embeddings:
    sentences = list(dict.fromkeys(task.sentences()))
    return Embeddings(sentences, embed(sentences).astype(np.float32))


def test_the_hub_without_its_library_or_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DiffaugError, match=r"diffaug\[hub\]"):
        load_sts_from_hub(sts_spec("STS12"))

    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no\nroute")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=refuse))
    with pytest.raises(DiffaugError, match="could not be loaded from the hub: no route"):
        load_sts_from_hub(sts_spec("STS12"))
    with pytest.raises(DiffaugError, match="no data set with the 4,927 pairs of SICK-R"):
        load_sts_from_hub(sts_spec("SICK-R"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("stsb, sick_r", ["STS-B", "SICK-R"]),
        (["MR", "sts12"], ["STS12", "MR"]),
        ("STS-B-dev", ["STS-B-dev"]),
        ("transfer", ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]),
    ],
)
def test_tasks_are_chosen_by_any_spelling(words: str, expected: list[str]) -> None:
    assert choose_tasks(words) == expected


def test_an_unknown_task_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(DiffaugError, match=r"unknown task 'STS17'; did you mean STS1\d\?"):
        choose_tasks("STS17")
