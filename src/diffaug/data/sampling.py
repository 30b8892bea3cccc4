"""Which rows a run trains on (nested draws for few labels), and in which order (batches from seed and step)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from diffaug.data.records import LabelledPairs, PositivePairs, ScoredPairs, Triplets
from diffaug.data.tokens import TokenColumn
from diffaug.errors import DiffaugError

Records = TypeVar("Records", PositivePairs, Triplets, LabelledPairs, ScoredPairs)
Item = TypeVar("Item")

Example = tuple[list[int], ...]
"""The token ids of an example's sentences."""


def draw_indices(total: int, seed: int, *, fraction: float | None = None, count: int | None = None) -> list[int]:
    """Draw some of ``total`` rows at random; returns their indices in ascending order.

    Each row gets a random number from the seed, and the rows with the smallest numbers are drawn. So a draw of 1 % is
    part of the draw of 10 % with the same seed, on every platform and Python version.

    Args:
        total: number of rows.
        seed: of the random numbers.
        fraction: of the rows to draw, above 0 and at most 1; rounded to whole rows, at least one.
        count: number of rows to draw, instead of a fraction.

    Raises:
        DiffaugError: neither or both of fraction and count, or one that is out of range.
    """
    if (fraction is None) == (count is None):
        raise DiffaugError("give either a fraction or a count of rows to draw")
    if total < 1:
        raise DiffaugError("there are no rows to draw from")
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise DiffaugError(f"the fraction to draw must be above 0 and at most 1, got {fraction}")
        count = max(1, round(fraction * total))
    assert count is not None
    if not 1 <= count <= total:
        raise DiffaugError(f"cannot draw {count:,} rows out of {total:,}")
    # Python guarantees the sequence of random() for a seed, but not that of shuffle() and sample().
    generator = random.Random(seed)
    keys = np.fromiter((generator.random() for _ in range(total)), np.float64, total)
    drawn: list[int] = np.sort(np.argsort(keys, kind="stable")[:count]).tolist()
    return drawn


@overload
def draw(rows: Records, seed: int, *, fraction: float | None = None, count: int | None = None) -> Records: ...
@overload
def draw(rows: Sequence[Item], seed: int, *, fraction: float | None = None, count: int | None = None) -> list[Item]: ...


def draw(rows, seed, *, fraction=None, count=None):  # type: ignore[no-untyped-def]
    """The rows that `draw_indices` chooses, in their order: a part of triplets, pairs or a list of sentences."""
    indices = draw_indices(len(rows), seed, fraction=fraction, count=count)
    if isinstance(rows, (PositivePairs, LabelledPairs, ScoredPairs)):
        return rows.take(indices)
    return [rows[i] for i in indices]


@dataclass(frozen=True)
class Examples:
    """Columns of tokenised sentences of the same length, and a label for each row if there are labels."""

    columns: tuple[TokenColumn, ...]
    labels: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self, indices: Sequence[int]) -> list[Example]:
        """The sentences of some examples."""
        return [tuple(column[i] for column in self.columns) for i in indices]


@dataclass(frozen=True)
class Batch:
    """Some examples, still as lists of token ids."""

    examples: list[Example]
    labels: list[int] | None = None


class BatchSampler:
    """Batches of examples in random order, epoch after epoch.

    The order depends on the seed and the step only. A resumed run continues with the right batch, and each process of a
    distributed run takes its share of a batch without communication.

    Args:
        examples: the data.
        batch_size: examples per batch, over all processes.
        seed: of the order.
        rank: of this process.
        world: number of processes.
    """

    def __init__(self, examples: Examples, batch_size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        size = min(batch_size, len(examples)) // world * world
        if size < max(2, world):
            raise DiffaugError(
                f"{len(examples)} examples are too few for a batch of {batch_size} on {world} process(es): a batch "
                "needs at least two examples, and one per process"
            )
        self.examples = examples
        self.batch_size = size
        self._seed, self._rank, self._world = seed, rank, world
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    @property
    def batches_per_epoch(self) -> int:
        """Full batches in one pass over the data; the remaining examples are dropped in that epoch."""
        return len(self.examples) // self.batch_size

    def batch(self, index: int) -> Batch:
        """This process's share of the batch with that index, counted from the start of training."""
        epoch, position = divmod(index, self.batches_per_epoch)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._order = (epoch, torch.randperm(len(self.examples), generator=generator))
        share = self.batch_size // self._world
        start = position * self.batch_size + self._rank * share
        chosen = self._order[1][start : start + share].tolist()
        labels = self.examples.labels
        return Batch(self.examples.rows(chosen), None if labels is None else [labels[i] for i in chosen])
