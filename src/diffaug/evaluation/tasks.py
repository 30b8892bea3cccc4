"""The interface of all tasks: a task lists its sentences and scores their vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from diffaug.config.registry import TASKS
from diffaug.errors import DiffaugError
from diffaug.evaluation.protocol import STS_PROTOCOL, TRANSFER
from diffaug.evaluation.statistics import Floats, Statistic, from_json_number

Vectors = NDArray[np.float32]


class Embeddings:
    """The vectors of all distinct sentences of an evaluation."""

    def __init__(self, sentences: Sequence[str], vectors: Vectors) -> None:
        self._row = {sentence: i for i, sentence in enumerate(sentences)}
        self._vectors = vectors

    def __call__(self, sentences: Iterable[str]) -> Vectors:
        """(sentences, width): the vectors as the model returned them."""
        return self._vectors[[self._row[sentence] for sentence in sentences]]

    def unit(self, sentences: Iterable[str], dtype: type[np.floating[Any]] = np.float64) -> NDArray[Any]:
        """(sentences, width): the vectors scaled to length 1; a zero vector stays zero."""
        vectors = self(sentences).astype(dtype, copy=False)  # a copy already
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.where(lengths == 0, 1, lengths)
        return vectors

    def cosines(self, first: Iterable[str], second: Iterable[str]) -> Floats:
        """The cosine of each pair."""
        return np.einsum("ij,ij->i", self.unit(first), self.unit(second))


@dataclass
class TaskResult:
    """The score of a model on a task.

    Attributes:
        name: the task.
        group: ``sts``, ``transfer`` or ``own``; the scores of the first two are averaged.
        protocol: the name of the evaluation protocol; only scores of the same protocol are comparable.
        score: the main score, times 100; NaN if it is undefined (the correlation with a constant).
        rows: number of pairs, examples or queries.
        statistic: the score as a function of the rows, for the bootstrap; None: no interval and no paired test, as for
            a result that was read from JSON.
        details: other numbers, as in the JSON.
        low, high: the bootstrap interval.
        resampled: the bootstrap values.
    """

    name: str
    group: str
    protocol: str
    score: float
    rows: int
    statistic: Statistic | None
    details: dict[str, Any] = field(default_factory=dict)
    low: float = float("nan")
    high: float = float("nan")
    resampled: Floats = field(default_factory=lambda: np.empty(0), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        interval = [self.low, self.high]
        return {"protocol": self.protocol, "score": self.score, "interval": interval, "rows": self.rows, **self.details}

    @classmethod
    def from_dict(cls, name: str, values: Mapping[str, Any]) -> TaskResult:
        """Read what `to_dict` returned."""
        details = dict(values)
        protocol, rows = details.pop("protocol"), details.pop("rows")
        score, low, high = map(from_json_number, (details.pop("score"), *details.pop("interval")))
        group = "own"
        if protocol == STS_PROTOCOL:
            group = "sts"
        elif protocol in {task.protocol for task in TRANSFER}:
            group = "transfer"
        return cls(name, group, protocol, score, rows, None, _nan_for_none(details), low, high)


def _nan_for_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _nan_for_none(value) for key, value in values.items()}
    return from_json_number(values)


class Task(Protocol):
    """Data of a task, read and checked."""

    name: str

    def sentences(self) -> Iterable[str]:
        """All sentences that `score` needs; order does not matter, duplicates are allowed."""
        ...

    def score(self, embeddings: Embeddings) -> TaskResult: ...


def registered_task(name: str) -> Task:
    """The task that a plugin has registered under this name.

    Raises:
        DiffaugError: there is none, or it has no `sentences` and `score`.
    """
    task: Task = TASKS.get(name)()
    if not (hasattr(task, "sentences") and hasattr(task, "score")):
        raise DiffaugError(f"the task {name!r} must have the methods sentences and score, got {task!r}")
    task.name = name
    return task
