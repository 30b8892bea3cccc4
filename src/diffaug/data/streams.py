"""Training examples as token arrays, and the order in which a run sees them.

Sentences are tokenised once. The order is a function of the seed and the step alone, so that a resumed run goes on
exactly where it stopped, and every process of a distributed run can take its part of a batch without asking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from diffaug.data.collate import Collator
from diffaug.data.shared import SharedTokens, tokenise
from diffaug.errors import DiffaugError

Example = tuple[list[int], ...]
"""The word pieces of an example's sentences."""


class TokenBank:
    """The word pieces of sentences in one array, four bytes a piece; each distinct sentence is tokenised once.

    NLI repeats its premises, stage 1's pairs repeat what is in stage 2's triplets, and a draw of labels lies within a
    larger one: columns of all of them share a bank.

    Args:
        collator: how sentences are read.
        shared: where other processes may have tokenised the same.
    """

    def __init__(self, collator: Collator, shared: SharedTokens | None = None) -> None:
        self._collator = collator
        self._shared = shared
        self._place: dict[str, int] = {}
        self._pieces = np.empty(0, np.int32)
        self._ends = np.zeros(1, np.int64)

    def column(self, sentences: Sequence[str]) -> TokenColumn:
        """The word pieces of these sentences; those not met before are tokenised now."""
        self._add([sentence for sentence in dict.fromkeys(sentences) if sentence not in self._place])
        return TokenColumn(self, np.fromiter(map(self._place.__getitem__, sentences), np.int64, len(sentences)))

    def pieces(self, place: int) -> list[int]:
        """The word pieces of the sentence in that place."""
        piece_list: list[int] = self._pieces[self._ends[place] : self._ends[place + 1]].tolist()
        return piece_list

    def lengths(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many word pieces the sentences in these places have."""
        counts: NDArray[np.int64] = self._ends[places + 1] - self._ends[places]
        return counts

    def _add(self, sentences: list[str]) -> None:
        make = tokenise if self._shared is None else self._shared.tokenise
        pieces, lengths = make(self._collator, sentences)
        self._pieces = np.concatenate([self._pieces, pieces])
        self._ends = np.concatenate([self._ends, self._ends[-1] + np.cumsum(lengths)])
        self._place.update(zip(sentences, range(len(self._place), len(self._place) + len(sentences)), strict=True))


class TokenColumn:
    """The word pieces of many sentences, a row each. Made by `TokenBank.column`."""

    def __init__(self, bank: TokenBank, places: NDArray[np.int64]) -> None:
        self._bank = bank
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> list[int]:
        return self._bank.pieces(self._places[index])

    def lengths(self) -> NDArray[np.int64]:
        """How many word pieces each sentence has."""
        return self._bank.lengths(self._places)


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
