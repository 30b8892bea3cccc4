"""Maps of embeddings."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from diffaug.data.records import ScoredPairs
from diffaug.errors import DiffaugError
from diffaug.report.embeddings import align, choose_pairs, neighbours, project


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


def test_pairs_are_spread_over_the_scores_and_those_wanted_are_there() -> None:
    pairs = ScoredPairs([f"a{i}" for i in range(1000)], [f"b{i}" for i in range(1000)], [i / 200 for i in range(1000)])
    chosen = choose_pairs(pairs, 100, [3, 777, 3])
    assert {0, 999, 3, 777} <= set(chosen)
    assert len(chosen) == len(set(chosen)) <= 100
    assert np.histogram(chosen, bins=5, range=(0, 1000))[0].min() > 15
    assert choose_pairs(pairs.take(range(4)), 100) == [0, 1, 2, 3]


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
    with pytest.raises(DiffaugError, match=r"diffaug\[eval\]"):
        project(vectors, "tsne")
