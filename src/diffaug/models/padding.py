"""Rows that lie end to end, padded for the one operation that looks at whole rows.

On a GPU all rows are padded to one width: how long they are is known there only, and a recorded forward must not ask.
On a CPU rows go in groups, each as wide as its longest row. If they come sorted by length, hardly anything is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from diffaug.models.packed import Packed

# Tokens of a group, padding counted: in larger ones lengths differ more, and smaller ones are more operations.
_BUDGET = 2048


def cut(lengths: Sequence[int], budget: int) -> list[slice]:
    """Parts of consecutive rows which, padded to the longest of them, have no more tokens than ``budget``.

    A row that is longer than that is a part of its own.
    """
    parts, start, longest = [], 0, 0
    for at, length in enumerate(lengths):
        longest = max(longest, length)
        if at > start and (at + 1 - start) * longest > budget:
            parts.append(slice(start, at))
            start, longest = at, length
    return [*parts, slice(start, len(lengths))]


@dataclass
class Group:
    """Consecutive rows of a packed batch.

    Attributes:
        rows: which.
        tokens: how many they have together.
        width: of the padded rows.
        token_at: (rows * width,), the token at each place of the padded rows, a row's last where it has ended; None if
            all rows are as long as the padded ones.
        exists: (rows * width,), whether a place holds a token of its own.
        place: (tokens,), where each token is in the padded rows.
    """

    rows: slice
    tokens: int
    width: int
    token_at: Tensor | None
    exists: Tensor
    place: Tensor

    def pad(self, states: Tensor) -> Tensor:
        """(rows, width, ..) of (tokens, ..)."""
        if self.token_at is not None:
            states = _Pad.apply(states, self.token_at, self.place)
        return states.unflatten(0, (-1, self.width))

    def unpad(self, states: Tensor) -> Tensor:
        """(tokens, ..) of (rows, width, ..)."""
        states = states.flatten(0, 1)
        if self.token_at is not None:
            states = _Unpad.apply(states, self.token_at, self.exists, self.place)
        return states

    def mask(self, before: int) -> Tensor | None:
        """(rows, 1, 1, before + width): what attention may look at, with so many keys before each row; None for all."""
        if self.token_at is None:
            return None
        return F.pad(self.exists.view(-1, self.width), (before, 0), value=True)[:, None, None]


def groups(packed: Packed) -> list[Group]:
    """All rows of a batch, filler too."""
    if packed.starts.device.type != "cpu":
        return [_group(packed, slice(0, len(packed.starts)), 0, len(packed.row_of), packed.longest - packed.before)]
    found, first, lengths = [], 0, packed.lengths.tolist()
    for rows in cut(lengths, _BUDGET):
        tokens, width = sum(lengths[rows]), max(lengths[rows])
        found.append(_group(packed, rows, first, tokens, width, even=min(lengths[rows]) == width))
        first += tokens
    return found


def _group(packed: Packed, rows: slice, first: int, tokens: int, width: int, even: bool = False) -> Group:
    """Of rows that begin with the token ``first``; ``even`` if all are as long as the padded ones."""
    device = packed.starts.device
    starts, lengths = packed.starts[rows] - first, packed.lengths[rows, None]
    column = torch.arange(width, device=device)
    row_of = packed.row_of[first : first + tokens] - rows.start
    return Group(
        rows=rows,
        tokens=tokens,
        width=width,
        token_at=None if even else (starts[:, None] + torch.minimum(column, lengths - 1)).flatten(),
        exists=(column < lengths).flatten(),
        place=row_of * width + torch.arange(tokens, device=device) - starts[row_of],
    )


# Both ways are lookups. Left to autograd, the way back would be a sum, one token after the other.


class _Pad(torch.autograd.Function):
    """No gradient comes from places that hold no token of their own: nothing looks at them."""

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
    def forward(ctx: Any, states: Tensor, token_at: Tensor, exists: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(token_at, exists)
        return states.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        token_at, exists = ctx.saved_tensors
        gradient = gradients[0].index_select(0, token_at)
        return gradient.masked_fill_(~exists.view(-1, *[1] * (gradient.dim() - 1)), 0.0), None, None, None
