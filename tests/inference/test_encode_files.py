from __future__ import annotations

import errno
import gzip
import io
import json
import lzma
import math
import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from diffaug import DiffaugError, Embedder, StoredVectors, progress
from diffaug.data.documents import DocumentReader, Documents
from diffaug.files import exclusive_lock
from diffaug.inference import outputs, workers
from diffaug.inference.manifest import Manifest
from diffaug.inference.quantize import dequantize, quantize

TEXTS = [f"The {who} number {i} runs {i * 'far ' if i < 9 else ''}." for i in range(12) for who in ("dog", "cat")]


@pytest.fixture(scope="module")
def embedder(tiny_bert: Path) -> Embedder:
    return Embedder.from_pretrained(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def other(tiny: Callable[[str], Path]) -> Embedder:
    """Another model with vectors of the same width."""
    return Embedder.from_pretrained(tiny("distilbert"), device="cpu")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.csv"
    path.write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(TEXTS)))
    return path


def content(folder: Path) -> dict[str, bytes]:
    """The finished files by name; a manifest records versions and the order of completion."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if "manifest" not in path.name}


def read(folder: Path) -> tuple[pyarrow.Table, np.ndarray]:
    table = pyarrow.parquet.read_table(sorted(folder.glob("*.parquet")))
    return table, np.array(table["embedding"].to_pylist(), dtype=np.float32)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in the format that the name of the file says."""
    kind, open_file = path.suffixes[0], {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    if kind == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    separator = "\t" if kind == ".tsv" else ","
    lines = {
        ".txt": [str(row.get("text")) for row in rows],
        ".jsonl": [json.dumps(row) for row in rows],
    }.get(kind, [separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)])
    with open_file(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


NAMES = ["a.txt", "a.txt.gz", "a.txt.xz", "a.csv", "a.csv.gz", "a.tsv.xz", "a.jsonl", "a.jsonl.gz", "a.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_read(embedder: Embedder, tmp_path: Path, name: str) -> None:
    rows = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    path = write(tmp_path / name, rows)
    result = embedder.encode_files(path, tmp_path / "out", shard_size=7)
    assert (result.rows, result.width, result.continued) == (len(TEXTS), 32, 0)
    table, vectors = read(tmp_path / "out")
    assert table["sentence"].to_pylist() == TEXTS
    np.testing.assert_allclose(vectors, embedder.encode(TEXTS), atol=1e-6)
    if ".txt" in name:
        assert table.column_names == ["sentence", "embedding"]
    else:  # numbers stay numbers where the format has numbers
        ids = table["id"].to_pylist()
        assert ids == (list(range(len(TEXTS))) if name.startswith(("a.jsonl", "a.parquet")) else [*map(str, range(24))])


@pytest.mark.parametrize("given", ["folder", "glob", "list"])
def test_many_files_are_read_in_order(embedder: Embedder, tmp_path: Path, given: str) -> None:
    folder = tmp_path / "in"
    (folder / "deeper").mkdir(parents=True)
    for name, texts in (("a.txt", TEXTS[:5]), ("b.txt.gz", TEXTS[5:6]), ("deeper/c.txt", TEXTS[6:])):
        write(folder / name, [{"text": text} for text in texts])
    (folder / "README.md").write_text("not data")
    (folder / ".hidden.txt").write_text("not data")
    sources: Any = folder if given == "folder" else f"{folder}/**/*.txt*"
    if given == "list":
        sources = [folder / "a.txt", folder / "b.txt.gz", folder / "deeper"]
    embedder.encode_files(sources, tmp_path / "v.jsonl", shard_size=4)
    records = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [record["sentence"] for record in records] == TEXTS


def test_every_line_of_a_pipe_is_encoded(embedder: Embedder, tmp_path: Path) -> None:
    ours, theirs = os.pipe()  # as <(COMMAND) in a shell
    os.write(theirs, "".join(f"{text}\n" for text in TEXTS).encode())
    os.close(theirs)
    embedder.encode_files(f"/dev/fd/{ours}", tmp_path / "v.jsonl")
    os.close(ours)
    assert [json.loads(line)["sentence"] for line in (tmp_path / "v.jsonl").open()] == TEXTS
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DiffaugError, match=r"pipe\.csv is a pipe, and a table is read twice; write it to a file first"):
        DocumentReader(tmp_path / "pipe.csv")


def test_columns_must_be_the_same_in_all_files(embedder: Embedder, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", [{"id": 1, "text": "A dog."}])
    write(tmp_path / "b.jsonl", [{"text": "A cat."}])
    with pytest.raises(DiffaugError, match=r"b\.jsonl has no column 'id', which .*a\.csv has; .*--keep NAME"):
        embedder.encode_files([tmp_path / "a.csv", tmp_path / "b.jsonl"], tmp_path / "out")
    with pytest.raises(DiffaugError, match=r"b\.jsonl has no column 'id', which .*a\.csv has"):
        embedder.encode_files([tmp_path / "b.jsonl", tmp_path / "a.csv"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    embedder.encode_files([tmp_path / "b.jsonl", tmp_path / "a.csv"], tmp_path / "out", keep=[])
    assert read(tmp_path / "out")[0].column_names == ["sentence", "embedding"]
    with pytest.raises(DiffaugError, match="no other column 'url'; its other columns are: id"):
        embedder.encode_files(tmp_path / "a.csv", tmp_path / "x", keep=["url"])
    write(tmp_path / "c.csv", [{"sentence": "x", "embedding": "y"}])
    with pytest.raises(DiffaugError, match="'embedding' has the name of a column of the output"):
        embedder.encode_files(tmp_path / "c.csv", tmp_path / "x")


def test_types_of_json_columns(embedder: Embedder, tmp_path: Path) -> None:
    rows = [{"text": "A dog.", "n": 1, "x": 1, "on": True, "tags": ["a"], "gone": None}]
    rows += [{"text": "A cat.", "n": 2, "x": 0.5, "on": None, "tags": {"b": 1}}]
    embedder.encode_files(write(tmp_path / "a.jsonl", rows), tmp_path / "out")
    table, _ = read(tmp_path / "out")
    assert table.schema.field("n").type == pyarrow.int64()
    assert table.drop_columns(["sentence", "embedding"]).to_pylist() == [
        {"n": 1, "x": 1.0, "on": True, "tags": '["a"]', "gone": None},
        {"n": 2, "x": 0.5, "on": None, "tags": '{"b": 1}', "gone": None},
    ]
    late = [{"text": "A dog.", "n": 1}] * 1200 + [{"text": "A cat.", "n": "two", "new": 1}]
    with pytest.raises(DiffaugError, match="the column 'n' is int64 in the first rows and has another type later"):
        embedder.encode_files(write(tmp_path / "b.jsonl", late), tmp_path / "b")
    late[-1]["n"] = 2
    with pytest.warns(UserWarning, match="line 1,201: the column 'new' first occurs here and is not carried along"):
        embedder.encode_files(write(tmp_path / "b.jsonl", late), tmp_path / "c")


def test_half_a_surrogate_pair_is_a_question_mark(embedder: Embedder, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "A \ud800 dog.", "more": "\udfff"}, {"text": "A cat.", "more": None}])
    embedder.encode_files(path, tmp_path / "out")
    embedder.encode_files(path, tmp_path / "v.jsonl")
    for rows in (read(tmp_path / "out")[0].to_pylist(), map(json.loads, (tmp_path / "v.jsonl").open())):
        assert [(row["sentence"], row["more"]) for row in rows] == [("A ? dog.", "?"), ("A cat.", None)]


def test_nan_is_null_in_json_lines(embedder: Embedder, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [{"text": "A dog.", "price": 1.5}, {"text": "A cat.", "price": math.nan}])
    embedder.encode_files(path, tmp_path / "v.jsonl")
    assert [json.loads(line)["price"] for line in (tmp_path / "v.jsonl").open()] == [1.5, None]


def test_vectors_of_no_sentences(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    for name in ("out", "v.parquet"):
        assert embedder.encode_files(tmp_path / "empty.txt", tmp_path / name).rows == 0
    with pytest.raises(DiffaugError, match=r"out contains no sentences"):
        StoredVectors.open(tmp_path / "out")
    stored = StoredVectors.open(tmp_path / "v.parquet")
    assert stored is not None
    assert embedder.search(stored, "A dog.") == []
    with pytest.raises(DiffaugError, match=r"v\.parquet contains no sentences"):
        stored.load()


@pytest.mark.parametrize("name", ["out", "v.npy", "v.jsonl", "v.parquet"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "binary"])
def test_precisions(embedder: Embedder, source: Path, tmp_path: Path, name: str, precision: Any) -> None:
    embedder.encode_files(source, tmp_path / name, precision=precision, shard_size=5)
    if name == "v.npy":
        stored = np.load(tmp_path / name, allow_pickle=False)
    elif name == "v.jsonl":
        stored = np.array([json.loads(line)["embedding"] for line in (tmp_path / name).read_text().splitlines()])
    else:
        table = pyarrow.parquet.read_table(tmp_path / name if name == "v.parquet" else tmp_path / name / "")
        kind = {"float32": "float", "float16": "halffloat", "int8": "int8", "binary": "uint8"}[precision]
        assert str(table.schema.field("embedding").type.value_type) == kind
        stored = np.array(table["embedding"].to_pylist())
    exact = embedder.encode(TEXTS)
    if precision == "binary":
        np.testing.assert_array_equal(np.unpackbits(stored.astype(np.uint8), axis=1).astype(bool), exact > 0)
    else:
        vectors = stored.astype(np.float64)
        cosines = (vectors * exact).sum(axis=1) / np.linalg.norm(vectors, axis=1)
        assert cosines.min() > {"float32": 0.999999, "float16": 0.999999, "int8": 0.9999}[precision]
    if precision == "int8":
        assert (np.abs(stored).max(axis=1) == 127).all()


def test_dequantized_vectors() -> None:
    vectors = np.random.default_rng(0).standard_normal((5, 20)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_array_equal(dequantize(quantize(vectors, "float32"), "float32", 20), vectors)
    signs = dequantize(quantize(vectors, "binary"), "binary", 20)
    np.testing.assert_allclose(signs, np.sign(vectors) / np.sqrt(20))
    np.testing.assert_allclose(dequantize(quantize(vectors, "int8"), "int8", 20), vectors, atol=0.006)
    assert np.isfinite(quantize(np.zeros((1, 4), np.float32), "int8")).all()
    with pytest.raises(DiffaugError, match="not finite"):
        quantize(np.full((1, 4), np.nan, np.float32), "float32")
    with pytest.raises(DiffaugError, match="too large for float16"):
        quantize(np.full((1, 4), 1e6, np.float32), "float16")


def in_killed_process(work: Callable[[], None]) -> None:
    """Run ``work`` in a copy of this process, which must kill itself."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)  # not killed
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def kill_in_third(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    """The third call of a function kills the process, before or after it did its work."""
    function, calls = getattr(owner, name), []

    def killing(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **options)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    monkeypatch.setattr(owner, name, killing)


@pytest.mark.parametrize("name", ["out", "v.npy", "v.jsonl"])
@pytest.mark.parametrize(
    ("owner", "function"),
    [(Manifest, "add"), (Manifest, "_append"), (outputs, "quantize"), (outputs, "checksum"), (os, "fsync")],
)
@pytest.mark.parametrize("after", [False, True])
def test_sigkill_loses_only_the_shard_under_way(
    embedder: Embedder,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    owner: Any,
    function: str,
    after: bool,
) -> None:
    if function == "quantize":
        owner = workers
    if function == "checksum" and name != "out":
        pytest.skip("only shards in files of their own are read again")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    embedder.encode_files(source, whole / name, shard_size=5)
    with monkeypatch.context() as patch:
        kill_in_third(patch, owner, function, after=after)
        in_killed_process(lambda: embedder.encode_files(source, killed / name, shard_size=5))
    result = embedder.encode_files(source, killed / name, shard_size=5)
    assert result.rows == len(TEXTS)
    # A commit calls fsync twice for a file of its own, with the folder; the manifest adds its own.
    assert result.continued in ((5, 10, 15) if function in ("add", "quantize", "checksum") else (0, 5, 10))
    if name == "out":
        assert content(whole / name) == content(killed / name)
    else:
        assert content(whole) == content(killed)


def test_a_torn_line_of_the_manifest_is_dropped(embedder: Embedder, source: Path, tmp_path: Path) -> None:
    embedder.encode_files(source, tmp_path / "out", shard_size=5)
    before, path = content(tmp_path / "out"), tmp_path / "out" / "_manifest"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    assert embedder.encode_files(source, tmp_path / "out", shard_size=5).continued == 10
    assert content(tmp_path / "out") == before
    assert all(json.loads(line) for line in path.read_text().splitlines())
    path.write_text('{"format": 3}\n')
    with pytest.raises(DiffaugError, match="manifest does not describe vectors of diffaug"):
        embedder.encode_files(source, tmp_path / "out", shard_size=5)


def test_missing_and_changed_shards_are_encoded_again(embedder: Embedder, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embedder.encode_files(source, out, shard_size=5)
    before = content(out)
    (out / "shard-000001.parquet").unlink()
    changed = bytearray(before["shard-000003.parquet"])
    changed[100] ^= 1
    (out / "shard-000003.parquet").write_bytes(changed)
    with pytest.raises(DiffaugError, match=r"shard-000001.parquet is missing; repeat the command"):
        StoredVectors.open(out)
    (out / "shard-000001.parquet").write_bytes(before["shard-000001.parquet"])
    with pytest.raises(DiffaugError, match=r"shard-000003.parquet has changed since it was written"):
        StoredVectors.open(out, verify=True)
    (out / "shard-000001.parquet").unlink()
    with pytest.warns(UserWarning, match="will be encoded again") as said:
        result = embedder.encode_files(source, out, shard_size=5)
    assert {str(warning.message).split(" ", 1)[1] for warning in said} == {
        "is missing and will be encoded again",
        "has changed since it was written and will be encoded again",
    }
    assert (result.continued, result.rows) == (14, 24)
    assert content(out) == before


def test_a_shard_that_disappears_is_an_error_at_once(
    embedder: Embedder, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a worker on another machine has written it to a disk of its own."""
    commit = outputs.FolderOutput.commit

    def lose(output: outputs.FolderOutput, shard: outputs.Shard) -> None:
        if shard.index == 2:
            (tmp_path / "out" / outputs.shard_name(2)).unlink()
        commit(output, shard)

    with monkeypatch.context() as patch:
        patch.setattr(outputs.FolderOutput, "commit", lose)
        with pytest.raises(DiffaugError, match=r"shard-000002.parquet was written but is not there"):
            embedder.encode_files(source, tmp_path / "out", shard_size=5)
    assert embedder.encode_files(source, tmp_path / "out", shard_size=5).continued == 10


def test_other_models_settings_and_inputs_are_refused(
    embedder: Embedder, other: Embedder, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    embedder.encode_files(source, out, shard_size=5)
    before = content(out)
    with pytest.raises(DiffaugError, match=r"out holds vectors of .*bert .* combined with .*distilbert"):
        other.encode_files(source, out, shard_size=5)
    with pytest.raises(DiffaugError, match="started with precision float32, now it is int8"):
        embedder.encode_files(source, out, shard_size=5, precision="int8")
    with pytest.raises(DiffaugError, match="started with shard_size 5, now it is 6"):
        embedder.encode_files(source, out, shard_size=6)
    text = source.read_text()
    source.write_text(text.replace("cat number 3", "cat number 4"))
    with pytest.raises(DiffaugError, match="its rows 6 to 10 are not those of the finished shard 1"):
        embedder.encode_files(source, out, shard_size=5)
    source.write_text("".join(text.splitlines(keepends=True)[:8]))
    with pytest.raises(DiffaugError, match="the input has changed"):
        embedder.encode_files(source, out, shard_size=5)
    assert content(out) == before
    assert other.encode_files(source, out, shard_size=5, overwrite=True).rows == 7
    assert len(content(out)) == 2


def test_vectors_of_two_models_are_not_combined(
    embedder: Embedder, other: Embedder, source: Path, tmp_path: Path
) -> None:
    embedder.encode_files(source, tmp_path / "a.parquet")
    other.encode_files(source, tmp_path / "b.parquet")
    with pytest.raises(DiffaugError, match=r"a\.parquet holds vectors of .*, which cannot be combined with those of"):
        StoredVectors.open([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    stored = StoredVectors.open(tmp_path / "b.parquet")
    assert stored is not None
    with pytest.raises(DiffaugError, match=r"b\.parquet holds vectors of .*use the same model for both"):
        embedder.search(stored, "A dog.")
    assert StoredVectors.open(source) is None


def test_an_input_that_has_grown_is_continued(embedder: Embedder, source: Path, tmp_path: Path) -> None:
    embedder.encode_files(source, tmp_path / "out", shard_size=5)
    with source.open("a") as file:
        file.writelines(f"{i},A new sentence {i}.\n" for i in range(24, 30))
    assert embedder.encode_files(source, tmp_path / "out", shard_size=5).rows == 30
    embedder.encode_files(source, tmp_path / "new", shard_size=5)
    assert content(tmp_path / "out") == content(tmp_path / "new")
    assert Manifest.load(tmp_path / "out" / "_manifest").rows == 30


def test_an_output_in_use_is_refused(embedder: Embedder, source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with (
        exclusive_lock(tmp_path / "out" / ".lock"),
        pytest.raises(DiffaugError, match="out is in use by another process"),
    ):
        embedder.encode_files(source, tmp_path / "out")
    with (
        exclusive_lock(tmp_path / ".v.npy.lock"),
        pytest.raises(DiffaugError, match="is being written by another process"),
    ):
        embedder.encode_files(source, tmp_path / "v.npy")
    (tmp_path / "out" / "mine.txt").write_text("precious")
    with pytest.raises(DiffaugError, match="out is not empty and has no _manifest"):
        embedder.encode_files(source, tmp_path / "out", overwrite=True)


def test_inputs_are_not_overwritten(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = write(tmp_path / "in" / "d.jsonl", [{"text": "A"}])
    before = path.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(path)
    for out in (path, tmp_path / "in", tmp_path / "link.jsonl"):
        with pytest.raises(DiffaugError, match=r"would overwrite .*, which the command reads"):
            embedder.encode_files(path, out)
    with pytest.raises(DiffaugError, match=r"is inside the input folder"):
        embedder.encode_files(tmp_path / "in", tmp_path / "in" / "v")
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["out", "v.npy", "v.jsonl"])
def test_a_full_disk_loses_only_the_shard_under_way(
    embedder: Embedder, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fsync, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(1)
        if len(calls) > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiffaugError, match="cannot be written: no space left on the disk"):
            embedder.encode_files(source, tmp_path / "a" / name, shard_size=5)
    result = embedder.encode_files(source, tmp_path / "a" / name, shard_size=5)
    assert result.continued in (10, 15, 20)
    embedder.encode_files(source, tmp_path / "b" / name, shard_size=5)
    a, b = (tmp_path / "a", tmp_path / "b") if name != "out" else (tmp_path / "a/out", tmp_path / "b/out")
    assert content(a) == content(b)


@pytest.mark.parametrize("name", ["out", "v.npy", "v.jsonl", "v.parquet", None])
def test_few_rows_are_in_memory(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """Whatever the number of rows, at most two shards are alive, and the input is read only as far as needed."""
    alive: list[weakref.ref[Documents]] = []
    most = []
    blocks = DocumentReader.blocks

    def counted(self: DocumentReader, size: int) -> Any:
        for block in blocks(self, size):
            alive.append(weakref.ref(block))
            most.append(sum(len(found) for ref in alive if (found := ref()) is not None))
            yield block

    monkeypatch.setattr(DocumentReader, "blocks", counted)
    path = write(tmp_path / "a.txt", [{"text": text} for text in TEXTS * 4])
    embedder.encode_files(path, io.BytesIO() if name is None else tmp_path / name, shard_size=4)
    assert len(most) == 24
    assert max(most) <= 8


def test_a_stream_is_written_as_it_goes(embedder: Embedder, source: Path) -> None:
    class Stream(io.BytesIO):
        def __init__(self) -> None:
            super().__init__()
            self.sizes: list[int] = []

        def flush(self) -> None:
            self.sizes.append(len(self.getvalue().splitlines()))

    stream = Stream()
    embedder.encode_files(source, stream, shard_size=10)
    assert stream.sizes == [10, 20, 24]
    assert json.loads(stream.getvalue().splitlines()[3])["id"] == "3"


def test_worker_processes(embedder: Embedder, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Copies of this process need not import torch.
    monkeypatch.setattr(workers, "_PROCESSES", multiprocessing.get_context("fork"))
    embedder.encode_files(source, tmp_path / "one" / "v.npy", shard_size=5)
    result = embedder.encode_files(source, tmp_path / "two" / "v.npy", shard_size=5, workers=2)
    assert result.rows == len(TEXTS)
    np.testing.assert_allclose(np.load(tmp_path / "one/v.npy"), np.load(tmp_path / "two/v.npy"), atol=1e-6)
    for _ in range(2):  # the second time, there is nothing left to do
        embedder.encode_files(source, tmp_path / "shards", shard_size=5, workers=3)
    np.testing.assert_allclose(read(tmp_path / "shards")[1], embedder.encode(TEXTS), atol=1e-6)
    broken = write(tmp_path / "b.jsonl", [{"text": "a", "n": 1}] * 1001 + [{"text": "a", "n": "x"}])
    with pytest.raises(DiffaugError, match="the column 'n' is int64 in the first rows"):
        embedder.encode_files(broken, tmp_path / "b", shard_size=60, workers=1)
    monkeypatch.setattr(workers, "quantize", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(
        DiffaugError, match="a worker process was killed by SIGKILL in shard 0; the same command continues"
    ):
        embedder.encode_files(source, tmp_path / "c", shard_size=5, workers=1)


def test_log_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 30.0, 61.0, 100.0, 122.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))
    with progress.rate_progress("encoding", "sentences", 100_000, done=1_000) as advance:
        for _ in range(4):
            advance(6_100)
    assert capsys.readouterr().err == (
        "encoding: 13,200 of about 100,000 sentences, 200 per second, about 7 min left\n"
        "encoding: 25,400 of about 100,000 sentences, 200 per second, about 6 min left\n"
    )


def test_estimated_rows(tmp_path: Path) -> None:
    for name in ("a.txt", "a.txt.gz", "a.parquet"):
        write(tmp_path / name, [{"text": f"Line {i} of a file."} for i in range(30_000)])
        estimate = DocumentReader(tmp_path / name).estimated_rows()
        assert estimate == pytest.approx(30_000, rel=0.3)
    assert DocumentReader("-").estimated_rows() is None


def test_the_manifest_says_what_decided_the_vectors(embedder: Embedder, source: Path, tmp_path: Path) -> None:
    import hashlib

    embedder.encode_files(source, tmp_path / "v.npy")
    manifest = Manifest.load(tmp_path / "v.npy.manifest")
    assert manifest.vectors.fingerprint == embedder.fingerprint()
    assert manifest.provenance is not None
    assert manifest.provenance["data"] == {"sentences": {str(source): hashlib.sha256(source.read_bytes()).hexdigest()}}
    assert {"diffaug", "torch", "transformers"} <= set(manifest.provenance["versions"])
    array = (tmp_path / "v.npy").read_bytes()[128:]
    assert manifest.shards[0].sha256 == hashlib.sha256(array).hexdigest()


def test_stored_vectors_are_searched_exactly(embedder: Embedder, source: Path, tmp_path: Path) -> None:
    embedder.encode_files(source, tmp_path / "out", shard_size=5)
    stored = StoredVectors.open(tmp_path / "out")
    assert stored is not None
    assert stored.rows == 24
    queries = ["A dog runs.", "The cat number 7 runs ."]
    expected = np.argsort(-(embedder.encode(queries) @ embedder.encode(TEXTS).T), axis=1)[:, :6]
    for hits, rows in zip(embedder.search(stored, queries, 6), expected, strict=True):
        assert [hit.index for hit in hits] == rows.tolist()
        assert [hit.sentence for hit in hits] == [TEXTS[row] for row in rows]
        assert [hit.columns for hit in hits] == [{"id": str(row)} for row in rows]
    assert [hit.index for hit in embedder.search(stored, "A dog runs.", 2)] == expected[0, :2].tolist()
