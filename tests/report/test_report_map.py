"""Maps of embeddings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.made_runs import write_run

from diffaug.errors import DiffaugError
from diffaug.report.data import Sentences, map_data
from diffaug.report.embeddings import align, neighbours, project
from diffaug.report.runs import read_run
from diffaug.report.sentences import OwnSentences, own_sentences


@pytest.fixture
def vectors() -> np.ndarray:
    random = np.random.default_rng(0)
    found = random.normal(size=(60, 16)) * np.linspace(3, 0.1, 16)
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def test_pca_is_that_of_the_covariance(vectors: np.ndarray) -> None:
    flat, shown = project(vectors, "pca")
    centred = vectors.astype(float) - vectors.mean(0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    expected = centred @ directions[:, [-1, -2]]
    expected /= np.sqrt((expected**2).mean())
    np.testing.assert_allclose(np.abs(flat), np.abs(expected), atol=1e-5)
    assert shown == pytest.approx(values[-2:].sum() / values.sum(), abs=1e-6)


def test_the_point_farthest_out_is_on_the_positive_side(vectors: np.ndarray) -> None:
    for some in (vectors, -vectors):
        flat = project(some, "pca")[0]
        assert (flat[np.abs(flat).argmax(0), [0, 1]] > 0).all()


def test_a_turned_and_mirrored_map_is_turned_back(vectors: np.ndarray) -> None:
    flat = project(vectors, "pca")[0]
    angle = 1.1
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ np.diag([1, -1])
    np.testing.assert_allclose(align(flat @ turn, flat), flat, atol=1e-9)


def test_equal_vectors_have_a_map(vectors: np.ndarray) -> None:
    flat, _ = project(np.repeat(vectors[:1], 5, axis=0), "pca")
    assert np.isfinite(flat).all()


def test_neighbours_are_the_nearest_by_the_full_vectors(vectors: np.ndarray) -> None:
    found = neighbours(vectors, 3)
    for i, row in enumerate(found):
        others = sorted((j for j in range(60) if j != i), key=lambda j: -float(vectors[i] @ vectors[j]))
        assert [j for j, _ in row] == others[:3]
        assert [c for _, c in row] == pytest.approx([float(vectors[i] @ vectors[j]) for j in others[:3]], abs=1e-6)
    assert [len(row) for row in neighbours(vectors[:2], 5)] == [1, 1]


def _map(vectors: np.ndarray, after: np.ndarray, classes: list[str] | None) -> dict[str, Any]:
    own = OwnSentences("file.csv", [f"Sentence {i}." for i in range(len(vectors))], classes)
    sides = {"backbone": vectors, "best": after}
    drawn, notes = map_data(own, {3: Path("best")}, {3: "backbone"}, "pca", lambda m, _: sides[str(m)], Sentences())
    assert notes == []
    return drawn


def test_a_map_compares_the_neighbours_before_and_after(vectors: np.ndarray) -> None:
    classes = ["a", "b"] * 30
    # After training, sentences of one class are alike: all neighbours have the class of the sentence.
    after = vectors + np.where(np.arange(60) % 2, 50, -50)[:, None].astype(np.float32)
    after /= np.linalg.norm(after, axis=1, keepdims=True)
    drawn = _map(vectors, after, classes)
    (model,) = drawn["models"]
    assert model["after"]["same"] == 100
    near = [{j for j, _ in row} for row in neighbours(vectors)]
    same = np.mean([classes[i] == classes[j] for i, row in enumerate(near) for j in row])
    assert drawn["before"][model["before"]]["same"] == round(100 * float(same)) < 70
    now = [{j for j, _ in row} for row in neighbours(after)]
    assert model["new"] == [round(100 * len(now[i] - near[i]) / 10) for i in range(60)]
    assert min(model["new"]) < max(model["new"])
    unchanged = _map(vectors, vectors, None)
    assert unchanged["models"][0]["new"] == [0] * 60
    assert unchanged["before"][0]["same"] is None


def test_a_map_without_the_model_before_training_says_so(vectors: np.ndarray) -> None:
    def encode(model: str | Path, _: list[str]) -> np.ndarray:
        if model == "gone":
            raise DiffaugError("the model gone was not found")
        return vectors

    own = OwnSentences("file.csv", [f"Sentence {i}." for i in range(60)])
    drawn, notes = map_data(own, {0: Path("best")}, {0: "gone"}, "pca", encode, Sentences())
    assert notes == ["The map before training is missing: the model gone was not found"]
    assert drawn["models"][0]["before"] is None
    assert drawn["models"][0]["new"] is None


@pytest.mark.parametrize(
    ("data", "name", "classes"),
    [
        ({"nli": "classes.csv", "unlabelled": "text.txt"}, "classes.csv, nli", True),
        ({"nli": "pairs.csv", "unlabelled": "text.txt"}, "text.txt, unlabelled", False),
        ({"nli": ["gone.csv", "pairs.csv"], "dev": "dev.tsv"}, "pairs.csv, nli", False),
        ({"nli": "rows passed in Python", "dev": "dev.tsv"}, "dev.tsv, dev", False),
    ],
)
def test_the_sentences_are_the_users(tmp_path: Path, data: dict[str, Any], name: str, classes: bool) -> None:
    texts = [f"Sentence number {i}." for i in range(400)]
    rows = "".join(f"{text},{'odd' if i % 2 else 'even'}\n" for i, text in enumerate(texts))
    (tmp_path / "classes.csv").write_text("text,label\n" + rows)
    (tmp_path / "pairs.csv").write_text("anchor,positive\n" + "".join(f"{text},The same as {text}\n" for text in texts))
    (tmp_path / "text.txt").write_text("\n".join(texts + texts))
    (tmp_path / "dev.tsv").write_text("".join(f"{i % 5}\t{text}\tAnother.\n" for i, text in enumerate(texts)))
    run = read_run(write_run(tmp_path / "runs" / "a", data=data), "a")
    own, _ = own_sentences([run])
    assert own is not None
    assert own.name == name
    assert len(own.texts) == len(set(own.texts)) == 300
    if classes:
        assert own.classes == ["odd" if int(text.split()[-1][:-1]) % 2 else "even" for text in own.texts]
    else:
        assert own.classes is None
    given, _ = own_sentences([run], tmp_path / "text.txt")
    assert given is not None
    assert given.name == "text.txt"


def test_sentences_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    own, notes = own_sentences([read_run(write_run(tmp_path / "a", data={"nli": "gone.csv"}), "a")])
    assert own is None
    assert "gone.csv" in notes[0]


def test_tsne_keeps_groups_together_and_is_the_same_every_time(vectors: np.ndarray) -> None:
    random = np.random.default_rng(1)
    groups = np.repeat(random.normal(size=(2, 16)), 20, axis=0) + 0.05 * random.normal(size=(40, 16))
    flat, shown = project(groups.astype(np.float32), "tsne")
    assert shown is None
    np.testing.assert_array_equal(flat, project(groups.astype(np.float32), "tsne")[0])
    within = np.linalg.norm(flat[:20] - flat[:20].mean(0), axis=1).max()
    assert within < np.linalg.norm(flat[:20].mean(0) - flat[20:].mean(0))


def test_tsne_without_scikit_learn_is_an_error(vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(DiffaugError, match=r"diffaug\[report\]"):
        project(vectors, "tsne")
