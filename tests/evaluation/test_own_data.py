"""Scored pairs, triplets and retrieval of one's own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_statistics import pearson_by_hand, spearman_by_hand

from diffaug.data.records import ScoredPairs, Triplets
from diffaug.errors import DiffaugError
from diffaug.evaluation.evaluator import evaluate
from diffaug.evaluation.own_data import PairsTask, RetrievalTask, TripletsTask
from diffaug.evaluation.result import EvaluationResult
from diffaug.evaluation.retrieval_data import RetrievalData, read_retrieval
from diffaug.evaluation.tasks import Embeddings


def at_angles(**degrees: float) -> Embeddings:
    """Sentences as directions in the plane, at different lengths."""
    turns = np.deg2rad(list(degrees.values()))
    vectors = np.stack([np.cos(turns), np.sin(turns)], axis=1) * np.arange(1, 1 + len(turns))[:, None]
    return Embeddings(list(degrees), vectors.astype(np.float32))


def test_pairs_are_ranked_by_their_cosine() -> None:
    embeddings = at_angles(a=0, b=10, c=50, d=90)
    pairs = ScoredPairs(["a", "a", "b", "c"], ["b", "c", "d", "d"], [5.0, 1.0, 1.5, 2.0])
    result = PairsTask("mine", pairs).score(embeddings)
    cosines = [float(np.cos(np.deg2rad(gap))) for gap in (10, 50, 80, 40)]
    assert result.score == pytest.approx(100 * spearman_by_hand(cosines, pairs.scores))
    assert result.details["pearson"] == pytest.approx(100 * pearson_by_hand(cosines, pairs.scores), abs=1e-4)
    assert (result.protocol, result.rows) == ("pairs_spearman", 4)


def test_a_triplet_is_right_if_the_positive_is_nearer() -> None:
    embeddings = at_angles(a=0, near=5, far=30, same=5)
    triplets = Triplets(["a", "a", "a"], ["near", "far", "near"], ["far", "near", "same"])
    result = TripletsTask("mine", triplets).score(embeddings)
    assert result.score == pytest.approx(100 / 3)
    assert result.statistic.rows == 3


def test_retrieval_against_a_plain_reference() -> None:
    rng = np.random.default_rng(0)
    queries, corpus = [f"q{i}" for i in range(30)], [f"d{i}" for i in range(120)]
    vectors = rng.normal(size=(150, 6)).astype(np.float32)
    relevant = [sorted(rng.choice(120, size=rng.integers(1, 5), replace=False).tolist()) for _ in queries]
    data = RetrievalData(queries, corpus, [dict.fromkeys(wanted, 1) for wanted in relevant], [None] * 30)
    result = RetrievalTask("mine", data).score(Embeddings([*queries, *corpus], vectors))

    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    reciprocal, recall = [], {1: [], 5: [], 10: [], 100: []}
    for i, wanted in enumerate(relevant):
        order = sorted(range(120), key=lambda d: -float(unit[i].astype(float) @ unit[30 + d].astype(float)))
        reciprocal.append(1 / min(1 + order.index(d) for d in wanted))
        for k, found in recall.items():
            found.append(len(set(order[:k]) & set(wanted)) / len(wanted))
    assert result.score == pytest.approx(100 * np.mean(reciprocal))
    assert 5 < result.score < 60
    for k, found in recall.items():
        assert result.details[f"recall@{k}"] == pytest.approx(100 * np.mean(found))


def test_equal_documents_come_in_the_order_of_the_corpus() -> None:
    data = RetrievalData(["q"], ["x", "y", "z", "far"], [{2: 1}], [None])
    result = RetrievalTask("mine", data).score(at_angles(q=0, x=10, y=10, z=10, far=90))
    assert result.score == pytest.approx(100 / 3)
    assert "recall@5" not in result.details, "five of four documents would be all of them"


EXPECTED = RetrievalData(["what?", "who?"], ["three", "two", "T one"], [{2: 1, 0: 2}, {1: 1}], [None, None])


def write_beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    corpus = [
        {"_id": "d1", "title": "T", "text": "one"},
        {"_id": "d2", "text": "two"},
        {"_id": "d3", "title": "", "text": "three"},
    ]
    queries = [{"_id": "q1", "text": "what?"}, {"_id": "q2", "text": "who?"}, {"_id": "q9", "text": "of another split"}]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td3\t2\nq1\td2\t0\nq2\td2\t1\n"
    (folder / "qrels" / "test.tsv").write_text(judged)
    return folder


def test_the_forms_of_retrieval_data(tmp_path: Path) -> None:
    assert read_retrieval(write_beir(tmp_path / "beir")) == EXPECTED
    mapping = {
        "queries": {"1": "what?", "2": "who?"},
        "corpus": {"a": "T one", "b": "two", "c": "three"},
        "relevant": {"1": {"a": 1, "c": 2, "b": 0}, "2": ["b", "b"]},
    }
    assert read_retrieval(mapping) == EXPECTED
    (tmp_path / "all.json").write_text(json.dumps(mapping))
    assert read_retrieval(tmp_path / "all.json") == EXPECTED
    (tmp_path / "pairs.csv").write_text('query,document\nwhat?,T one\n"what?",three\nwho?,two\n')
    table = read_retrieval(tmp_path / "pairs.csv")
    assert table == RetrievalData(["what?", "who?"], ["two", "three", "T one"], [{2: 1, 1: 1}, {0: 1}], [None, None])
    (tmp_path / "named.csv").write_text("asked,body,text\nwhat?,T one,1\nwho?,two,2\n")
    named = read_retrieval(tmp_path / "named.csv", {"query": "asked", "Document": "body"})
    assert named == RetrievalData(["what?", "who?"], ["two", "T one"], [{1: 1}, {0: 1}], [None, None])
    rows = [{"question": "what?", "answer": "T one"}, {"question": "what?", "answer": "three"}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    from_rows = read_retrieval(tmp_path / "pairs.jsonl")
    assert from_rows == RetrievalData(["what?"], ["three", "T one"], [{1: 1, 0: 1}], [None])


def test_the_corpus_is_not_doubled_in_64_bits() -> None:
    seen = []

    class Watched(Embeddings):
        def unit(self, sentences: Any, dtype: Any = np.float64) -> Any:
            seen.append(dtype)
            return super().unit(sentences, dtype)

    data = RetrievalData(["q"], ["x", "y"], [{0: 1}], [None])
    RetrievalTask("mine", data).score(Watched(["q", "x", "y"], np.eye(3, dtype=np.float32)))
    assert seen == [np.float32, np.float32]


def test_queries_without_a_relevant_document_are_counted() -> None:
    data = read_retrieval({"queries": {"1": "x", "2": "y"}, "corpus": {"a": "z"}, "relevant": {"1": ["a"], "2": []}})
    assert (data.queries, data.left_out) == (["x"], 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"queries": {}, "corpus": {}}, "missing: relevant"),
        ({"queries": {"1": "x"}, "corpus": {"a": "y"}, "relevant": {"1": ["b"]}}, "refers to the unknown document 'b'"),
        ({"queries": {"1": "x"}, "corpus": {"a": "y"}, "relevant": {"2": ["a"]}}, "refers to the unknown query '2'"),
        ({"queries": {"1": "x"}, "corpus": {"a": "y"}, "relevant": {"1": []}}, "no query has a relevant document"),
        ({"queries": ["x"], "corpus": {"a": "y"}, "relevant": {}}, "queries must map an id to a text"),
        ({"queries": {"1": "x"}, "corpus": {"a": "y"}, "relevant": {"1": {"a": "b"}}}, "or to integer grades"),
    ],
)
def test_bad_retrieval_data_is_explained(content: dict[str, object], message: str) -> None:
    with pytest.raises(DiffaugError, match=message):
        read_retrieval(content)


def test_bad_retrieval_files_are_explained(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir")
    (folder / "qrels" / "test.tsv").write_text("q1\td1\n")
    with pytest.raises(DiffaugError, match=r"test\.tsv, line 1"):
        read_retrieval(folder)
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "x"}\nnonsense\n')
    with pytest.raises(DiffaugError, match=r"queries\.jsonl, line 2"):
        read_retrieval(folder)
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(DiffaugError, match=r"corpus\.jsonl does not exist"):
        read_retrieval(folder)
    (tmp_path / "pairs.csv").write_text("first,second\na,b\n")
    with pytest.raises(DiffaugError, match="needs the columns query and document, found: first, second"):
        read_retrieval(tmp_path / "pairs.csv")


def test_provenance_is_recorded_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("1\ta dog\ta cat\n5\ta dog\tone dog\n", "utf-8")
    result = evaluate(pairs=str(path), resamples=0)
    found = result.to_dict()["provenance"]
    assert found["data"] == {"tasks": {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}}
    assert found["models"] == {"model": result.model.fingerprint}
    assert {"diffaug", "torch", "transformers"} <= found["versions"].keys()
    assert found["device"]
    assert EvaluationResult.from_dict(result.to_dict()).to_dict() == result.to_dict()
    older = {name: value for name, value in result.to_dict().items() if name != "provenance"}
    assert EvaluationResult.from_dict(older).versions == {}
