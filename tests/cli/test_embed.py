from __future__ import annotations

import io
import json
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentences.txt", "v.npy"]


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
    assert result == (2, "", f"error: {tmp_path / 't.txt'}{message}\n")
    assert not (tmp_path / "v.npy").exists()
    assert f"error: -{message}\n" in run("encode", stdin=content).err


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
    nowhere = tmp_path / "nowhere"
    for arguments, message in (
        (["encode", nowhere], f"{nowhere} cannot be read: No such file or directory"),
        (["encode", tmp_path], f"{tmp_path} cannot be read: Is a directory"),
        (["encode", text, "-o", "v.txt"], "--out must end in .npy, .parquet or .jsonl, got v.txt"),
        (["encode", text, "-o", "v"], "--out must end in .npy, .parquet or .jsonl, got v"),
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
