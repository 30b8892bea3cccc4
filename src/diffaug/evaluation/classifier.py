"""Logistic regression on frozen vectors, its L2 penalty chosen on held-out data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffaug.errors import DiffaugError
from diffaug.evaluation.tasks import Vectors

Labels = NDArray[np.int64]
Labelled = tuple[Vectors, Labels]
Advance = Callable[[int], None]

OUTER_FOLDS = 10
INNER_FOLDS = 5
# Inverse strengths of the penalty, for vectors of length one; strongest first, so that each fit starts from the last.
STRENGTHS = (0.25, 1.0, 4.0, 16.0, 64.0)


def predict_on_folds(vectors: Vectors, labels: Labels, seed: int, advance: Advance) -> Labels:
    """A prediction for every row, by a classifier that has seen neither it nor chosen its penalty by it.

    The rows are split into ten folds; for each, the penalty is chosen by cross-validation within the other nine.
    """
    predicted = np.empty_like(labels)

    def predict(fold: tuple[Labels, Labels]) -> None:
        train, test = fold
        strength = _best_on_folds(vectors[train], labels[train], INNER_FOLDS, seed, advance)
        predicted[test] = _predict((vectors[train], labels[train]), strength, vectors[test])

    with _workers() as run:
        list(run(predict, _folds(vectors, labels, OUTER_FOLDS, seed)))
    return predicted


def predict_on_test(train: Labelled, dev: Labelled | None, test: Vectors, seed: int, advance: Advance) -> Labels:
    """Predictions for a test split; the penalty is chosen on the dev split, or on ten folds of the train split."""
    with _workers() as run:
        if dev is None:
            strength = _best_on_folds(*train, OUTER_FOLDS, seed, advance, run)
        else:
            strength = _best(_accuracies(train, dev, advance))
        return _predict(train, strength, test)


def fits(folds: bool, dev: bool) -> int:
    """How many paths of penalties a task takes, for a progress bar."""
    return OUTER_FOLDS * INNER_FOLDS if folds else 1 if dev else OUTER_FOLDS


@contextmanager
def _workers() -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` that works on several folds at a time, each on one thread of the linear algebra library.

    That library's own threads make fits of this size slower, not faster, and make sums depend on their number.
    """
    limits = _import("threadpoolctl").threadpool_limits(1)
    with limits, warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")  # sklearn tells when it falls back to another solver or stops early
        yield pool.map


def _best_on_folds(
    vectors: Vectors, labels: Labels, folds: int, seed: int, advance: Advance, run: Callable[..., Iterable[Any]] = map
) -> float:
    def accuracies(fold: tuple[Labels, Labels]) -> NDArray[np.float64]:
        train, held_out = fold
        return _accuracies((vectors[train], labels[train]), (vectors[held_out], labels[held_out]), advance)

    return _best(np.mean(list(run(accuracies, _folds(vectors, labels, folds, seed))), axis=0))


def _accuracies(train: Labelled, held_out: Labelled, advance: Advance) -> NDArray[np.float64]:
    """The accuracy on held-out rows for each strength."""
    classifier = _Classifier(*train)
    vectors, labels = classifier.scaled(held_out[0]), held_out[1]
    found = [(classifier.fit(strength).predict(vectors) == labels).mean() for strength in STRENGTHS]
    advance(1)
    return np.array(found)


def _best(accuracies: NDArray[np.float64]) -> float:
    """Of equally good strengths the one with the strongest penalty."""
    return STRENGTHS[int(np.argmax(accuracies))]


class _Classifier:
    """Logistic regression on vectors moved to mean zero and scaled to a variance of one, over all their numbers.

    Moving them changes nothing but the intercept, which is not penalised, and makes them easy to fit; the scale makes
    the strengths mean the same whether or not a model normalises its vectors.
    """

    def __init__(self, vectors: Vectors, labels: Labels) -> None:
        self._mean = vectors.mean(0)
        self._scale = float(np.sqrt(((vectors - self._mean) ** 2).mean())) or 1.0
        self._vectors, self._labels = self.scaled(vectors), labels
        # Newton's method is exact in a few steps for two classes; for more its matrix grows with their square.
        solver = "newton-cholesky" if len(np.unique(labels)) == 2 else "lbfgs"
        self._model = _import("sklearn.linear_model").LogisticRegression(solver=solver, warm_start=True, max_iter=1000)

    def scaled(self, vectors: Vectors) -> Vectors:
        """Other vectors, moved and scaled like those the classifier learns from."""
        return (vectors - self._mean) / np.float32(self._scale)

    def fit(self, strength: float) -> Any:
        """The model for a penalty, found from where the last one was."""
        # A strength for vectors of length one, in terms of vectors whose squared length is their width.
        self._model.C = strength / self._vectors.shape[1]
        return self._model.fit(self._vectors, self._labels)


def _predict(train: Labelled, strength: float, vectors: Vectors) -> Labels:
    classifier = _Classifier(*train)
    labels: Labels = classifier.fit(strength).predict(classifier.scaled(vectors))
    return labels


def _folds(vectors: Vectors, labels: Labels, folds: int, seed: int) -> Iterator[tuple[Labels, Labels]]:
    selection = _import("sklearn.model_selection")
    yield from selection.StratifiedKFold(folds, shuffle=True, random_state=seed).split(vectors, labels)


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise DiffaugError("transfer tasks need scikit-learn: pip install 'diffaug[eval]'") from error
