"""Logistic regression on frozen vectors, with the L2 penalty chosen on held-out data."""

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
# Values of C (inverse L2 penalty) for vectors of length 1, strongest penalty first: each fit starts from the last one.
STRENGTHS = (0.25, 1.0, 4.0, 16.0, 64.0)


def predict_on_folds(vectors: Vectors, labels: Labels, seed: int, advance: Advance) -> Labels:
    """Predict each row by nested cross-validation.

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
    """Predict a test split; the penalty is chosen on the dev split, or by 10-fold cross-validation on the train set."""
    with _workers() as run:
        if dev is None:
            strength = _best_on_folds(*train, OUTER_FOLDS, seed, advance, run)
        else:
            strength = _best(_accuracies(train, dev, advance))
        return _predict(train, strength, test)


def fits(folds: bool, dev: bool) -> int:
    """The number of fits over all penalties, for the progress bar."""
    return OUTER_FOLDS * INNER_FOLDS if folds else 1 if dev else OUTER_FOLDS


@contextmanager
def _workers() -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` that runs several folds in parallel, each with one BLAS thread.

    More BLAS threads make fits of this size slower, and make results depend on their number.
    """
    limits = _import("threadpoolctl").threadpool_limits(1)
    with limits, warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")  # scikit-learn warns when it changes the solver or stops early
        yield pool.map


def _best_on_folds(
    vectors: Vectors, labels: Labels, folds: int, seed: int, advance: Advance, run: Callable[..., Iterable[Any]] = map
) -> float:
    def accuracies(fold: tuple[Labels, Labels]) -> NDArray[np.float64]:
        train, held_out = fold
        return _accuracies((vectors[train], labels[train]), (vectors[held_out], labels[held_out]), advance)

    return _best(np.mean(list(run(accuracies, _folds(vectors, labels, folds, seed))), axis=0))


def _accuracies(train: Labelled, held_out: Labelled, advance: Advance) -> NDArray[np.float64]:
    """Held-out accuracy for each value of C."""
    classifier = _Classifier(*train)
    vectors, labels = classifier.scaled(held_out[0]), held_out[1]
    found = [(classifier.fit(strength).predict(vectors) == labels).mean() for strength in STRENGTHS]
    advance(1)
    return np.array(found)


def _best(accuracies: NDArray[np.float64]) -> float:
    """The best value of C; of equally good ones the strongest penalty."""
    return STRENGTHS[int(np.argmax(accuracies))]


class _Classifier:
    """Logistic regression on vectors with mean 0 and, over all components together, variance 1.

    Centring only changes the intercept, which is not penalised, and speeds up the fit. Scaling makes the penalty
    independent of whether a model normalises its vectors.
    """

    def __init__(self, vectors: Vectors, labels: Labels) -> None:
        self._mean = vectors.mean(0)
        self._scale = float(np.sqrt(((vectors - self._mean) ** 2).mean())) or 1.0
        self._vectors, self._labels = self.scaled(vectors), labels
        # Newton's method converges in a few steps; its Hessian grows with the square of the number of classes.
        solver = "newton-cholesky" if len(np.unique(labels)) == 2 else "lbfgs"
        self._model = _import("sklearn.linear_model").LogisticRegression(solver=solver, warm_start=True, max_iter=1000)

    def scaled(self, vectors: Vectors) -> Vectors:
        """Apply the centring and scaling of the training vectors."""
        return (vectors - self._mean) / np.float32(self._scale)

    def fit(self, strength: float) -> Any:
        """Fit with a value of C, starting from the previous solution."""
        # C is given for vectors of length 1; the squared length of scaled vectors is their width.
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
