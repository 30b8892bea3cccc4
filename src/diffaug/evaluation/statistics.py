"""Scores as functions of a sample, their bootstrap intervals, and the paired test of two models.

A bootstrap resample of n rows is fully described by how often each row was drawn, so every statistic here takes a
matrix of counts (resamples, n) and gives one value for each. Ranks then need no sorting: the rows' order is known, and
the ranks of a resample follow from running sums of its counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# Entries of a block of counts: small enough for a processor's cache to help, and for any number of rows.
_BLOCK = 1 << 18


class Statistic(Protocol):
    """A score over rows that can be recomputed on resamples of them. Scores are on the scale of 100."""

    @property
    def rows(self) -> int: ...

    def value(self) -> float:
        """On the rows as they are."""
        return float(self.resampled(np.ones((1, self.rows), np.int64))[0])

    def resampled(self, counts: Counts) -> Floats:
        """On resamples: ``counts`` (resamples, rows) says how often each row was drawn."""
        ...


class Pearson(Statistic):
    """100 times Pearson's correlation. NaN where one side is constant and there is none."""

    def __init__(self, first: ArrayLike, second: ArrayLike) -> None:
        self.first, self.second = np.asarray(first, np.float64), np.asarray(second, np.float64)

    @property
    def rows(self) -> int:
        return len(self.first)

    def resampled(self, counts: Counts) -> Floats:
        return 100 * _correlation(self.first, self.second, counts)


class MeanSpearman(Statistic):
    """The mean of `Spearman` over several ways to score the same rows, such as the runs of a method.

    ``second`` is ranked once for all of ``firsts``.
    """

    def __init__(self, firsts: Sequence[ArrayLike], second: ArrayLike) -> None:
        self._firsts, self._second = [_Order(first) for first in firsts], _Order(second)

    @property
    def rows(self) -> int:
        return self._second.rows

    def resampled(self, counts: Counts) -> Floats:
        # (rows, resamples): to bring the rows into an order is then to copy whole lines.
        drawn = np.ascontiguousarray(counts.T, np.float64)
        gold, variance = self._second.ranks(drawn)
        weighted = drawn * gold[self._second.group]
        found = np.zeros(len(counts))
        for first in self._firsts:
            ranks, own_variance = first.ranks(drawn)
            shared = np.einsum("ij,ij->j", ranks, first.by_value(weighted))
            found += 100 * _divide(shared, np.sqrt(variance * own_variance))
        return found / len(self._firsts)


class Spearman(MeanSpearman):
    """100 times Spearman's correlation, equal values sharing the mean of their ranks. NaN if one side is constant."""

    def __init__(self, first: ArrayLike, second: ArrayLike) -> None:
        super().__init__([first], second)


class Mean(Statistic):
    """100 times the mean of an outcome for each row: an accuracy, a recall, a reciprocal rank."""

    def __init__(self, outcomes: ArrayLike) -> None:
        self.outcomes = np.asarray(outcomes, np.float64)

    @property
    def rows(self) -> int:
        return len(self.outcomes)

    def resampled(self, counts: Counts) -> Floats:
        return 100 * (counts @ self.outcomes) / counts.sum(1)


class F1(Statistic):
    """100 times the F1 of the class 1. NaN in a resample without it."""

    def __init__(self, labels: ArrayLike, predicted: ArrayLike) -> None:
        self._gold, self._found = np.asarray(labels) == 1, np.asarray(predicted) == 1

    @property
    def rows(self) -> int:
        return len(self._gold)

    def resampled(self, counts: Counts) -> Floats:
        both = counts @ (self._gold & self._found)
        return 100 * _divide(2.0 * both, counts @ self._gold.astype(np.int64) + counts @ self._found.astype(np.int64))


class _Order:
    """Values prepared so that the ranks of any resample are running sums."""

    def __init__(self, values: ArrayLike) -> None:
        array = np.asarray(values, np.float64)
        self._order = np.argsort(array, kind="stable")
        ordered = array[self._order]
        new = np.r_[True, ordered[1:] != ordered[:-1]]
        self._starts = np.flatnonzero(new)
        self.group = np.empty(len(array), np.int64)
        self.group[self._order] = np.cumsum(new) - 1  # the row's place among the distinct values

    @property
    def rows(self) -> int:
        return len(self._order)

    def by_value(self, amounts: Floats) -> Floats:
        """(rows, resamples) to (distinct values, resamples): the sums over equal values, in ascending order of them."""
        ordered = amounts[self._order]
        return ordered if len(self._starts) == self.rows else np.add.reduceat(ordered, self._starts, axis=0)

    def ranks(self, drawn: Floats) -> tuple[Floats, Floats]:
        """For each distinct value the mean rank of its copies, less the mean of all ranks; and the ranks' variance.

        The variance is a sum, not a mean.
        """
        copies = self.by_value(drawn)
        # The copies of a value take the ranks from last - copies + 1 to last; the mean of all is (total + 1) / 2.
        centred = np.cumsum(copies, axis=0) - copies / 2 - drawn.sum(0) / 2
        return centred, np.einsum("ij,ij->j", copies * centred, centred)


def _correlation(first: Floats, second: Floats, counts: Counts) -> Floats:
    """Pearson's correlation of rows weighted by counts; values (rows,) or (resamples, rows)."""
    total = counts.sum(1, keepdims=True)
    first = first - (counts * first).sum(1, keepdims=True) / total
    second = second - (counts * second).sum(1, keepdims=True) / total
    weighted = counts * first
    shared = (weighted * second).sum(1)
    return _divide(shared, np.sqrt((weighted * first).sum(1) * (counts * second * second).sum(1)))


def _divide(above: Floats, below: ArrayLike) -> Floats:
    below = np.asarray(below, np.float64)
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 1e-12)


def bootstrap(statistic: Statistic, name: str, resamples: int, seed: int) -> Floats:
    """The statistic on ``resamples`` resamples.

    The draws depend on ``name``, ``seed`` and the number of rows alone: two models meet the same resamples of a task,
    whatever other tasks are evaluated, which is what makes the comparison a paired one.
    """
    blocks = _draws(statistic.rows, resamples, np.random.default_rng([seed, zlib.crc32(name.encode())]))
    return np.concatenate([statistic.resampled(counts) for counts in blocks])


def _draws(rows: int, resamples: int, rng: np.random.Generator) -> Iterator[Counts]:
    step = max(1, _BLOCK // rows)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = rng.integers(rows, size=(size, rows)) + np.arange(size)[:, None] * rows
        yield np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows)


def interval(values: Floats, confidence: float) -> tuple[float, float]:
    """The percentile interval that holds ``confidence`` of the bootstrap values."""
    if np.isnan(values).any():
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True)
class Comparison:
    """A paired bootstrap test of two models on the same rows.

    Attributes:
        name: the task, or an average.
        first, second: the scores of the model and of the one it is compared with.
        low, high: the interval of the difference ``first - second``.
        p_value: two-sided: how often a resample turns the difference around, times two.
        confidence: of the interval.
    """

    name: str
    first: float
    second: float
    low: float
    high: float
    p_value: float
    confidence: float

    @property
    def difference(self) -> float:
        return self.first - self.second

    @property
    def shown(self) -> bool:
        """Whether the interval leaves no difference out."""
        return self.low > 0 or self.high < 0

    def words(self, first: str, second: str) -> str:
        """The outcome in a sentence."""
        percent = f"{100 * self.confidence:g} %"
        span = f"{percent} interval of the difference {self.low:+.2f} to {self.high:+.2f}, p = {self.p_value:.3f}"
        if np.isnan(self.difference):
            return f"{self.name}: a score is undefined, so there is nothing to compare"
        if not self.shown:
            return f"{self.name}: no difference shown ({self.difference:+.2f}; {span})"
        better, worse = (first, second) if self.difference > 0 else (second, first)
        return f"{self.name}: {better} is better than {worse} by {abs(self.difference):.2f} ({span})"


def compare(name: str, scores: tuple[float, float], resampled: tuple[Floats, Floats], confidence: float) -> Comparison:
    """Compare two models by their bootstrap values on the same resamples."""
    differences = resampled[0] - resampled[1]
    low, high = interval(differences, confidence)
    # The resamples and the sample itself: a p-value of exactly 0 would claim too much.
    turned = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p_value = float("nan") if np.isnan(differences).any() else min(1.0, 2 * (turned + 1) / (len(differences) + 1))
    return Comparison(name, *scores, low, high, p_value, confidence)


def average(values: Sequence[Floats]) -> Floats:
    """The bootstrap values of an average of tasks, which were resampled independently of each other."""
    return np.mean(values, axis=0)
