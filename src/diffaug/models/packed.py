"""Rows without padding: all tokens of a batch in one long row, and attention that keeps the sentences apart.

A padded batch of sentences is half padding. Here a backbone sees a single row of the real tokens, each with its
position given. Every layer but attention treats tokens one by one and needs to know nothing; the attention function
(`diffaug.models.attention`) calls `PackedStates.attend`, which knows where sentences begin and puts the prefix before
each.

Sizes are rounded up, so that the batches of a run have few different ones: filler rows take up the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug import kernels
from diffaug.errors import DiffaugError
from diffaug.models.padding import Group, groups
from diffaug.models.rows import Rows

# Rows are rounded up to a multiple of this, tokens by a thirty-second at the most.
_ROWS, _PARTS = 64, 32


@dataclass
class Packed:
    """A batch of sentences end to end.

    Attributes:
        input_ids: (1, tokens)
        positions: (1, tokens)
        row_of: (tokens,), the row a token belongs to.
        starts: (rows,), the first token of each row.
        lengths: (rows,)
        pool_at: (rows,), the token a row is read at: its mask token, or its first.
        views: (rows,), the view a row belongs to; None: all views at once, or no prefix.
        count: how many rows are real; filler rows follow.
        before: how many keys of a prefix attention puts before each row.
        longest: no row has more keys, the prefix's counted; rounded up.
    """

    input_ids: Tensor
    positions: Tensor
    row_of: Tensor
    starts: Tensor
    lengths: Tensor
    pool_at: Tensor
    views: Tensor | None
    count: int
    before: int
    longest: int

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> tuple[int, int, int]:
        """Tokens, rows and longest row, filler counted: batches of one size can share a recorded computation."""
        return self.input_ids.shape[1], len(self.starts), self.longest

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    # Not kept: a recorded forward computes them anew in every replay.

    def padded_mask(self) -> Tensor:
        """(rows, longest - before): where padded rows hold a token."""
        return torch.arange(self.longest - self.before, device=self.starts.device) < self.lengths[:, None]

    def padded_places(self) -> Tensor:
        """(tokens,): the place of each token in padded rows, all places counted through."""
        within = torch.arange(len(self.row_of), device=self.row_of.device) - self.starts[self.row_of]
        return self.row_of * (self.longest - self.before) + within

    def to(self, device: torch.device | str) -> Packed:
        """The same on ``device``."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Packed:
        """The same in memory from which a GPU can fetch it by itself."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> Packed:
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return Packed(**(values | {name: change(tensor) for name, tensor in self.tensors().items()}))


def pack(rows: Rows, first_position: int, before: int = 0, *, fill: bool = True) -> Packed:
    """Lay out a padded batch end to end. On the CPU.

    Args:
        rows: the batch.
        first_position: the position of a row's first token.
        before: how many keys of a prefix will be before each row.
        fill: round the size up, with filler rows.
    """
    count, width = rows.input_ids.shape
    mask = torch.ones(count, width, dtype=torch.bool) if rows.attention_mask is None else rows.attention_mask.bool()
    real = mask.sum(1)
    longest = _rounded_row(int(real.max()) + before)
    filler = _filler(count, int(real.sum()), longest - before) if fill else real.new_empty(0)
    lengths = torch.cat([real, filler])
    starts = lengths.cumsum(0) - lengths

    column = torch.arange(width).expand(count, width)
    if rows.gap is not None:
        assert rows.slot is not None
        column = column + (column >= rows.slot.unsqueeze(1)) * rows.gap.unsqueeze(1)
    spare = torch.zeros(int(filler.sum()), dtype=torch.long)
    at = torch.zeros(count, dtype=torch.long) if rows.pool_at is None else rows.pool_at
    return Packed(
        input_ids=torch.cat([rows.input_ids[mask], spare]).unsqueeze(0),
        positions=torch.cat([column[mask], spare]).unsqueeze(0) + first_position,
        row_of=torch.repeat_interleave(torch.arange(len(lengths)), lengths),
        starts=starts,
        lengths=lengths,
        pool_at=starts + F.pad(at, (0, len(filler))),
        views=None if rows.views is None else F.pad(rows.views, (0, len(filler))),
        count=count,
        before=before,
        longest=longest,
    )


def _filler(rows: int, tokens: int, longest: int) -> Tensor:
    """The lengths of the rows that fill a batch up, each of one token at least and ``longest`` at most."""
    more = _rounded(rows + 1, _ROWS) - rows
    while True:
        wanted = tokens + more
        spare = _rounded(wanted, max(_ROWS, 2 ** (wanted.bit_length() - 1) // _PARTS)) - tokens
        if spare <= more * longest:
            return torch.full((more,), spare // more) + (torch.arange(more) < spare % more)
        more += _ROWS


def _rounded_row(longest: int) -> int:
    """A power of two, as our kernel has it, for short rows; for longer ones no more than needed."""
    return max(16, 1 << (longest - 1).bit_length()) if longest <= 2 * _ROWS else _rounded(longest, _ROWS)


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class PackedStates:
    """What the attention layers of one forward need to know of a packed batch; see `PrefixStates`.

    Args:
        packed: the batch.
        layers: how often attention will be asked for.
        blocks: (layers, 2, views, heads, length, head_dim), the prefix's keys and values; None without a prefix.
        prefix_dropout: on the prefix's keys and values; each row draws its own mask.
    """

    def __init__(self, packed: Packed, layers: int, blocks: Tensor | None, prefix_dropout: float = 0.0) -> None:
        assert packed.before == (0 if blocks is None else blocks.shape[4]), "packed for another prefix"
        self._packed = packed
        self._layers = layers
        # All at once: layer by layer, the gradient of each would be a whole tensor of zeros but for its block.
        self._blocks = None if blocks is None else blocks.unbind(0)
        self._prefix_dropout = prefix_dropout
        self.calls = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
        """(1, tokens, heads, head_dim) out of query, key and value, each (1, heads, tokens, head_dim)."""
        layer, packed = self.calls, self._packed
        self.calls += 1
        if layer >= self._layers:
            raise DiffaugError(f"the backbone attended more than {self._layers} times in one forward")
        scale = query.shape[3] ** -0.5 if scale is None else scale
        # each (tokens, heads, head_dim)
        queries, keys, values = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
        prefix = None if self._blocks is None else self._blocks[layer].to(query.dtype)
        if not kernels.attention_fits(query):
            return self._attend_padded(queries, keys, values, prefix, scale, dropout).unsqueeze(0)
        from diffaug.kernels.attention import attend

        seeds = self._seeds[layer] if dropout or self._prefix_dropout else None
        return attend(queries, keys, values, prefix, packed, scale, dropout, self._prefix_dropout, seeds).unsqueeze(0)

    @property
    def complete(self) -> bool:
        """Whether every layer has asked."""
        return self.calls == self._layers

    def finish(self) -> None:
        """Raise unless every layer asked: a backbone that attends by itself would mix up all sentences."""
        if not self.complete:
            raise DiffaugError(
                f"only {self.calls} of {self._layers} attention layers kept the sentences of a batch apart"
            )

    def _attend_padded(
        self, query: Tensor, key: Tensor, value: Tensor, prefix: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        """Attention of any length and on any device: padded rows, for this one operation."""
        sizes, counts = zip(
            *((group.tokens, group.rows.stop - group.rows.start) for group in self._groups), strict=True
        )
        before = None
        if prefix is not None:
            of_rows = self._prefix_of_rows(prefix)
            if self._prefix_dropout:
                of_rows = F.dropout(of_rows, self._prefix_dropout)
            before = of_rows.split(counts, 1)
        found = []
        split = (states.split(sizes) for states in (query, key, value))
        for number, (group, mask, *states) in enumerate(zip(self._groups, self._masks, *split, strict=True)):
            # each (rows, heads, width, head_dim)
            queries, keys, values = (group.pad(part).transpose(1, 2) for part in states)
            if before is not None:
                keys = torch.cat([before[number][0], keys], dim=2)
                values = torch.cat([before[number][1], values], dim=2)
            result = F.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=mask,
                dropout_p=dropout,
                scale=scale,
            )
            found.append(group.unpad(result.transpose(1, 2)))
        return torch.cat(found)

    def _prefix_of_rows(self, prefix: Tensor) -> Tensor:
        """(2, rows, heads, length, head_dim)"""
        starts, views = self._packed.starts, self._packed.views
        views = torch.zeros_like(starts) if views is None else views
        # Chosen by a product: its gradient is summed in 32 bits and in one order. That of an index is summed in
        # 16 on a GPU, in an order that is another every time.
        chosen = (views[:, None] == torch.arange(prefix.shape[1], device=views.device)).to(prefix.dtype)
        return (chosen @ prefix.flatten(2)).unflatten(2, prefix.shape[2:])

    @cached_property
    def _seeds(self) -> Tensor:
        """(layers, 2): of dropout on the attention weights and on the prefix.

        Drawn on the device, so that a recorded forward draws anew in every replay.
        """
        return torch.randint(2**31, (self._layers, 2), device=self._packed.starts.device)

    @cached_property
    def _groups(self) -> list[Group]:
        return groups(self._packed)

    @cached_property
    def _masks(self) -> list[Tensor | None]:
        return [group.mask(self._packed.before) for group in self._groups]


def pool_packed(pooling: str, packed: Packed, states: Tensor) -> Tensor:
    """(rows, width): the vectors of all rows, filler too, from the states (1, tokens, width) that are pooled."""
    states = states.squeeze(0)
    if pooling in ("cls", "mask"):
        return states.index_select(0, packed.pool_at)
    sums = states.new_zeros(len(packed.starts), states.shape[1], dtype=torch.float32)
    return sums.index_add(0, packed.row_of, states.float()) / packed.lengths[:, None]
