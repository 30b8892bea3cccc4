"""Token batches: `PaddedBatch`, one row per sequence, and `PackedBatch`, all sequences one after the other.

The encoder takes either and gives the same vectors. A padded batch of sentences is half padding, which a packed batch
does not have. In a packed batch every layer except attention treats tokens one by one; attention is told where the
sequences begin and end (`diffaug.models.packed_attention`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Fields = TypeVar("Fields", bound="TensorFields")

# The number of sequences of a packed batch is rounded up to a multiple of this.
_SEQUENCE_MULTIPLE = 64
# The number of tokens is rounded up by at most one part in this many.
_TOKEN_PARTS = 32


class TensorFields:
    """Base of dataclasses whose tensors are moved together."""

    def to(self: Fields, device: torch.device | str, non_blocking: bool = True) -> Fields:
        """A copy with all tensors on ``device``."""
        return self._map(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self: Fields) -> Fields:
        """A copy with all tensors in page-locked memory, from which a GPU copies asynchronously."""
        return self._map(lambda value: value.pin_memory())

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by field name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def _map(self: Fields, change: Callable[[Any], Any]) -> Fields:
        """A copy with ``change`` applied to each tensor and to each field that is a `TensorFields` itself."""
        changed = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (Tensor, TensorFields)):
                vars(changed)[name] = change(value)
        return changed


class TokenBatch(TensorFields):
    """A batch of token sequences, padded or packed: what the encoder takes.

    Attributes:
        input_ids: (sequences, length) if padded, (1, tokens) if packed.
        view_ids: (sequences,), the view of each sequence; None: all views at once, as at inference.
    """

    input_ids: Tensor
    view_ids: Tensor | None


@dataclass
class PaddedBatch(TokenBatch):
    """One row per sequence, padded on the right.

    Attributes:
        input_ids: (sequences, length)
        attention_mask: (sequences, length), 1 for tokens and 0 for padding; None without padding.
        pool_positions: (sequences,), the index of the template's mask token; None without a template.
        position_ids: (sequences, length), counted from a sequence's first token; None for 0, 1, 2, ...
        view_ids: (sequences,), the view of each sequence; None: all views at once.
        packed: the same sequences as a packed batch, if an executor has prepared it. `to` leaves it where it is:
            CUDA graphs copy it into their own tensors.
    """

    input_ids: Tensor
    attention_mask: Tensor | None = None
    pool_positions: Tensor | None = None
    position_ids: Tensor | None = None
    view_ids: Tensor | None = None
    packed: PackedBatch | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> PaddedBatch:
        moved = replace(self, packed=None)._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        moved.packed = self.packed
        return moved

    def lengths(self) -> Tensor:
        """(sequences,): the number of tokens of each sequence."""
        mask = torch.ones_like(self.input_ids) if self.attention_mask is None else self.attention_mask
        return mask.sum(1)

    def slice(self, start: int, stop: int) -> PaddedBatch:
        """The rows from ``start`` to ``stop``, as wide as the whole batch."""
        return replace(self, packed=None)._map(lambda tensor: tensor[start:stop])

    def select(self, indices: Tensor) -> PaddedBatch:
        """The rows at ``indices``, padded to the longest of them."""
        chosen = replace(self, packed=None)._map(lambda tensor: tensor[indices])
        if chosen.attention_mask is None:
            return chosen
        width = int(chosen.attention_mask.sum(1).max())
        mask = chosen.attention_mask[:, :width]
        return replace(
            chosen,
            input_ids=chosen.input_ids[:, :width],
            attention_mask=None if bool(mask.all()) else mask,
            position_ids=None if chosen.position_ids is None else chosen.position_ids[:, :width],
        )


@dataclass
class PackedBatch(TokenBatch):
    """All sequences one after the other, as a batch of one row.

    Filler sequences at the end round the size up, so that the batches of a run have few different sizes.

    Attributes:
        input_ids: (1, tokens)
        position_ids: (1, tokens), as the backbone takes them.
        sequence_ids: (tokens,), the sequence each token belongs to.
        starts: (sequences,), the index of each sequence's first token.
        lengths: (sequences,), the number of tokens of each sequence.
        pool_positions: (sequences,), the index of the token that is pooled: the mask token, or the first.
        view_ids: (sequences,), the view of each sequence; None: all views at once, or no prefix.
        count: the number of real sequences; filler sequences follow.
        prefix_length: the number of prefix keys that attention puts before each sequence.
        max_keys: an upper bound on the keys of a sequence, those of the prefix included.
    """

    input_ids: Tensor
    position_ids: Tensor
    sequence_ids: Tensor
    starts: Tensor
    lengths: Tensor
    pool_positions: Tensor
    view_ids: Tensor | None
    count: int
    prefix_length: int
    max_keys: int

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> tuple[int, int, int]:
        """Tokens, sequences and largest number of keys, filler included: batches of one size share a CUDA graph."""
        return self.input_ids.shape[1], len(self.starts), self.max_keys

    # Not cached: a CUDA graph computes them in every replay.

    def padded_mask(self) -> Tensor:
        """(sequences, length): where the padded form of this batch has a token."""
        return torch.arange(self.max_keys - self.prefix_length, device=self.starts.device) < self.lengths[:, None]

    def padded_indices(self) -> Tensor:
        """(tokens,): the index of each token in the flattened padded form of this batch."""
        within = torch.arange(len(self.sequence_ids), device=self.sequence_ids.device) - self.starts[self.sequence_ids]
        return self.sequence_ids * (self.max_keys - self.prefix_length) + within


def concatenate(first: PaddedBatch, second: PaddedBatch) -> PaddedBatch:
    """One batch with the rows of both, for a single forward. Both have views and a template, or neither has."""
    parts = (first, second)
    width = max(part.input_ids.shape[1] for part in parts)

    def widened(tensor: Tensor) -> Tensor:
        return F.pad(tensor, (0, width - tensor.shape[1]))

    def joined(values: list[Tensor | None], default: Callable[[PaddedBatch], Tensor]) -> Tensor | None:
        if all(value is None for value in values):
            return None
        return torch.cat([default(part) if value is None else value for value, part in zip(values, parts, strict=True)])

    def zeros(part: PaddedBatch) -> Tensor:
        return torch.zeros(len(part), dtype=torch.long)

    def counted(part: PaddedBatch) -> Tensor:
        return torch.arange(width).expand(len(part), width)

    masks: list[Tensor | None] = []
    for part in parts:
        mask = part.attention_mask
        if mask is None and part.input_ids.shape[1] < width:
            mask = torch.ones_like(part.input_ids)
        masks.append(None if mask is None else widened(mask))
    return PaddedBatch(
        input_ids=torch.cat([widened(part.input_ids) for part in parts]),
        attention_mask=joined(masks, lambda part: torch.ones_like(part.input_ids)),
        pool_positions=joined([part.pool_positions for part in parts], zeros),
        position_ids=joined([None if p.position_ids is None else widened(p.position_ids) for p in parts], counted),
        view_ids=joined([part.view_ids for part in parts], zeros),
    )


def pack(batch: PaddedBatch, first_position: int, prefix_length: int = 0, *, fill: bool = True) -> PackedBatch:
    """Remove the padding of a batch. Runs on the CPU.

    Args:
        batch: the padded batch.
        first_position: the position id of a sequence's first token.
        prefix_length: the number of prefix keys that attention puts before each sequence.
        fill: round the size up with filler sequences.
    """
    count, width = batch.input_ids.shape
    mask = torch.ones(count, width, dtype=torch.bool) if batch.attention_mask is None else batch.attention_mask.bool()
    real = mask.sum(1)
    max_keys = _rounded_keys(int(real.max()) + prefix_length)
    filler = _filler_lengths(count, int(real.sum()), max_keys - prefix_length) if fill else real.new_empty(0)
    lengths = torch.cat([real, filler])
    starts = lengths.cumsum(0) - lengths
    positions = torch.arange(width).expand(count, width) if batch.position_ids is None else batch.position_ids
    pooled = torch.zeros(count, dtype=torch.long) if batch.pool_positions is None else batch.pool_positions
    filler_tokens = torch.zeros(int(filler.sum()), dtype=torch.long)
    return PackedBatch(
        input_ids=torch.cat([batch.input_ids[mask], filler_tokens]).unsqueeze(0),
        position_ids=torch.cat([positions[mask], filler_tokens]).unsqueeze(0) + first_position,
        sequence_ids=torch.repeat_interleave(torch.arange(len(lengths)), lengths),
        starts=starts,
        lengths=lengths,
        pool_positions=starts + F.pad(pooled, (0, len(filler))),
        view_ids=None if batch.view_ids is None else F.pad(batch.view_ids, (0, len(filler))),
        count=count,
        prefix_length=prefix_length,
        max_keys=max_keys,
    )


def _filler_lengths(sequences: int, tokens: int, longest: int) -> Tensor:
    """The lengths of the filler sequences, each between 1 and ``longest``."""
    more = _round_up(sequences + 1, _SEQUENCE_MULTIPLE) - sequences
    while True:
        wanted = tokens + more
        multiple = max(_SEQUENCE_MULTIPLE, 2 ** (wanted.bit_length() - 1) // _TOKEN_PARTS)
        spare = _round_up(wanted, multiple) - tokens
        if spare <= more * longest:
            return torch.full((more,), spare // more) + (torch.arange(more) < spare % more)
        more += _SEQUENCE_MULTIPLE


def _rounded_keys(keys: int) -> int:
    """A power of two up to 128, which the kernel for short sequences requires; above, a multiple of 64."""
    if keys <= 2 * _SEQUENCE_MULTIPLE:
        return max(16, 1 << (keys - 1).bit_length())
    return _round_up(keys, _SEQUENCE_MULTIPLE)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
