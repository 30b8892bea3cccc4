from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from diffaug.cli import main
from diffaug.embedder import Embedder

LINES = [
    "A dog runs through the park.",
    "",
    "  Überraschung! 🎉  ",
    "A dog runs through the park.",
    "last, without end",
]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_bert: Path) -> Run:
    """Run the command line in this process, with the tiny model unless another is named."""

    def run(*arguments: str | Path, stdin: bytes = b"", model: str | Path | None = tiny_bert) -> Result:
        chosen = [] if model is None else ["--model", str(model)]
        command, *rest = map(str, arguments)
        monkeypatch.setattr(sys, "argv", ["diffaug", command, *chosen, *rest])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Result(0 if code is None else int(code), *capsys.readouterr())

    return run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def expected(tiny_bert: Path) -> np.ndarray:
    return Embedder.from_pretrained(tiny_bert).encode(LINES)


def test_encode_to_npy(run: Run, text: Path, tmp_path: Path, expected: np.ndarray) -> None:
    result = run("encode", text, "--out", tmp_path / "v.npy")
    assert result == (0, "", f"5 vectors of width 32 -> {tmp_path / 'v.npy'}\n")
    vectors = np.load(tmp_path / "v.npy", allow_pickle=False)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentences.txt", "v.npy", "v.npy.manifest"]


def test_encode_to_parquet(run: Run, text: Path, tmp_path: Path, expected: np.ndarray) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run("encode", text, "--out", tmp_path / "v.parquet").code == 0
    table = parquet.read_table(tmp_path / "v.parquet")
    assert table.column("sentence").to_pylist() == LINES
    np.testing.assert_array_equal(np.array(table.column("embedding").to_pylist(), dtype=np.float32), expected)


def assert_json_lines(text: str, expected: np.ndarray) -> None:
    records = [json.loads(line) for line in text.splitlines()]
    assert [record["sentence"] for record in records] == LINES
    # Not one bit is lost on the way.
    np.testing.assert_array_equal(np.array([r["embedding"] for r in records], dtype=np.float32), expected)


def test_encode_to_jsonl(run: Run, text: Path, tmp_path: Path, expected: np.ndarray) -> None:
    assert run("encode", text, "--out", tmp_path / "v.jsonl").code == 0
    assert_json_lines((tmp_path / "v.jsonl").read_text("utf-8"), expected)


def test_encode_through_pipes(run: Run, expected: np.ndarray) -> None:
    for arguments in (["encode"], ["encode", "-", "--out", "-"]):
        result = run(*arguments, stdin="\n".join(LINES).encode())
        assert (result.code, result.err) == (0, "")
        assert_json_lines(result.out, expected)


def test_encode_options(run: Run, text: Path, tmp_path: Path, tiny_bert: Path) -> None:
    options = ["--no-normalize", "--batch-size", "2", "--device", "cpu"]
    assert run("encode", text, "-o", tmp_path / "v.npy", *options).code == 0
    expected = Embedder.from_pretrained(tiny_bert).encode(LINES, 2, normalize=False)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", 0),
        (b"\n", 1),
        (b"one", 1),
        (b"one\n", 1),
        (b"one\r\ntwo\r\n", 2),
        (b"one\n\ntwo\n\n", 4),
        ("one\u2028still one\x0band\x85still".encode(), 1),
    ],
)
@pytest.mark.parametrize("ending", ["npy", "jsonl", "parquet"])
def test_a_row_for_every_line(run: Run, tmp_path: Path, content: bytes, lines: int, ending: str) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    result = run("encode", tmp_path / "t.txt", "-o", tmp_path / f"v.{ending}")
    assert result.code == 0
    assert result.err.startswith(f"{lines} vectors of width 32")


def test_line_ends_and_byte_order_marks_do_not_matter(run: Run) -> None:
    plain = run("encode", stdin="é\nzwei\n".encode()).out
    assert plain == run("encode", stdin="é\r\nzwei\r\n".encode()).out
    assert plain == run("encode", stdin=b"\xef\xbb\xbf" + "é\nzwei".encode()).out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", ", line 1: byte 1 (0xff) is not UTF-8; convert the file (iconv -t utf-8)"),
        (b"one\ntwo\nthr\xe9e\n", ", line 3: byte 4 (0xe9) is not UTF-8; convert the file (iconv -t utf-8)"),
        (b"\xef\xbb\xbfab\n\xff", ", line 2: byte 1 (0xff) is not UTF-8; convert the file (iconv -t utf-8)"),
        ("one".encode("utf-16"), " is UTF-16, not UTF-8; convert it first (iconv -f utf-16 -t utf-8)"),
        (b"cut \xc3", ", line 1: byte 5 (0xc3) is not UTF-8; convert the file (iconv -t utf-8)"),
    ],
)
def test_what_is_not_utf8_is_shown_by_line(run: Run, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    result = run("encode", tmp_path / "t.txt", "-o", tmp_path / "v.npy")
    skip = (
        ""
        if "UTF-16" in message
        else "; fix the line, or skip such lines with --on-bad skip (in Python: on_bad='skip')"
    )
    assert result == (2, "", f"error: {tmp_path / 't.txt'}{message}{skip}\n")
    assert os.listdir(tmp_path) == ["t.txt"]
    assert f"error: -{message}{skip}\n" in run("encode", stdin=content).err


def test_of_a_table_one_column_is_embedded(run: Run, tmp_path: Path, tiny_bert: Path) -> None:
    tickets, vectors = tmp_path / "tickets.csv", tmp_path / "v.npy"
    tickets.write_text('id,subject\n1,"A dog, and a cat"\n2,Tea is hot\n', "utf-8")
    said = run("encode", tickets, "-o", vectors).err
    assert "no column for sentence" in said
    assert "--column" in said
    assert not vectors.exists()
    assert run("encode", tickets, "-o", vectors, "--column", "sentence=subject").code == 0
    expected = Embedder.from_pretrained(tiny_bert).encode(["A dog, and a cat", "Tea is hot"])
    np.testing.assert_array_equal(np.load(vectors), expected)
    assert run("search", tickets, "tea is hot", "-k", "1", "-c", "sentence=subject").out.endswith("  Tea is hot\n")
    (tmp_path / "own.jsonl").write_text('{"text": "Tea is hot"}\n', "utf-8")
    assert run("search", tmp_path / "own.jsonl", "tea", "-k", "1").out.endswith("  Tea is hot\n")


def test_several_devices(run: Run, text: Path, expected: np.ndarray, tmp_path: Path) -> None:
    vectors = tmp_path / "v.npy"
    assert run("encode", text, "-o", vectors, "--devices", "cpu, cpu").code == 0
    np.testing.assert_allclose(np.load(vectors), expected, atol=1e-6)
    for options in (["--devices", "cpu,cpu", "--device", "cpu"], ["--devices", ","]):
        assert "error: --devices must list one or more devices" in run("encode", text, *options).err
    assert "cannot run on the device 'cuda:99'" in run("encode", text, "--devices", "cpu,cuda:99").err


def test_lines_have_no_columns(run: Run, text: Path) -> None:
    assert "--column is for .csv, .tsv, .jsonl and .parquet files" in run("encode", text, "-c", "sentence=a").err
    assert "must have the form ROLE=NAME" in run("encode", text, "-c", "subject").err


def test_mistakes_are_one_sentence(run: Run, text: Path, tmp_path: Path) -> None:
    nowhere, empty = tmp_path / "nowhere", tmp_path / "empty"
    empty.mkdir()
    for arguments, message in (
        (["encode", nowhere], f"{nowhere} cannot be read: No such file or directory"),
        (["encode", empty], f"the folder {empty} has no .txt, .csv, .tsv, .jsonl or .parquet files"),
        (["encode", tmp_path / "*.csv"], f"no file matches {tmp_path / '*.csv'}"),
        (["encode", text, "-o", "v.txt"], "--out must end in .npy, .parquet or .jsonl, or be a folder"),
        (["encode", text, "-o", text], "--out must end in .npy, .parquet or .jsonl, or be a folder"),
        (["encode", tmp_path, "-o", tmp_path / "v"], f"v is inside the input folder {tmp_path}"),
        (["encode", text, "--workers", "0"], "workers must be at least 1"),
        (["search", text], "give what to search in and at least one query"),
        (["search", text, "dog", "--hybrid"], "--filter and --hybrid need --index"),
        (["encode", text, "-o", text / "v.npy"], "v.npy cannot be written: "),
        (["encode", text, "--batch-size", "0"], "batch_size must be at least 1"),
        (["encode", text, "--device", "nonsense"], "cannot run on the device 'nonsense'"),
        (["search", text, "dog", "-k", "0"], "k must be at least 1"),
        (["search", nowhere, "dog"], "cannot be read"),
    ):
        result = run(*arguments)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("error: ")
        assert message in result.err
        assert result.err.count("\n") == 1
    result = run("similarity", "a", "b", model=nowhere)
    advice = "give the path of a model, or its name on the hub"
    assert (result.code, result.err) == (2, f"error: the folder {nowhere} does not exist; {advice}\n")


def test_wrong_ending_is_told_before_any_work(run: Run, tmp_path: Path) -> None:
    assert "--out must end in" in run("encode", tmp_path / "missing.txt", "-o", "v.csv").err


def test_parquet_without_pyarrow(run: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run("encode", text, "-o", tmp_path / "v.parquet")
    assert result == (2, "", "error: writing .parquet needs pyarrow: pip install 'diffaug[parquet]'\n")
    assert run("encode", text, "-o", tmp_path / "v.npy").code == 0


def test_usage_errors(run: Run) -> None:
    assert run("encode", "--nonsense").code == 2
    assert run("similarity", "only one").code == 2
    assert run("nonsense", model=None).code == 2


def test_similarity(run: Run, tiny_bert: Path) -> None:
    cosine = Embedder.from_pretrained(tiny_bert).similarity("A dog.", "Is this seat taken?")
    assert run("similarity", "A dog.", "Is this seat taken?") == (0, f"{cosine:.4f}\n", "")
    assert run("similarity", "A dog.", "A dog.").out == "1.0000\n"
    assert run("similarity", "A dog.", "--", "-1 is a number").code == 0


def test_search(run: Run, text: Path, tiny_bert: Path) -> None:
    lines = [line for line in LINES if line.strip()]
    hits = Embedder.from_pretrained(tiny_bert).search(lines, "A dog", 3)
    table = "".join(f"{hit.score:7.4f}  {lines[hit.index]}\n" for hit in hits)
    assert run("search", text, "A dog", "-k", "3") == (0, table, "")
    assert run("search", "-", "A dog", "-k", "3", stdin="\n".join(LINES).encode()) == (0, table, "")
    # Several queries are headed by their text.
    assert run("search", text, "A dog", "A dog", "-k", "3").out == f"A dog\n{table}" * 2


def test_search_as_json_lines(run: Run, text: Path) -> None:
    result = run("search", text, "A dog", "Überraschung", "-k", "2", "--json")
    records = [json.loads(line) for line in result.out.splitlines()]
    assert [record["query"] for record in records] == ["A dog", "A dog", "Überraschung", "Überraschung"]
    assert all(record["sentence"] in LINES and -1 <= record["score"] <= 1 for record in records)
    assert "Überraschung" in result.out


def test_search_in_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n  \n")
    result = run("search", tmp_path / "t.txt", "dog")
    assert (result.code, result.err) == (2, f"error: {tmp_path / 't.txt'} contains no sentences\n")


def test_embedded_model_is_the_default(run: Run, text: Path, tmp_path: Path) -> None:
    assert "5 vectors of width 256" in run("encode", text, "-o", tmp_path / "v.npy", model=None).err


def test_code_of_a_model_runs_only_with_the_option(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}')
    (folder / "own.py").write_text("raise OSError('own code runs')")
    assert "Python code of its own" in run("similarity", "a", "b", model=folder).err
    assert "own code runs" in run("similarity", "a", "b", "--trust-remote-code", model=folder).err


def test_output_is_utf8_whatever_the_locale(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    assert run("encode", stdin="é\n".encode()).code == 0
    assert json.loads(out.getvalue().decode("utf-8"))["sentence"] == "é"


def table(path: Path) -> Path:
    path.write_text("id,text\n1,Tea is hot\n2,\n3,Tea is hot\n4,A dog runs\n", "utf-8")
    return path


def test_bad_rows_are_skipped(run: Run, tmp_path: Path) -> None:
    tickets, out = table(tmp_path / "t.csv"), tmp_path / "v.npy"
    for command in (["encode", tickets, "-o", out], ["search", tickets, "tea"]):
        result = run(*command)
        assert "line 3: column 'text' is empty; fix the line, or skip such lines with --on-bad skip" in result.err
    assert not out.exists()
    assert run("encode", tickets, "-o", out, "--on-bad", "skip").code == 0
    assert np.load(out).shape == (3, 32)
    (tmp_path / "t.txt").write_bytes(b"A dog\n\xff\nA cat\n")
    assert run("encode", tmp_path / "t.txt", "-o", out, "--on-bad", "skip").code == 0
    assert np.load(out).shape == (2, 32)


@pytest.mark.parametrize("given", ["file", "stored", "index"])
def test_search_shows_columns_and_duplicates_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    pytest.importorskip("lancedb")
    tickets = table(tmp_path / "t.csv")
    corpus: list[str | Path] = [tickets, "--on-bad", "skip"]
    if given != "file":
        assert run("encode", tickets, "-o", tmp_path / "v", "--on-bad", "skip").code == 0
        corpus = [tmp_path / "v"]
        tickets.unlink()
    if given == "index":
        built = run("index", "build", tmp_path / "v", "--out", tmp_path / "i", model=None)
        assert built.err == f"3 documents -> {tmp_path / 'i'}; search is exact\n"
        corpus = ["--index", tmp_path / "i"]
    # The model of the vectors is used unless another one is named.
    own = {} if given == "file" else {"model": None}
    hits = run("search", *corpus, "tea is hot", "-k", "3", **own).out.splitlines()
    assert [hit[9:] for hit in hits] == ["id=1  Tea is hot", "id=3  Tea is hot", "id=4  A dog runs"]
    records = run("search", *corpus, "tea is hot", "-k", "2", "--unique", "--json", **own).out.splitlines()
    assert [json.loads(record)["columns"]["id"] for record in records] == ["1", "4"]
    if given != "file":
        embedded = run("search", *corpus, "tea", model="embedded")
        assert "cannot be combined with those of embedded" in embedded.err
        assert "--column and --keep do not apply" in run("search", *corpus, "tea", "--keep", "id").err


def test_index_commands(run: Run, tmp_path: Path, tiny_bert: Path) -> None:
    pytest.importorskip("lancedb")
    tickets, index = table(tmp_path / "t.csv"), tmp_path / "i"
    # The first argument is the subcommand; the option comes after it.
    options = ["--on-bad", "skip", "--model", tiny_bert]
    assert run("index", "build", tickets, "-o", index, *options, model=None).code == 0
    tickets.write_text("id,text\n5,Coffee is hot\n", "utf-8")
    added = run("index", "add", index, tickets, model=None)
    assert added.err == f"1 documents added, now 4 -> {index}; search is exact\n"
    found = run("search", "--index", index, "hot", "--filter", "id = '5'", "--hybrid", model=None)
    assert found.out.endswith("id=5  Coffee is hot\n")
    assert found.out.count("\n") == 1
    tickets.write_text("text\nA dog runs\n", "utf-8")
    refused = run("index", "add", index, tickets, model=None)  # before anything is encoded
    assert f"error: {tickets} has no column 'id'; the documents must have the columns of the index" in refused.err
    assert "exists already" in run("index", "build", tickets, "-o", index, model=None).err
    assert sorted(os.listdir(tmp_path)) == ["i", "t.csv"]


def test_ctrl_c_says_how_to_go_on(run: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffaug.inference.outputs import FolderOutput

    commit, calls = FolderOutput.commit, []

    def interrupted(self: FolderOutput, written: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        commit(self, written)  # type: ignore[arg-type]

    monkeypatch.setattr(FolderOutput, "commit", interrupted)
    command = ["encode", text, "-o", tmp_path / "v", "--shard-size", "2"]
    result = run(*command)
    assert (result.code, result.err) == (
        130,
        "interrupted: 2 sentences in 1 finished shards are stored; the same command continues from there\n",
    )
    assert run(*command).err == f"5 vectors of width 32 -> {tmp_path / 'v'} (2 of them earlier)\n"


def test_encode_reads_globs_and_folders(run: Run, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.csv"):
        (tmp_path / name).write_text("text\nA dog.\n")
    assert "4 vectors" in run("encode", tmp_path / "*.txt", "-o", tmp_path / "v.npy").err
    assert np.load(tmp_path / "v.npy").shape == (4, 32)
    assert run("encode", tmp_path / "a.txt", tmp_path / "b.txt", "-o", tmp_path / "w.npy").code == 0
    assert np.load(tmp_path / "w.npy").shape == (4, 32)
