"""Training examples as token arrays, and the order in which a run sees them.

Sentences are tokenised once. The order is a function of the seed and the step alone, so that a resumed run goes on
exactly where it stopped, and every process of a distributed run can take its part of a batch without asking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.progress import progress_bar

_CHUNK = 10_000

Example = tuple[list[int], ...]
"""The word pieces of an example's sentences."""


class TokenColumn:
    """The word pieces of many sentences in one array: four bytes a piece instead of a Python object."""

    def __init__(self, collator: Collator, sentences: Sequence[str], name: str = "tokenising") -> None:
        # Each distinct sentence is tokenised once: NLI repeats its premises, stage 1 pairs repeat both sides.
        place: dict[str, int] = {}
        self._row = np.fromiter((place.setdefault(s, len(place)) for s in sentences), np.int64, len(sentences))
        distinct = list(place)
        pieces, lengths = [], []
        with progress_bar(name, len(distinct)) as advance:
            for start in range(0, len(distinct), _CHUNK):
                ids, _ = collator.ids(distinct[start : start + _CHUNK])
                lengths += [len(row) for row in ids]
                pieces.append(np.fromiter((piece for row in ids for piece in row), np.int32))
                advance(len(ids))
        self._pieces = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
        self._ends = np.cumsum([0, *lengths])

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, index: int) -> list[int]:
        row = self._row[index]
        piece_list: list[int] = self._pieces[self._ends[row] : self._ends[row + 1]].tolist()
        return piece_list


@dataclass(frozen=True)
class Examples:
    """Columns of sentences of one length, and a label for each row where there is one."""

    columns: tuple[TokenColumn, ...]
    labels: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self, indices: Sequence[int]) -> list[Example]:
        """The sentences of some examples."""
        return [tuple(column[i] for column in self.columns) for i in indices]


@dataclass(frozen=True)
class Batch:
    """Some examples, still as lists of word pieces."""

    examples: list[Example]
    labels: list[int] | None = None


class Stream:
    """Examples in random order, batch after batch, epoch after epoch.

    Args:
        examples: what to draw from.
        batch_size: examples of a whole batch, over all processes.
        seed: of the order.
        rank, world: this process, of how many; each gets its share of every batch.
    """

    def __init__(self, examples: Examples, batch_size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        size = min(batch_size, len(examples)) // world * world
        if size < max(2, world):
            raise DiffaugError(
                f"{len(examples)} examples cannot fill a batch of {batch_size} on {world} process(es): "
                "a batch needs at least two, and one for each process"
            )
        self.examples = examples
        self.batch_size = size
        self._seed, self._rank, self._world = seed, rank, world
        self._order: tuple[int, list[int]] = (-1, [])

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches in a pass over the data; what is left over comes in another epoch's order."""
        return len(self.examples) // self.batch_size

    def batch(self, index: int) -> Batch:
        """This process's share of the batch of that number, counted from the start of training."""
        epoch, position = divmod(index, self.batches_per_epoch)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._order = (epoch, torch.randperm(len(self.examples), generator=generator).tolist())
        share = self.batch_size // self._world
        start = position * self.batch_size + self._rank * share
        chosen = self._order[1][start : start + share]
        labels = self.examples.labels
        return Batch(self.examples.rows(chosen), None if labels is None else [labels[i] for i in chosen])
