"""What every task has in common: it names its sentences, and scores their vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from diffaug.evaluation.statistics import Floats, Statistic

Vectors = NDArray[np.float32]


class Embeddings:
    """The vectors of all sentences of an evaluation. Each distinct sentence is there once."""

    def __init__(self, sentences: Sequence[str], vectors: Vectors) -> None:
        self._row = {sentence: i for i, sentence in enumerate(sentences)}
        self._vectors = vectors

    def __call__(self, sentences: Iterable[str]) -> Vectors:
        """(sentences, width): their vectors, at the length the model gave them."""
        return self._vectors[[self._row[sentence] for sentence in sentences]]

    def unit(self, sentences: Iterable[str]) -> Floats:
        """(sentences, width): scaled to length one; a vector of zeros stays one."""
        vectors = self(sentences).astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(lengths == 0, 1, lengths)

    def cosines(self, first: Iterable[str], second: Iterable[str]) -> Floats:
        """The cosine of each pair."""
        return np.einsum("ij,ij->i", self.unit(first), self.unit(second))


@dataclass
class TaskResult:
    """The score of a model on a task.

    Attributes:
        name: the task.
        group: ``sts``, ``transfer`` or ``own``; scores are averaged within the first two.
        protocol: what the score is, by name; scores compare only under the same one.
        score: the one number, on the scale of 100; NaN if it is undefined (a correlation of a constant).
        rows: over how many pairs, examples or queries.
        statistic: the score as a function of the rows, for the bootstrap.
        details: other numbers, as they stand in the JSON.
        low, high: the score's bootstrap interval.
        resampled: its bootstrap values.
    """

    name: str
    group: str
    protocol: str
    score: float
    rows: int
    statistic: Statistic
    details: dict[str, Any] = field(default_factory=dict)
    low: float = float("nan")
    high: float = float("nan")
    resampled: Floats = field(default_factory=lambda: np.empty(0), repr=False)


class Task(Protocol):
    """Data, ready to be scored."""

    name: str

    def sentences(self) -> Iterable[str]:
        """Every sentence whose vector `score` reads, in any order, repeats included."""
        ...

    def score(self, embeddings: Embeddings) -> TaskResult: ...
