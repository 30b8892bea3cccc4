"""Groups of sequences of a packed batch, padded for attention where no kernel of ours runs.

On a GPU all sequences form one group: their lengths are known on the device only, and a CUDA graph must not read them.
On a CPU each group is as wide as its longest sequence. If the sequences are sorted by length, little is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug.models.batch import PackedBatch

# Tokens of a group, padding included. Larger groups have more padding, smaller ones need more operations.
_GROUP_TOKENS = 2048


def split_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[slice]:
    """Slices of consecutive sequences which, padded to the longest of them, have at most ``max_tokens`` tokens.

    A sequence longer than ``max_tokens`` gets a slice of its own.
    """
    parts, start, longest = [], 0, 0
    for at, length in enumerate(lengths):
        longest = max(longest, length)
        if at > start and (at + 1 - start) * longest > max_tokens:
            parts.append(slice(start, at))
            start, longest = at, length
    return [*parts, slice(start, len(lengths))]


@dataclass
class PaddedGroup:
    """Consecutive sequences of a packed batch, and how to pad them.

    Attributes:
        rows: which sequences.
        tokens: the number of their tokens.
        width: the length they are padded to.
        token_at: (sequences * width,), the token at each place of the padded form; padding repeats a sequence's last
            token. None if all sequences have the full width.
        is_token: (sequences * width,), false for padding.
        place: (tokens,), the index of each token in the flattened padded form.
    """

    rows: slice
    tokens: int
    width: int
    token_at: Tensor | None
    is_token: Tensor
    place: Tensor

    def pad(self, states: Tensor) -> Tensor:
        """(sequences, width, ..) from (tokens, ..)."""
        if self.token_at is not None:
            states = _Pad.apply(states, self.token_at, self.place)
        return states.unflatten(0, (-1, self.width))

    def unpad(self, states: Tensor) -> Tensor:
        """(tokens, ..) from (sequences, width, ..)."""
        states = states.flatten(0, 1)
        if self.token_at is not None:
            states = _Unpad.apply(states, self.token_at, self.is_token, self.place)
        return states

    def mask(self, prefix_length: int) -> Tensor | None:
        """(sequences, 1, 1, prefix_length + width): the attention mask; None if nothing is padded."""
        if self.token_at is None:
            return None
        return F.pad(self.is_token.view(-1, self.width), (prefix_length, 0), value=True)[:, None, None]


def padded_groups(batch: PackedBatch) -> list[PaddedGroup]:
    """The groups of a batch, filler sequences included."""
    if batch.starts.device.type != "cpu":
        width = batch.max_keys - batch.prefix_length
        return [_group(batch, slice(0, len(batch.starts)), 0, len(batch.sequence_ids), width)]
    groups, first, lengths = [], 0, batch.lengths.tolist()
    for rows in split_by_tokens(lengths, _GROUP_TOKENS):
        tokens, width = sum(lengths[rows]), max(lengths[rows])
        groups.append(_group(batch, rows, first, tokens, width, even=min(lengths[rows]) == width))
        first += tokens
    return groups


def _group(batch: PackedBatch, rows: slice, first: int, tokens: int, width: int, even: bool = False) -> PaddedGroup:
    """The group of sequences that begin at the token ``first``; ``even`` if all have the full width."""
    device = batch.starts.device
    starts, lengths = batch.starts[rows] - first, batch.lengths[rows, None]
    column = torch.arange(width, device=device)
    sequence_ids = batch.sequence_ids[first : first + tokens] - rows.start
    return PaddedGroup(
        rows=rows,
        tokens=tokens,
        width=width,
        token_at=None if even else (starts[:, None] + torch.minimum(column, lengths - 1)).flatten(),
        is_token=(column < lengths).flatten(),
        place=sequence_ids * width + torch.arange(tokens, device=device) - starts[sequence_ids],
    )


# Both directions are lookups. The backward that autograd derives for a lookup is a slower scattered sum.


class _Pad(torch.autograd.Function):
    """Padding has no gradient: nothing attends to it."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, token_at: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return states.index_select(0, token_at)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        return gradients[0].index_select(0, place), None, None


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, token_at: Tensor, is_token: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(token_at, is_token)
        return states.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        token_at, is_token = ctx.saved_tensors
        gradient = gradients[0].index_select(0, token_at)
        return gradient.masked_fill_(~is_token.view(-1, *[1] * (gradient.dim() - 1)), 0.0), None, None, None
