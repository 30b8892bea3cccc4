"""Near-duplicates, outliers, and the table and viewer of Embedding Atlas."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from diffaug import explore
from diffaug.cli import main
from diffaug.data.documents import Documents, read_documents
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.explore import Collection, load_collection, near_duplicates, outliers

SENTENCES = [
    f"The {who} {what}." for who in ("dog", "cat", "train", "river") for what in ("is old", "was seen", "left")
]


@pytest.fixture
def collection() -> Collection:
    """Sixty random directions, some of them nearly the same; row 40 has the text of row 3."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(60, 8))
    vectors[10:14] = vectors[3] + 0.05 * random.normal(size=(4, 8))
    vectors[50] = vectors[20] + 0.05 * random.normal(size=8)
    vectors[40] = vectors[3]
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    texts = [f"Sentence {i}." for i in range(60)]
    texts[40] = texts[3]
    return Collection(Documents(texts), vectors)


def groups_of(vectors: np.ndarray, threshold: float) -> set[frozenset[int]]:
    """By following pairs from every row."""
    near = (vectors @ vectors.T >= threshold).tolist()
    found = set()
    for start in range(len(vectors)):
        seen, left = {start}, [start]
        while left:
            row = left.pop()
            fresh = {j for j, same in enumerate(near[row]) if same} - seen
            seen |= fresh
            left += fresh
        if len(seen) > 1:
            found.add(frozenset(seen))
    return found


@pytest.mark.parametrize("threshold", [0.6, 0.9, 0.99])
@pytest.mark.parametrize("small", [False, True])
def test_near_duplicates_are_the_connected_groups(
    collection: Collection, threshold: float, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:  # one row at a time, and pairs are reduced again and again
        monkeypatch.setattr(explore, "_BLOCK", 1)
        monkeypatch.setattr(explore, "_MAX_PAIRS", 2)
    found = near_duplicates(collection, threshold)
    groups: dict[int, list[int]] = {}
    for one in found:
        groups.setdefault(one.group, []).append(one.row)
        assert one.sentence == collection.documents.sentences[one.row]
        first = groups[one.group][0]
        assert one.similarity == pytest.approx(collection.vectors[one.row] @ collection.vectors[first], abs=1e-4)
    assert {frozenset(rows) for rows in groups.values()} == groups_of(collection.vectors, threshold)
    sizes = [len(rows) for rows in groups.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert list(groups) == list(range(1, len(groups) + 1))
    assert len(groups) > 0


def test_outliers_have_the_least_similar_neighbours(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    cosines = collection.vectors @ collection.vectors.T
    means = [float(np.mean(sorted(np.delete(row, i))[-3:])) for i, row in enumerate(cosines)]
    for block in (1, 1 << 20):
        monkeypatch.setattr(explore, "_BLOCK", block)
        found = outliers(collection, limit=5, neighbours=3)
        assert [one.row for one in found] == list(np.argsort(means)[:5])
        assert [one.similarity for one in found] == pytest.approx(sorted(means)[:5], abs=1e-4)


def test_what_cannot_be_listed_is_an_error(collection: Collection) -> None:
    with pytest.raises(DiffaugError, match="must be above 0 and at most 1"):
        near_duplicates(collection, 1.5)
    with pytest.raises(DiffaugError, match="a single sentence has no neighbours"):
        outliers(Collection(Documents(["One."]), collection.vectors[:1]))


@pytest.fixture
def embedder(tiny_bert: Path) -> Embedder:
    return Embedder.from_pretrained(tiny_bert, device="cpu")


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_vectors_that_encode_wrote_are_read(tmp_path: Path, embedder: Embedder, precision: str) -> None:
    source = tmp_path / "tickets.csv"
    source.write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(SENTENCES)))
    for out in ("folder", "vectors.npy"):
        embedder.encode_files(source, tmp_path / out, precision=precision)  # type: ignore[arg-type]
    computed = load_collection(source, model=embedder)
    for found in (load_collection(tmp_path / "folder"), load_collection(source, tmp_path / "vectors.npy"), computed):
        assert found.documents.sentences == SENTENCES
        assert [str(value) for value in found.documents.columns["id"]] == [str(i) for i in range(len(SENTENCES))]
        np.testing.assert_allclose(found.vectors, computed.vectors, atol=1e-6 if precision == "float32" else 0.02)
        assert found.model == embedder.name
    source.write_text("id,text\n1,One.\n")
    with pytest.raises(DiffaugError, match=r"tickets.csv has 1 rows; encode it again"):
        load_collection(source, tmp_path / "vectors.npy")


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_bert: Path, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    (tmp_path / "text.txt").write_text("\n".join([*SENTENCES, SENTENCES[2]]))

    def run(command: str, *options: str | Path) -> tuple[int, str, str]:
        model = ["--model", str(tiny_bert), "--device", "cpu"]
        monkeypatch.setattr(sys, "argv", ["diffaug", command, str(tmp_path / "text.txt"), *model, *map(str, options)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def test_lists_are_csv_or_json_lines_that_label_reads(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, printed, _ = run("duplicates", "--threshold", 1)
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert code == 0
    assert [(row["group"], row["row"]) for row in rows] == [("1", "2"), ("1", "12")]
    assert {row["sentence"] for row in rows} == {SENTENCES[2]}
    for out in ("lonely.csv", "lonely.jsonl"):
        assert run("outliers", "--limit", 3, "--out", tmp_path / out)[0] == 0
        # As diffaug label and diffaug encode read it.
        read = read_documents(tmp_path / out)
        assert len(read.sentences) == 3
        assert set(read.sentences) < set(SENTENCES)
    lines = [json.loads(line) for line in (tmp_path / "lonely.jsonl").read_text().splitlines()]
    assert [line["sentence"] for line in lines] == read_documents(tmp_path / "lonely.csv").sentences
    assert "must end in .csv or .jsonl" in run("outliers", "--out", tmp_path / "list.txt")[2]


def test_without_the_viewer_the_error_names_the_extra(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "find_spec", lambda _: None)
    code, _, error = run("explore")
    assert code == 2
    assert "pip install 'diffaug[explore]'" in error


def test_the_viewer_opens_the_table(tiny_bert: Path, tmp_path: Path) -> None:
    pytest.importorskip("embedding_atlas")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "text.csv").write_text("text,class\n" + "".join(f"{text},{text.split()[1]}\n" for text in SENTENCES))
    command = [sys.executable, "-m", "diffaug", "explore", str(tmp_path / "text.csv"), "--model", str(tiny_bert)]
    table = tmp_path / "table.parquet"
    subprocess.run([*command, "--versus", str(tiny_bert), "--clusters", "3", "--out", str(table)], check=True)
    found = parquet.read_table(table).to_pydict()
    assert found["sentence"] == SENTENCES
    assert set(found["class"]) == {"dog", "cat", "train", "river"}
    assert set(found["cluster"]) == {"0", "1", "2"}
    assert found["new_neighbors"] == [0.0] * len(SENTENCES)  # both models are the same
    assert [near["ids"][0] for near in found["neighbors"]] == list(range(len(SENTENCES)))
    assert np.isfinite([found[name] for name in ("x", "y", "versus_x", "versus_y")]).all()

    log = tmp_path / "log"
    with log.open("w") as file:
        viewer = subprocess.Popen(
            [*command, "--port", "5391"], stdout=file, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
    try:
        end, address = time.monotonic() + 300, None
        while address is None and time.monotonic() < end and viewer.poll() is None:
            time.sleep(0.5)
            address = next((word for word in log.read_text().split() if "http://127.0.0.1:" in word), None)
        assert address is not None, log.read_text()
        url = "http://127.0.0.1:" + address.split("http://127.0.0.1:")[1][:4]
        for _ in range(40):
            try:
                with urllib.request.urlopen(f"{url}/data/metadata.json", timeout=5) as response:
                    props = json.load(response)["props"]["data"]
                break
            except OSError:
                time.sleep(0.5)
        assert props["projection"] == {"x": "x", "y": "y"}
        assert props["text"] == "sentence"
    finally:
        viewer.send_signal(signal.SIGINT)
        viewer.wait(30)
