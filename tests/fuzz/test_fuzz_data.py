"""Data files with anything in them, in every format: rows or one sentence."""

from __future__ import annotations

import gzip
import io
import json
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fuzz.fuzzing import JSON_VALUES, attempt, mutated, profile, texts, writable
from hypothesis import given
from hypothesis import strategies as st

from diffaug.data.check import check
from diffaug.data.read import read_labelled_pairs, read_nli, read_scored_pairs, read_sentences, read_triplets
from diffaug.evaluation.retrieval_data import read_retrieval

COLUMNS = ["sentence", "premise", "hypothesis", "label", "score", "sentence1", "sentence2", "anchor", "positive"]
COLUMNS += ["negative", "query", "document", "gold_label", "text", "split", ""]
CELLS = ["A dog runs.", "Rain falls.", "entailment", "contradiction", "neutral", "0", "1", "2.5", "5", "-", '"a, b"']
READERS: dict[str, Callable[..., Any]] = {
    "sentences": read_sentences,
    "triplets": read_triplets,
    "labelled": read_labelled_pairs,
    "scored": read_scored_pairs,
    "nli": read_nli,
    "skipping": partial(read_nli, on_bad="skip"),
    "check": check,
    "retrieval": read_retrieval,
}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def cells() -> st.SearchStrategy[str]:
    return st.sampled_from(CELLS) | texts()


def tables(separator: str) -> st.SearchStrategy[bytes]:
    header = st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4)
    rows = st.lists(st.lists(cells(), min_size=1, max_size=4), max_size=6)
    ends = st.sampled_from(["\n", "\n", "\r\n", "\r", ""])
    return st.builds(lambda h, r, end: writable(end.join(separator.join(row) for row in [h, *r])), header, rows, ends)


def json_lines() -> st.SearchStrategy[bytes]:
    value = cells() | st.sampled_from(JSON_VALUES)
    rows = st.lists(st.dictionaries(st.sampled_from(COLUMNS), value, max_size=4) | value, max_size=5)
    return st.builds(lambda rows: writable("\n".join(json.dumps(row) for row in rows)), rows)


def contents(suffix: str) -> st.SearchStrategy[bytes]:
    made = json_lines() if suffix == ".jsonl" else tables("," if suffix == ".csv" else "\t")
    return made | made.flatmap(mutated) | st.binary(max_size=60)


@given(st.sampled_from(sorted(READERS)), st.sampled_from([".txt", ".csv", ".tsv", ".jsonl"]), st.data())
@profile(120)
def test_text_files(scratch: Path, reader: str, suffix: str, data: Any) -> None:
    content = data.draw(contents(suffix))
    compression = data.draw(st.sampled_from(["", "", "", ".gz", ".xz"]))
    if compression and data.draw(st.booleans()):
        content = (gzip if compression == ".gz" else lzma).compress(content)
        if data.draw(st.booleans()):
            content = data.draw(mutated(content))
    path = scratch / f"own{suffix}{compression}"
    path.write_bytes(content)
    attempt(f"data: {reader}", READERS[reader], path)


@given(st.sampled_from(sorted(READERS)), st.data())
@profile(60)
def test_parquet(scratch: Path, reader: str, data: Any) -> None:
    import pyarrow
    import pyarrow.parquet

    names = data.draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3, unique=True))
    kinds = [pyarrow.string(), pyarrow.int64(), pyarrow.float64(), pyarrow.date32(), pyarrow.timestamp("ms")]
    columns = {}
    for name in names:
        kind = data.draw(st.sampled_from(kinds))
        if kind == pyarrow.string():
            columns[name] = pyarrow.array(
                [cell.encode("utf-8", "replace").decode() for cell in data.draw(three(cells()))]
            )
        elif kind == pyarrow.float64():
            columns[name] = pyarrow.array(data.draw(three(st.floats())), kind)
        else:
            width = pyarrow.int32() if kind == pyarrow.date32() else pyarrow.int64()
            bits = 31 if kind == pyarrow.date32() else 63
            columns[name] = pyarrow.array(data.draw(three(st.integers(-(2**bits), 2**bits - 1))), width).cast(kind)
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    content = out.getvalue()
    if data.draw(st.booleans()):
        content = data.draw(mutated(content))
    (scratch / "own.parquet").write_bytes(content)
    attempt(f"parquet: {reader}", READERS[reader], scratch / "own.parquet")


def three(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=3, max_size=3)


BEIR = {
    "corpus.jsonl": b'{"_id": "2", "title": "t", "text": "b"}\n{"_id": "3", "text": "c"}\n',
    "queries.jsonl": b'{"_id": "1", "text": "a"}\n',
    "qrels/test.tsv": b"query-id\tcorpus-id\tscore\n1\t2\t1\n1\t3\t0\n",
}


@given(st.sampled_from(sorted(BEIR)), st.data())
@profile(40)
def test_beir_folders(scratch: Path, name: str, data: Any) -> None:
    (scratch / "beir" / "qrels").mkdir(parents=True, exist_ok=True)
    for other, content in BEIR.items():
        (scratch / "beir" / other).write_bytes(data.draw(mutated(content)) if other == name else content)
    attempt("BEIR", read_retrieval, scratch / "beir")


@given(st.sampled_from(sorted(READERS)), st.lists(st.sampled_from(JSON_VALUES) | st.dictionaries(texts(), texts())))
@profile(40)
def test_python_objects(reader: str, rows: list[Any]) -> None:
    attempt(f"objects: {reader}", READERS[reader], rows)


@given(st.dictionaries(st.sampled_from(["queries", "corpus", "relevant"]), st.sampled_from(JSON_VALUES), min_size=2))
@profile(20)
def test_retrieval_values(values: dict[str, Any]) -> None:
    attempt("retrieval as values", read_retrieval, {"queries": {"1": "a"}, "corpus": {"2": "b"}, **values})
