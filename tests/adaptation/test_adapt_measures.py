"""Scores of held-out labels and label spreading, against scikit-learn and by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from diffaug.adaptation.linear import apply_linear, fit_linear
from diffaug.adaptation.measure import AveragePrecision, held_out, pseudo_labelled, statistic
from diffaug.adaptation.spreading import spread_labels
from diffaug.data.labels import Label
from diffaug.data.records import Classes, LabelledPairs, PositivePairs, ScoredPairs, Triplets
from diffaug.evaluation.statistics import Spearman

Array = NDArray[np.float32]


def unit(vectors: NDArray[np.floating]) -> Array:
    found: Array = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return found


def random_vectors(sentences: Sequence[str]) -> Array:
    return unit(np.stack([np.random.default_rng(sum(map(ord, text))).normal(size=8) for text in sentences]))


def clusters(count: int, per_cluster: int, noise: float, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """Vectors around some centres, and the centre of each."""
    rng = np.random.default_rng(seed)
    targets = np.repeat(np.arange(count), per_cluster)
    return unit(rng.normal(size=(count, 16))[targets] + noise * rng.normal(size=(len(targets), 16))), targets


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_that_of_scikit_learn(ties: bool) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    found = rng.integers(0, 5, 60).astype(np.float64) if ties else rng.normal(size=60)
    gold = rng.integers(0, 2, 60).astype(np.float64)
    score = AveragePrecision(found, gold)
    assert score.value() == pytest.approx(100 * metrics.average_precision_score(gold, found))
    counts = rng.multinomial(60, np.full(60, 1 / 60), size=3)
    expected = [100 * metrics.average_precision_score(np.repeat(gold, c), np.repeat(found, c)) for c in counts]
    np.testing.assert_allclose(score.resampled(counts), expected)
    assert np.isnan(AveragePrecision(found, np.zeros(60)).value())


def test_spreading_agrees_with_scikit_learn() -> None:
    """With the same number of neighbours; its weights are 0 and 1, ours depend on the cosine."""
    semi_supervised = pytest.importorskip("sklearn.semi_supervised")
    vectors, targets = clusters(4, 30, noise=0.6)
    labelled = np.arange(len(targets)) % 10 == 0
    given = np.where(labelled, targets, -1)
    theirs = semi_supervised.LabelSpreading(kernel="knn", n_neighbors=11, alpha=0.9).fit(vectors, given)
    shares = spread_labels(vectors[labelled], targets[labelled], vectors[~labelled], 4)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-5)
    assert (shares.argmax(1) == theirs.transduction_[~labelled]).mean() > 0.95
    assert (shares.argmax(1) == targets[~labelled]).mean() > 0.9


def test_spreading_by_hand() -> None:
    """Two labelled vectors and one between them, each a neighbour of the others: the iteration as a dense product."""
    angles = np.array([0.0, 1.4, 0.5])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    cosines = np.clip(vectors @ vectors.T, 0, None) ** 4
    np.fill_diagonal(cosines, 0)
    scale = 1 / np.sqrt(cosines.sum(1))
    graph = scale[:, None] * cosines * scale
    own = np.array([[1.0, 0], [0, 1], [0, 0]])
    found = own
    for _ in range(30):
        found = 0.9 * graph @ found + 0.1 * own
    shares = spread_labels(vectors[:2], np.array([0, 1]), vectors[2:], 2)
    np.testing.assert_allclose(shares[0], found[2] / found[2].sum(), rtol=1e-4)


def test_a_sentence_that_no_label_reaches_has_equal_shares() -> None:
    vectors = np.eye(4, dtype=np.float32)
    shares = spread_labels(vectors[:2], np.array([0, 1]), vectors[2:], 2)
    np.testing.assert_allclose(shares, 0.5)


def test_spreading_improves_a_classifier() -> None:
    vectors, targets = clusters(5, 60, noise=0.8, seed=1)
    names = [f"{i}" for i in range(len(vectors))]
    place = {name: i for i, name in enumerate(names)}

    def encode(sentences: Sequence[str]) -> Array:
        return vectors[[place[sentence] for sentence in sentences]]

    def part(rows: range) -> Classes:
        return Classes([names[i] for i in rows], [str(targets[i]) for i in rows])

    train, test = part(range(0, 300, 30)), part(range(1, 300, 3))
    text = [names[i] for i in range(2, 300, 3)]
    alone, helped = (statistic(train, [held_out(encode, train, test, raw)]).value() for raw in (None, text))
    assert helped > alone + 2
    more = pseudo_labelled(encode, train, text, seed=0)
    assert more.sentences[: len(train)] == train.sentences
    assert len(train) < len(more) <= len(train) + len(text)
    rest = list(more)[len(train) :]
    assert np.mean([str(targets[place[sentence]]) == name for sentence, name in rest]) > 0.9


def test_held_out_pairs_are_scored_by_their_cosines() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    first, second = [f"a {i}" for i in range(30)], [f"b {i * i}" for i in range(30)]
    cosines = (random_vectors(first) * random_vectors(second)).sum(1)
    scores = [float(i % 7) for i in range(30)]
    pairs = ScoredPairs(first, second, scores)
    assert statistic(pairs, [held_out(random_vectors, pairs, pairs)]).value() == pytest.approx(
        Spearman(cosines, scores).value(), abs=1e-3
    )
    labels = [Label.ENTAILMENT if i % 3 else Label.NOT_ENTAILMENT for i in range(30)]
    binary = LabelledPairs(first, second, labels)
    assert statistic(binary, [held_out(random_vectors, binary, binary)]).value() == pytest.approx(
        100 * metrics.average_precision_score([bool(i % 3) for i in range(30)], cosines), abs=1e-3
    )
    triplets = Triplets(first, second, first[::-1])
    others = (random_vectors(first) * random_vectors(first[::-1])).sum(1)
    assert statistic(triplets, [held_out(random_vectors, triplets, triplets)]).value() == pytest.approx(
        100 * metrics.average_precision_score([1] * 30 + [0] * 30, np.concatenate([cosines, others])), abs=1e-3
    )


def test_matching_pairs_are_scored_by_the_rank_of_the_match() -> None:
    vectors = {"q1": [1, 0], "q2": [0, 1], "q3": [0.9, 0.1], "a": [1, 0], "b": [0.6, 0.8], "c": [0.8, 0.6]}
    pairs = PositivePairs(["q1", "q2", "q3"], ["a", "b", "b"])

    def encode(sentences: Sequence[str]) -> Array:
        return unit(np.array([vectors[sentence] for sentence in sentences], np.float32))

    # b is q2's own and its nearest; of q3 the nearest is a, and the other b is no wrong answer.
    np.testing.assert_allclose(held_out(encode, pairs, pairs)["outcome"], [1, 1, 1 / 2])


def test_folds_are_averaged_by_their_size() -> None:
    rng = np.random.default_rng(0)
    found = [{"found": rng.normal(size=n), "gold": rng.normal(size=n)} for n in (10, 30)]
    each = [Spearman(fold["found"], fold["gold"]).value() for fold in found]
    pairs = ScoredPairs([], [], [])
    assert statistic(pairs, found).value() == pytest.approx((10 * each[0] + 30 * each[1]) / 40)


def test_a_linear_map_learns_which_dimensions_count() -> None:
    """Half of the dimensions are noise, and the scores say so; an untrained map is the identity."""
    rng = np.random.default_rng(0)
    vectors = {name: rng.normal(size=16) for name in map(str, range(400))}

    def encode(sentences: Sequence[str]) -> Array:
        return unit(np.stack([vectors[sentence] for sentence in sentences]))

    def pairs(start: int) -> ScoredPairs:
        first, second = [str(start + i) for i in range(100)], [str(start + 100 + i) for i in range(100)]
        signal = [
            float(unit(vectors[a][None, :8])[0] @ unit(vectors[b][None, :8])[0])
            for a, b in zip(first, second, strict=True)
        ]
        return ScoredPairs(first, second, signal)

    train, test = pairs(0), pairs(200)
    weight = fit_linear(encode, train, seed=0)
    scores = [
        statistic(test, [held_out(how, train, test)]).value()
        for how in (encode, lambda sentences: apply_linear(weight, encode(sentences)))
    ]
    assert scores[1] > scores[0] + 5
    assert np.abs(weight[:8, :8]).diagonal().mean() > np.abs(weight[8:, 8:]).diagonal().mean()
