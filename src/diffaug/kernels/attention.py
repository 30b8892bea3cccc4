"""Attention of rows that lie end to end, a prefix before each: forward and backward as kernels of our own.

No padding in memory, and the prefix is read where it is instead of being copied before every row. torch's own kernel
for rows end to end has no dropout, which the methods here live on. Rows go to the kernel for their length: most
sentences have some twenty tokens (`short_rows`), and few are long (`long_rows`).

For which inputs, `kernels.attention_fits` says.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from diffaug.kernels.long_rows import long_backward, long_forward
from diffaug.kernels.short_rows import short_backward, short_forward

if TYPE_CHECKING:
    from diffaug.models.packed import Packed

# Most rows have few keys and go first, then those with more; rows with more than the last number are long.
_SHORT = (32, 64)
# A thread's registers at most: backward of short rows would take more, and leave most of a GPU's threads without any.
_REGISTERS = 128
# Queries and keys that a program has at a time, in long rows.
_BLOCK = 64


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix: Tensor | None,
    packed: Packed,
    scale: float,
    dropout: float = 0.0,
    prefix_dropout: float = 0.0,
    seeds: Tensor | None = None,
) -> Tensor:
    """(tokens, heads, head_dim)

    Args:
        query, key, value: (tokens, heads, head_dim)
        prefix: (2, views, heads, length, head_dim): keys and values before every row; None for none.
        packed: where the rows begin and end, and the view of each.
        scale: of the products of queries and keys.
        dropout: the part of the attention weights that is dropped.
        prefix_dropout: the part of the prefix's keys and values that is dropped, drawn anew for each row.
        seeds: (2,), of both kinds of dropout, on the device; None without dropout.
    """
    found: Tensor = _Attention.apply(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        None if prefix is None else prefix.contiguous(),
        packed.starts,
        packed.lengths,
        packed.views,
        seeds,
        packed.longest,
        scale,
        dropout,
        prefix_dropout if prefix is not None else 0.0,
    )
    return found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        prefix: Tensor | None,
        starts: Tensor,
        lengths: Tensor,
        views: Tensor | None,
        seeds: Tensor | None,
        longest: int,
        scale: float,
        dropout: float,
        prefix_dropout: float,
    ) -> Tensor:
        out = torch.empty_like(query)
        inputs = query, key, value, *_halves(prefix, query)
        rest = starts, lengths, *_or(starts, views, seeds), scale, dropout, prefix_dropout
        common = _common(query, prefix, views, dropout, prefix_dropout)
        for constants in _short_launches(longest):
            short_forward[_grid(query, starts)](*inputs, out, *rest, **common, **constants)
        log_sums = None
        if longest > _SHORT[-1]:
            log_sums = query.new_empty(query.shape[:2], dtype=torch.float32)
            constants = _long_launch(query)
            grid = *_grid(query, starts), triton.cdiv(longest - common["length"], constants["BLOCK"])
            long_forward[grid](*inputs, out, log_sums, *rest, **common, **constants)
        ctx.save_for_backward(
            query, key, value, prefix, starts, lengths, views, seeds, None if log_sums is None else out, log_sums
        )
        ctx.numbers = longest, scale, dropout, prefix_dropout
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, prefix, starts, lengths, views, seeds, out, log_sums = ctx.saved_tensors
        longest, scale, dropout, prefix_dropout = ctx.numbers
        gradient = gradients[0].contiguous()
        # Side by side, as one product takes them that goes on from here (`kernels.linear`).
        own = query.new_empty(len(query), 3, *query.shape[1:]).unbind(1)
        # The rows' own shares, which are added up below: hundreds of programs that add to the same few numbers would
        # wait for each other, and in an order that is another every time.
        shares = None
        if prefix is not None and ctx.needs_input_grad[3]:
            shares = torch.empty(2, len(starts), *prefix.shape[2:], dtype=query.dtype, device=query.device)
        inputs = query, key, value, *_halves(prefix, query)
        found = *own, *_halves(shares, query)
        rest = starts, lengths, *_or(starts, views, seeds), scale, dropout, prefix_dropout
        common = _common(query, prefix, views, dropout, prefix_dropout) | {"with_shares": shares is not None}
        for constants in _short_launches(longest):
            short_backward[_grid(query, starts)](*inputs, gradient, *found, *rest, **common, **constants)
        if log_sums is not None:
            constants = _long_launch(query)
            grid = *_grid(query, starts), triton.cdiv(longest, constants["BLOCK"])
            long_backward[grid](*inputs, out, log_sums, gradient, *found, *rest, **common, **constants)
        d_prefix = None
        if shares is not None:
            of_rows = torch.zeros_like(starts) if views is None else views
            one_hot = (torch.arange(prefix.shape[1], device=of_rows.device)[:, None] == of_rows).to(shares.dtype)
            d_prefix = (one_hot @ shares.flatten(2)).view_as(prefix)  # (2, views, ...), from (2, rows, ...)
        return *own, d_prefix, *[None] * 8


def _grid(query: Tensor, starts: Tensor) -> tuple[int, int]:
    return len(starts), query.shape[1]


def _halves(prefix: Tensor | None, stand_in: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values; a kernel that has no prefix still wants an address."""
    return (stand_in, stand_in) if prefix is None else (prefix[0], prefix[1])


def _or(stand_in: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    return [stand_in if tensor is None else tensor for tensor in tensors]


def _common(
    query: Tensor, prefix: Tensor | None, views: Tensor | None, dropout: float, prefix_dropout: float
) -> dict[str, Any]:
    """The constants that all kernels have."""
    return {
        "heads": query.shape[1],
        "dim": query.shape[2],
        "length": 0 if prefix is None else prefix.shape[3],
        "by_view": views is not None,
        "drops": dropout > 0,
        "drops_prefix": prefix_dropout > 0,
    }


def _short_launches(longest: int) -> list[dict[str, Any]]:
    """The constants of each launch of kernels for short rows."""
    return [
        {
            "ABOVE": above,
            "KEYS": min(keys, longest),
            "QUERIES": 16,
            "num_warps": max(2, keys // 16),
            "num_stages": 1,  # few loops run more than twice: nothing to fetch ahead
            "maxnreg": _REGISTERS,
        }
        for above, keys in pairwise((0, *_SHORT))
        if above < longest
    ]


def _long_launch(query: Tensor) -> dict[str, Any]:
    """The constants of kernels for long rows."""
    # Of wide heads fewer at a time: a program has no more registers for them.
    block = _BLOCK if query.shape[2] <= 64 else _BLOCK // 2
    return {"ABOVE": _SHORT[-1], "BLOCK": block, "num_warps": 4, "num_stages": 1}
