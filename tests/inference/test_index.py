from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffaug import DiffaugError, Embedder, Index, StoredVectors
from diffaug.files import exclusive_lock
from diffaug.inference import index as module
from diffaug.inference.search import search_unique

pytest.importorskip("lancedb")

WHO = ["dog", "cat", "market", "garden", "train"]
TEXTS = [f"The {who} number {i} is here." for i in range(12) for who in WHO]


@pytest.fixture(scope="module")
def embedder(tiny_bert: Path) -> Embedder:
    return Embedder.from_pretrained(tiny_bert, device="cpu")


def encoded(embedder: Embedder, folder: Path, texts: list[str], start: int = 0, **options: Any) -> Path:
    """Texts with their vectors, as `encode` writes them."""
    source = folder.with_name(f"{folder.name}.jsonl")
    rows = [{"id": i, "text": text, "kind": text.split()[1]} for i, text in enumerate(texts, start)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    embedder.encode_files(source, folder, shard_size=16, **options)
    return folder


@pytest.fixture(scope="module")
def built(embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("index")
    return Index.build(folder / "index", encoded(embedder, folder / "v", TEXTS))


def test_search_is_exact_below_the_limit(embedder: Embedder, built: Index) -> None:
    assert (built.rows, built.recall) == (len(TEXTS), None)
    queries = ["A dog is here.", "The market number 7 is here."]
    scores = embedder.encode(queries) @ embedder.encode(TEXTS).T
    for hits, row in zip(embedder.search(built, queries, 7), scores, strict=True):
        # Some of the sentences have equal vectors, whose order is not determined.
        np.testing.assert_allclose(row[[hit.index for hit in hits]], np.sort(row)[::-1][:7], atol=1e-6)
        np.testing.assert_allclose([hit.score for hit in hits], np.sort(row)[::-1][:7], atol=1e-6)
        for hit in hits:
            assert hit.sentence == TEXTS[hit.index]
            assert hit.columns == {"id": hit.index, "kind": TEXTS[hit.index].split()[1]}
    assert embedder.search(built, queries[1], 1)[0].score == pytest.approx(1, abs=1e-6)


def test_filters_and_full_text(embedder: Embedder, built: Index) -> None:
    query = embedder.encode(["A dog is here."])
    hits = built.search(query, 5, where="kind = 'cat' AND id > 20")[0]
    scores = (query @ embedder.encode(TEXTS).T)[0]
    allowed = [i for i in range(len(TEXTS)) if i > 20 and i % 5 == 1]
    assert {hit.index for hit in hits} <= set(allowed)
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores[allowed])[::-1][:5], atol=1e-6)
    with pytest.raises(DiffaugError, match=r"cannot be searched with the filter 'year > 3': .*year"):
        built.search(query, 5, where="year > 3")
    with pytest.raises(DiffaugError, match="k must be at least 1, got 0"):
        built.search(query, 0)
    # The vector of another sentence: the words decide.
    hybrid = built.search(query, 3, texts=["garden 11"])[0]
    assert "The garden number 11 is here." in [hit.sentence for hit in hybrid]
    assert hybrid[0].score >= hybrid[-1].score
    assert len(built.search(query, 3, texts=[""])[0]) == 3


def test_documents_are_added(embedder: Embedder, tmp_path: Path) -> None:
    index = Index.build(tmp_path / "index", encoded(embedder, tmp_path / "v", TEXTS[:40]))
    assert index.add(encoded(embedder, tmp_path / "w", TEXTS[40:], start=40)) == 20
    again = Index.open(tmp_path / "index")
    assert again.rows == 60
    hit = embedder.search(again, TEXTS[55], 1)[0]
    assert hit.sentence == TEXTS[hit.index]
    assert hit.columns["id"] == hit.index
    assert [found.index for found in again.search(embedder.encode(["A dog."]), 60)[0] if found.index >= 40] != []
    hybrid = again.search(embedder.encode(["A dog."]), 2, texts=["market 11"])[0]
    assert "The market number 11 is here." in [hit.sentence for hit in hybrid]


def test_all_documents_are_added_or_none(embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index.build(tmp_path / "index", encoded(embedder, tmp_path / "v", TEXTS[:40]))
    more = encoded(embedder, tmp_path / "w", TEXTS[40:], start=40)

    def fail(*_: Any) -> None:
        raise DiffaugError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Index, "_update", fail)
        with pytest.raises(DiffaugError, match="no space left"):
            index.add(more)
        assert (index.rows, Index.open(tmp_path / "index").rows) == (40, 40)
        # As in a process that is killed: nothing can be removed any more.
        patch.setattr(Index, "_undo_unfinished", lambda _: None)
        with pytest.raises(DiffaugError, match="no space left"):
            index.add(more)
    again = Index.open(tmp_path / "index")
    assert again.add(more) == 20
    assert again.rows == 60
    assert sorted(hit.index for hit in again.search(embedder.encode(["A dog."]), 99)[0]) == list(range(60))


def test_other_models_and_columns_are_refused(
    embedder: Embedder, built: Index, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    other = Embedder.from_pretrained(tiny("distilbert"), device="cpu")
    with pytest.raises(DiffaugError, match=r"index holds vectors of .*cannot be combined with those of .*distilbert"):
        other.search(built, "A dog.")
    with pytest.raises(DiffaugError, match=r"index holds vectors of .*cannot be combined with those of .*distilbert"):
        built.add(encoded(other, tmp_path / "v", TEXTS[:3]))
    with pytest.raises(DiffaugError, match=r"w has no column 'kind'; the documents must have the columns of the index"):
        built.add(encoded(embedder, tmp_path / "w", TEXTS[:3], keep=["id"]))
    with (
        exclusive_lock(built.folder / ".lock"),
        pytest.raises(DiffaugError, match="index is in use by another process"),
    ):
        built.add(encoded(embedder, tmp_path / "x", TEXTS[:3]))
    assert built.rows == len(TEXTS)


def test_what_is_no_index(embedder: Embedder, tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match="is not an index of diffaug; create one with diffaug index build"):
        Index.open(tmp_path)
    vectors = encoded(embedder, tmp_path / "v", TEXTS[:3])
    with pytest.raises(DiffaugError, match="exists already"):
        Index.build(tmp_path / "v", vectors)
    with pytest.raises(DiffaugError, match="is not an index and is not overwritten"):
        Index.build(tmp_path / "v", vectors, overwrite=True)
    with pytest.raises(DiffaugError, match="holds no vectors; write them first with diffaug encode"):
        Index.build(tmp_path / "i", tmp_path / "v.jsonl")
    (vectors / "shard-000000.parquet").unlink()
    with pytest.raises(DiffaugError, match="is missing; repeat the command"):
        Index.build(tmp_path / "i", vectors)
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize("precision", ["float16", "int8", "binary"])
def test_vectors_of_any_precision(embedder: Embedder, tmp_path: Path, precision: Any) -> None:
    index = Index.build(tmp_path / "index", encoded(embedder, tmp_path / "v", TEXTS, precision=precision))
    stored = StoredVectors.open(tmp_path / "v")
    assert stored is not None
    query = embedder.encode(["A dog is here."])
    ours, theirs = index.search(query, 60)[0], stored.search(query, 60)[0]
    np.testing.assert_allclose([hit.score for hit in ours], [hit.score for hit in theirs], atol=2e-3)


def test_recall_of_an_approximate_index_is_measured(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXACT_LIMIT", 300)
    monkeypatch.setattr(module, "_SAMPLED", 20)
    texts = [f"The {who} number {i} is in {where}." for i in range(12) for who in WHO for where in ("town", *WHO)]
    index = Index.build(tmp_path / "index", encoded(embedder, tmp_path / "v", texts))
    assert index.rows == 360
    assert index.recall is not None
    assert index.recall.recall >= module.RECALL_GOAL
    assert "recall@10" in str(index.recall)
    # Independently: the share of the exact neighbours that a search finds.
    vectors = embedder.encode(texts)
    shares = []
    for row in range(0, 360, 18):
        scores = vectors @ vectors[row]
        near = index.search(vectors[row : row + 1], 10)[0]
        shares.append(sum(hit.score >= np.sort(scores)[-10] - 1e-5 for hit in near) / 10)
    assert np.mean(shares) >= 0.9


def test_a_filter_that_few_rows_meet(embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found in whatever partition they are."""
    import lancedb.index

    monkeypatch.setattr(lancedb.index, "IvfSq", partial(lancedb.index.IvfSq, num_partitions=30))
    for name, value in {"EXACT_LIMIT": 300, "_SAMPLED": 20, "_EFFORTS": ((1, 2),), "RECALL_GOAL": 0}.items():
        monkeypatch.setattr(module, name, value)
    texts = [f"The {who} number {i} is in {where}." for i in range(12) for who in WHO for where in ("town", *WHO)]
    index = Index.build(tmp_path / "index", encoded(embedder, tmp_path / "v", texts))
    assert index.recall is not None
    assert index.recall.recall < 0.95  # of one partition in 30
    near = index.search(embedder.encode(texts[:1]), 5, where="id % 90 = 7")[0]
    assert sorted(hit.index for hit in near) == [7, 97, 187, 277]


def test_search_is_exact_if_an_approximate_index_misses_the_goal(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXACT_LIMIT", 300)
    monkeypatch.setattr(module, "_SAMPLED", 20)
    texts = [f"The {who} number {i} is in {where}." for i in range(12) for who in WHO for where in ("town", *WHO)]
    vectors = encoded(embedder, tmp_path / "v", texts)
    with monkeypatch.context() as patch:
        patch.setattr(module, "RECALL_GOAL", 1.01)
        index = Index.build(tmp_path / "index", vectors)
        assert (index.recall, index.missed is None) == (None, False)
        words = r"search is exact, because an approximate index missed the goal of 1.01: recall@10 1.000 .*"
        assert re.fullmatch(words, index.quality)
        assert Index.open(tmp_path / "index").missed == index.missed
        assert [found.columns for found in index._table.list_indices()] == [["sentence"]]
        assert len(list((tmp_path / "index").glob("*.lance/_indices/*"))) == 1  # no files of the removed one
        query = embedder.encode(["A dog is in town."])
        scores = (query @ embedder.encode(texts).T)[0]
        found = [hit.score for hit in index.search(query, 20)[0]]
        np.testing.assert_allclose(found, np.sort(scores)[::-1][:20], atol=1e-6)
    # With more documents it is tried again, and an index whose recall falls is removed.
    index.add(encoded(embedder, tmp_path / "w", texts[:5]))
    assert index.recall is not None
    assert (index.missed, index.quality) == (None, str(index.recall))
    monkeypatch.setattr(module, "RECALL_GOAL", 1.01)
    index.add(encoded(embedder, tmp_path / "x", texts[:5]))
    assert (index.recall, index.rows) == (None, 370)
    assert index.missed is not None


def test_scores_of_queries_of_any_length(embedder: Embedder, built: Index) -> None:
    query = embedder.encode(["A dog is here."])
    one, other = (built.search(length * query, 5)[0] for length in (1, 3))
    np.testing.assert_allclose([3 * hit.score for hit in one], [hit.score for hit in other], atol=1e-5)


def test_an_index_of_another_version(embedder: Embedder, tmp_path: Path) -> None:
    Index.build(tmp_path / "index", encoded(embedder, tmp_path / "v", TEXTS[:3]))
    path = tmp_path / "index" / "diffaug-index.json"
    path.write_text(path.read_text().replace("diffaug index 2", "diffaug index 1"))
    with pytest.raises(DiffaugError, match=r"another version of diffaug \(diffaug index 1\); build the index again"):
        Index.open(tmp_path / "index")


def test_unique_hits_look_further() -> None:
    from diffaug.inference.search import Hit

    hits = [Hit(i, 1 - i / 100, "a" if i < 9 else f"b{i}") for i in range(20)]
    asked = []

    def search(count: int) -> list[list[Hit]]:
        asked.append(count)
        return [hits[:count]]

    assert [hit.index for hit in search_unique(search, 3, 20)[0]] == [0, 9, 10]
    assert asked == [3, 12]
    assert len(search_unique(search, 15, 20)[0]) == 12
