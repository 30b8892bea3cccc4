"""Which rows a run trains on (nested draws for few labels), and in which order (batches from seed and step)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from diffaug.data.records import Classes, LabelledPairs, PositivePairs, ScoredPairs, Triplets
from diffaug.data.tokens import TokenColumn
from diffaug.errors import DiffaugError

Records = TypeVar("Records", PositivePairs, Triplets, LabelledPairs, ScoredPairs, Classes)
Item = TypeVar("Item")

Example = tuple[list[int], ...]
"""The token ids of an example's sentences."""

Target = Literal["relation", "score", "class"]
"""What a label is: the relation of a pair (0 different, 1 same, or an NLI class), the similarity of a pair from 0 to 1,
or the class of a sentence."""


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
    if isinstance(rows, (PositivePairs, LabelledPairs, ScoredPairs, Classes)):
        return rows.take(indices)
    return [rows[i] for i in indices]


@dataclass(frozen=True)
class Examples:
    """Columns of tokenised sentences of the same length, and a label for each row if there are labels.

    Attributes:
        columns: the sentences.
        labels: one per row.
        target: what the labels are.
        per_class: how many sentences of a class a batch has at least, if the labels are classes.
    """

    columns: tuple[TokenColumn, ...]
    labels: tuple[float, ...] | None = None
    target: Target = "relation"
    per_class: int = 4

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self, indices: Sequence[int]) -> list[Example]:
        """The sentences of some examples."""
        return [tuple(column[i] for column in self.columns) for i in indices]


@dataclass(frozen=True)
class Mixture:
    """Several data sets that take turns: each batch comes from one of them.

    Attributes:
        parts: the data sets.
        proportions: the share of the batches that comes from each.
    """

    parts: tuple[Examples, ...]
    proportions: tuple[float, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def columns(self) -> tuple[TokenColumn, ...]:
        """Those of the part with the most."""
        return max((part.columns for part in self.parts), key=len)


@dataclass(frozen=True)
class Batch:
    """Some examples, still as lists of token ids, and their indices in the data; see `Examples`."""

    examples: list[Example]
    labels: list[float] | None = None
    target: Target = "relation"
    indices: Sequence[int] = ()


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
        share = self.batch_size // self._world
        start = self._rank * share
        chosen = self._whole_batch(index)[start : start + share]
        labels = self.examples.labels
        chosen_labels = None if labels is None else [labels[i] for i in chosen]
        return Batch(self.examples.rows(chosen), chosen_labels, self.examples.target, chosen)

    def _whole_batch(self, index: int) -> list[int]:
        """The rows of a batch over all processes."""
        epoch, position = divmod(index, self.batches_per_epoch)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._order = (epoch, torch.randperm(len(self.examples), generator=generator))
        rows: list[int] = self._order[1][position * self.batch_size : (position + 1) * self.batch_size].tolist()
        return rows


class ClassBatchSampler(BatchSampler):
    """Batches with the same number of sentences of each class in them; rows of one class follow each other.

    A batch has as many classes as it has room for at `Examples.per_class` sentences each. If that is all of them, more
    sentences of each are taken. A sentence of a small class may come twice.
    """

    def __init__(self, examples: Examples, batch_size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        # A small class repeats its sentences, so that a batch may be larger than the data.
        super().__init__(examples, batch_size, seed, rank, world)
        assert examples.labels is not None
        members: dict[float, list[int]] = {}
        for i, label in enumerate(examples.labels):
            members.setdefault(label, []).append(i)
        self._members = list(members.values())
        per_class = min(examples.per_class, max(2, self.batch_size // 2))
        self._classes = max(2, min(len(self._members), self.batch_size // per_class))
        self._per_class = max(1, self.batch_size // self._classes)
        self.batch_size = self._classes * self._per_class // world * world

    def _whole_batch(self, index: int) -> list[int]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        chosen: list[int] = []
        for c in torch.randperm(len(self._members), generator=generator)[: self._classes].tolist():
            members, wanted = self._members[c], self._per_class
            while wanted > 0:
                order = torch.randperm(len(members), generator=generator)[:wanted].tolist()
                chosen += [members[i] for i in order]
                wanted -= len(order)
        return chosen[: self.batch_size]


class MixedBatchSampler:
    """Batches of several data sets in turn, in the given proportions; see `BatchSampler`."""

    def __init__(self, mixture: Mixture, batch_size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self.examples = mixture
        self._samplers = [
            batch_sampler(part, batch_size, seed + 7919 * number, rank, world)
            for number, part in enumerate(mixture.parts)
        ]
        self.batch_size: int = max(each.batch_size for each in self._samplers)
        self._turns: list[tuple[int, int]] = []
        self._taken = [0] * len(self._samplers)

    def batch(self, index: int) -> Batch:
        """See `BatchSampler.batch`."""
        while len(self._turns) <= index:
            # Next comes the data set that is furthest behind its share.
            behind = [
                share * (len(self._turns) + 1) - taken
                for share, taken in zip(self.examples.proportions, self._taken, strict=True)
            ]
            part = behind.index(max(behind))
            self._turns.append((part, self._taken[part]))
            self._taken[part] += 1
        part, number = self._turns[index]
        return self._samplers[part].batch(number)


def batch_sampler(
    examples: Examples | Mixture, batch_size: int, seed: int, rank: int = 0, world: int = 1
) -> BatchSampler | MixedBatchSampler:
    """The batch sampler of these examples; see `BatchSampler` for the arguments."""
    if isinstance(examples, Mixture):
        return MixedBatchSampler(examples, batch_size, seed, rank, world)
    kind = ClassBatchSampler if examples.target == "class" else BatchSampler
    return kind(examples, batch_size, seed, rank, world)
