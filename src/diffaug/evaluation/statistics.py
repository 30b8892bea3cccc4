"""Statistics of a sample, their bootstrap intervals, and the paired bootstrap test of two models.

A bootstrap resample of n rows is determined by how often each row was drawn. So each statistic takes a matrix of counts
(resamples, n) and returns one value per resample. Ranks then need no sorting: the order of the rows is known, and the
ranks of a resample are cumulative sums of its counts.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# Entries of a block of counts: small enough for the CPU cache, whatever the number of rows.
_BLOCK = 1 << 18


class Statistic(Protocol):
    """A score over rows that can be recomputed on resamples of the rows. Scores are times 100."""

    @property
    def rows(self) -> int: ...

    def value(self) -> float:
        """The score of the original rows."""
        return float(self.resampled(np.ones((1, self.rows), np.int64))[0])

    def resampled(self, counts: Counts) -> Floats:
        """(resamples,): the scores of resamples; ``counts`` (resamples, rows) says how often each row was drawn."""
        ...


class MeanSpearman(Statistic):
    """The mean of `Spearman` over several predictions for the same rows, such as the runs of a method.

    ``second`` is ranked only once.
    """

    def __init__(self, firsts: Sequence[ArrayLike], second: ArrayLike) -> None:
        self._firsts, self._second = [_Order(first) for first in firsts], _Order(second)

    @property
    def rows(self) -> int:
        return self._second.rows

    def resampled(self, counts: Counts) -> Floats:
        # (rows, resamples): reordering the rows then copies contiguous memory.
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
    """100 times Spearman's correlation, with mean ranks for equal values; NaN if one side is constant."""

    def __init__(self, first: ArrayLike, second: ArrayLike) -> None:
        super().__init__([first], second)


class Mean(Statistic):
    """100 times the mean over rows of an outcome: accuracy, recall, reciprocal rank."""

    def __init__(self, outcomes: ArrayLike) -> None:
        self.outcomes = np.asarray(outcomes, np.float64)

    @property
    def rows(self) -> int:
        return len(self.outcomes)

    def resampled(self, counts: Counts) -> Floats:
        return 100 * (counts @ self.outcomes) / counts.sum(1)


class _Order:
    """The order of some values, from which the ranks of any resample follow as cumulative sums."""

    def __init__(self, values: ArrayLike) -> None:
        array = np.asarray(values, np.float64)
        self._order = np.argsort(array, kind="stable")
        ordered = array[self._order]
        new = np.r_[True, ordered[1:] != ordered[:-1]]
        self._starts = np.flatnonzero(new)
        self.group = np.empty(len(array), np.int64)
        self.group[self._order] = np.cumsum(new) - 1  # the index of the row's value among the distinct values

    @property
    def rows(self) -> int:
        return len(self._order)

    def by_value(self, amounts: Floats) -> Floats:
        """(rows, resamples) to (distinct values, resamples): sums over equal values, in ascending order."""
        ordered = amounts[self._order]
        return ordered if len(self._starts) == self.rows else np.add.reduceat(ordered, self._starts, axis=0)

    def ranks(self, drawn: Floats) -> tuple[Floats, Floats]:
        """Centred mean rank of each distinct value, and the sum of squares of all centred ranks."""
        copies = self.by_value(drawn)
        # The copies of a value have ranks last - copies + 1 to last; the mean of all ranks is (total + 1) / 2.
        centred = np.cumsum(copies, axis=0) - copies / 2 - drawn.sum(0) / 2
        return centred, np.einsum("ij,ij->j", copies * centred, centred)


def pearson(first: ArrayLike, second: ArrayLike) -> float:
    """100 times Pearson's correlation; NaN if one side is constant."""
    x, y = (np.asarray(values, np.float64) for values in (first, second))
    x, y = x - x.mean(), y - y.mean()
    return 100 * float(_divide(x @ y, np.sqrt((x @ x) * (y @ y))))


def f1(labels: ArrayLike, predicted: ArrayLike) -> float:
    """100 times the F1 score of class 1; NaN if there is none."""
    gold, found = np.asarray(labels) == 1, np.asarray(predicted) == 1
    return 100 * float(_divide(2.0 * (gold & found).sum(), gold.sum() + found.sum()))


def _divide(above: Floats, below: ArrayLike) -> Floats:
    below = np.asarray(below, np.float64)
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 1e-12)


def bootstrap(statistic: Statistic, name: str, resamples: int, seed: int) -> Floats:
    """(resamples,): the statistic on bootstrap resamples.

    The draws depend only on ``name``, ``seed`` and the number of rows. Two models get the same resamples of a task,
    whatever other tasks are evaluated, so that their comparison is paired.
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
    """The percentile interval with a share ``confidence`` of the bootstrap values."""
    if np.isnan(values).any():
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True)
class Comparison:
    """A paired bootstrap test of two models on the same rows.

    Attributes:
        name: the task or average.
        first, second: the scores of both models.
        low, high: the interval of the difference ``first - second``.
        p_value: two-sided: twice the share of resamples in which the difference changes sign.
        confidence: the interval's confidence.
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
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0

    def words(self, first: str, second: str) -> str:
        """The result in a sentence."""
        percent = f"{100 * self.confidence:g} %"
        span = f"{percent} interval of the difference {self.low:+.2f} to {self.high:+.2f}, p = {self.p_value:.3f}"
        if np.isnan(self.difference):
            return f"{self.name}: not comparable, since a score is undefined"
        if not self.shown:
            return f"{self.name}: no difference shown ({self.difference:+.2f}; {span})"
        better, worse = (first, second) if self.difference > 0 else (second, first)
        return f"{self.name}: {better} is better than {worse} by {abs(self.difference):.2f} ({span})"

    def to_dict(self, first: str, second: str) -> dict[str, Any]:
        """JSON values; ``first`` and ``second`` name the models."""
        return {
            "name": self.name,
            "difference": self.difference,
            "interval": [self.low, self.high],
            "p_value": self.p_value,
            "shown": self.shown,
            "words": self.words(first, second),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], first: float, second: float, confidence: float) -> Comparison:
        """Read what `to_dict` returned; it does not contain the scores of the models and the confidence."""
        low, high, p_value = map(from_json_number, (*values["interval"], values["p_value"]))
        return cls(values["name"], first, second, low, high, p_value, confidence)


def compare(name: str, scores: tuple[float, float], resampled: tuple[Floats, Floats], confidence: float) -> Comparison:
    """Compare two models by their bootstrap values on the same resamples."""
    differences = resampled[0] - resampled[1]
    low, high = interval(differences, confidence)
    # Count the original sample as one resample, so that the p-value is never 0.
    reversed_sign = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p_value = (
        float("nan") if np.isnan(differences).any() else min(1.0, 2 * (reversed_sign + 1) / (len(differences) + 1))
    )
    return Comparison(name, *scores, low, high, p_value, confidence)


def average(values: Sequence[Floats]) -> Floats:
    """(resamples,): bootstrap values of an average of tasks, which are resampled independently."""
    return np.mean(values, axis=0)


def clean_numbers(value: Any) -> Any:
    """Values for JSON: numbers rounded to six decimals, and None instead of NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {key: clean_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_numbers(item) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value


def from_json_number(value: float | None) -> float:
    """A number of a JSON file, where None stands for NaN."""
    return math.nan if value is None else value
