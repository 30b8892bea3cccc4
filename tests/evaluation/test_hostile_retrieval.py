"""Retrieval data of every wrong kind is an error of one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diffaug.errors import DiffaugError
from diffaug.evaluation import evaluate
from diffaug.evaluation.retrieval_data import read_retrieval

GOOD: dict[str, Any] = {"queries": {"1": "a"}, "corpus": {"2": "b"}, "relevant": {"1": ["2"]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relevant": [["1", "2"]]}, "relevant must map the id of a query to a list"),
        ({"relevant": {"1": "2"}}, "relevant must map"),
        ({"relevant": {"1": 2}}, "relevant must map"),
        ({"relevant": None}, "relevant must map"),
        ({"queries": ["a"]}, "queries must map"),
        ({"corpus": {"2": 3}}, "corpus must map"),
    ],
)
def test_parts_of_the_wrong_kind(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps({**GOOD, **change}))
    for source in (tmp_path / "own.json", {**GOOD, **change}):
        with pytest.raises(DiffaugError, match=message):
            read_retrieval(source)


def test_deep_json(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text("[" * 100_000)
    with pytest.raises(DiffaugError, match="cannot be read as JSON"):
        read_retrieval(tmp_path / "own.json")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", b'{"_id": "2", "text": "\xe9"}', "line 1: .*not UTF-8"),
        ("queries.jsonl", b'{"_id": "1", "text": "\xff"}', "line 1: .*not UTF-8"),
        ("qrels/test.tsv", b"1\t2\t1\n\xe9\t2\t1\n", "line 2: .*not UTF-8"),
        ("qrels/test.tsv", "1\t2\t²\n".encode(), "line 1: expected query-id, corpus-id and an integer"),
        ("qrels/test.tsv", b"1\t2\t" + b"9" * 5000, "expected query-id"),
        ("corpus.jsonl", b'{"_id": "2", "text": ["b"]}', "line 1: title and text must be text"),
        ("queries.jsonl", b'{"_id": "1", "text": 5}', "line 1: title and text must be text"),
        ("corpus.jsonl", b"[" * 100_000, "line 1: invalid JSON"),
        ("corpus.jsonl", b"7", "expected a JSON object"),
    ],
)
def test_beir_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "2", "title": null, "text": "b"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "a"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t2\t1\n")
    assert read_retrieval(tmp_path).corpus == ["b"]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DiffaugError, match=message):
        read_retrieval(tmp_path)


@pytest.mark.parametrize("seed", [-1, 2**32, 10**18])
def test_seeds_that_do_not_exist(seed: int) -> None:
    with pytest.raises(DiffaugError, match="seed must be between 0 and 4,294,967,295"):
        evaluate(None, pairs=[("a", "b", 1.0), ("a", "c", 0.0)], seed=seed)
