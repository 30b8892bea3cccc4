"""How good a model is on held-out labels, by the kind of the labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diffaug.adaptation.spreading import spread_labels
from diffaug.data.records import Classes, Labelled, LabelledPairs, PositivePairs, ScoredPairs, Triplets
from diffaug.evaluation.statistics import Counts, Floats, Mean, Spearman, Statistic
from diffaug.models.classifier import Classifier

Array = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Array]
Outcomes = dict[str, NDArray[np.float64]]
"""What a model did with the held-out rows, as arrays of one value per row, or of two rows per triplet."""

# Weight of a labelled sentence beside that of an unlabelled one, whose class is uncertain.
_LABELLED_WEIGHT = 5.0


def measure_name(labelled: Labelled) -> str:
    """The name of the score."""
    if isinstance(labelled, Classes):
        return "accuracy"
    if isinstance(labelled, ScoredPairs):
        return "Spearman"
    if isinstance(labelled, (Triplets, LabelledPairs)):
        return "average precision"
    return "mean reciprocal rank"


def held_out(encode: Encode, train: Labelled, test: Labelled, text: Sequence[str] | None = None) -> Outcomes:
    """Apply a model to held-out rows.

    Args:
        encode: sentences to vectors of length 1.
        train: the rows that a classifier may learn from; only sentences with a class use them.
        test: the held-out rows, of the same kind.
        text: unlabelled sentences, for label spreading; only sentences with a class use them.
    """
    if isinstance(test, Classes):
        assert isinstance(train, Classes)
        classifier = fit_classifier(encode, train, text)
        predicted = classifier.probabilities(encode(test.sentences)).argmax(1)
        right = [classifier.names[i] == name for i, name in zip(predicted, test.classes, strict=True)]
        return {"outcome": np.array(right, np.float64)}
    if isinstance(test, ScoredPairs):
        return {"found": _cosines(encode, test.first, test.second), "gold": np.array(test.scores, np.float64)}
    if isinstance(test, LabelledPairs):
        return {"found": _cosines(encode, test.premises, test.hypotheses), "gold": np.array(test.binary(), np.float64)}
    if isinstance(test, Triplets):
        found = [_cosines(encode, test.anchors, other) for other in (test.positives, test.negatives)]
        return {"found": np.concatenate(found), "gold": np.repeat([1.0, 0.0], len(test))}
    assert isinstance(test, PositivePairs)
    cosines = encode(test.anchors) @ encode(test.positives).T
    own = np.diagonal(cosines)
    # A positive that equals another pair's is no wrong answer.
    same = np.array(test.positives)[:, None] == np.array(test.positives)[None]
    better = ((cosines > own[:, None]) & ~same).sum(1)
    return {"outcome": 1.0 / (1 + better)}


def statistic(labelled: Labelled, outcomes: Sequence[Outcomes]) -> Statistic:
    """The score over all folds; correlations and precisions are computed in each fold and averaged by its size."""
    if "outcome" in outcomes[0]:
        return Mean(np.concatenate([fold["outcome"] for fold in outcomes]))
    kind = Spearman if isinstance(labelled, ScoredPairs) else AveragePrecision
    return _MeanOfFolds([kind(fold["found"], fold["gold"]) for fold in outcomes])


def fit_classifier(encode: Encode, train: Classes, text: Sequence[str] | None = None) -> Classifier:
    """Logistic regression on a model's vectors; with unlabelled text, also on the labels that spread to it."""
    vectors = encode(train.sentences)
    if not text:
        return Classifier.fit(vectors, train.classes)
    names, shares = spread_classes(encode, train, text)
    return Classifier.fit(
        np.concatenate([vectors, encode(text)]),
        [*train.classes, *(names[i] for i in shares.argmax(1))],
        c=10.0,
        weights=np.concatenate([np.full(len(vectors), _LABELLED_WEIGHT), shares.max(1)]),
        tolerance=1e-5,  # half the time for the same predictions
    )


def pseudo_labelled(encode: Encode, train: Classes, text: Sequence[str], seed: int) -> Classes:
    """The labelled sentences, and unlabelled ones with the class that spreads to them.

    An unlabelled sentence is taken with a probability of the square of its class's share, so that mostly those are
    taken whose class is sure.
    """
    names, shares = spread_classes(encode, train, text)
    taken = np.random.default_rng(seed).random(len(text)) < shares.max(1) ** 2
    best = shares.argmax(1)
    found = [(text[int(i)], names[int(best[i])]) for i in np.flatnonzero(taken)]
    return Classes(
        [*train.sentences, *(sentence for sentence, _ in found)], [*train.classes, *(name for _, name in found)]
    )


def spread_classes(encode: Encode, train: Classes, text: Sequence[str]) -> tuple[list[str], Array]:
    """The names of the classes, and the share of each in the label of every unlabelled sentence."""
    names = sorted(set(train.classes))
    place = {name: i for i, name in enumerate(names)}
    targets = np.array([place[name] for name in train.classes])
    return names, spread_labels(encode(train.sentences), targets, encode(text), len(names))


def _cosines(encode: Encode, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float64]:
    products: NDArray[np.float64] = (encode(first).astype(np.float64) * encode(second)).sum(1)
    return products


class AveragePrecision(Statistic):
    """100 times the average precision of class 1 (the area under precision and recall); NaN without this class."""

    def __init__(self, found: NDArray[np.float64], gold: NDArray[np.float64]) -> None:
        self._order = np.argsort(-found, kind="stable")
        self._gold = gold[self._order]
        # Rows with equal values share the precision at the end of their run.
        ordered = found[self._order]
        self._last = np.searchsorted(-ordered, -ordered, side="right") - 1

    @property
    def rows(self) -> int:
        return len(self._gold)

    def resampled(self, counts: Counts) -> Floats:
        drawn = counts[:, self._order].astype(np.float64)
        hits = drawn * self._gold
        precision = np.cumsum(hits, 1) / np.maximum(np.cumsum(drawn, 1), 1)
        total = hits.sum(1)
        values = (hits * precision[:, self._last]).sum(1)
        return 100 * np.divide(values, total, out=np.full(len(total), np.nan), where=total > 0)


class _MeanOfFolds(Statistic):
    """The mean of statistics over the rows of folds, weighted by their numbers of rows."""

    def __init__(self, folds: Sequence[Statistic]) -> None:
        self._folds = folds
        self._ends = np.cumsum([fold.rows for fold in folds])

    @property
    def rows(self) -> int:
        return int(self._ends[-1])

    def resampled(self, counts: Counts) -> Floats:
        parts = np.split(counts, self._ends[:-1], axis=1)
        values = [fold.resampled(part) * fold.rows for fold, part in zip(self._folds, parts, strict=True)]
        return np.sum(values, axis=0) / self.rows
