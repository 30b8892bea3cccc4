"""Attention over packed sequences with a prefix before each: forward and backward as Triton kernels.

There is no padding in memory, and the prefix is read in place instead of being copied before every sequence. torch's
own kernel for packed sequences has no dropout, which the methods here need. Most sentences have about twenty tokens and
go to `short_attention`; the others go to `long_attention`.

`kernels.supports_attention` says which inputs are supported.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor

from diffaug.kernels.long_attention import long_backward, long_forward
from diffaug.kernels.short_attention import short_backward, short_forward

if TYPE_CHECKING:
    from diffaug.models.batch import PackedBatch

# Upper bounds on the keys of a sequence in the launches for short sequences; longer ones are long.
_SHORT = (32, 64)
# Registers per thread: the backward of short sequences would use more, which lowers the occupancy of the GPU.
_REGISTERS = 128
# Queries and keys per block, for long sequences.
_BLOCK = 64


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix: Tensor | None,
    batch: PackedBatch,
    scale: float,
    dropout: float = 0.0,
    prefix_dropout: float = 0.0,
    seeds: Tensor | None = None,
) -> Tensor:
    """(tokens, heads, head_dim)

    Args:
        query, key, value: (tokens, heads, head_dim)
        prefix: (2, views, heads, length, head_dim), keys and values before every sequence; None for none.
        batch: where the sequences begin and end, and the view of each.
        scale: factor of the dot products.
        dropout: on the attention weights.
        prefix_dropout: on the prefix's keys and values; each sequence draws its own mask.
        seeds: (2,), the seeds of both dropouts, on the device; None without dropout.
    """
    found: Tensor = _Attention.apply(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        None if prefix is None else prefix.contiguous(),
        batch.starts,
        batch.lengths,
        batch.view_ids,
        seeds,
        batch.max_keys,
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
        # In one tensor: `kernels.linear` then computes one product for all three.
        own = query.new_empty(len(query), 3, *query.shape[1:]).unbind(1)
        # A gradient for each sequence, summed below: atomic additions of hundreds of programs would be slow, and their
        # order random.
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
    """Keys and values; without a prefix any valid pointer."""
    return (stand_in, stand_in) if prefix is None else (prefix[0], prefix[1])


def _or(stand_in: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    return [stand_in if tensor is None else tensor for tensor in tensors]


def _common(
    query: Tensor, prefix: Tensor | None, views: Tensor | None, dropout: float, prefix_dropout: float
) -> dict[str, Any]:
    """The constants of all kernels."""
    return {
        "heads": query.shape[1],
        "dim": query.shape[2],
        "length": 0 if prefix is None else prefix.shape[3],
        "by_view": views is not None,
        "drops": dropout > 0,
        "drops_prefix": prefix_dropout > 0,
    }


def _short_launches(longest: int) -> list[dict[str, Any]]:
    """The constants of each launch for short sequences."""
    return [
        {
            "ABOVE": above,
            "KEYS": min(keys, longest),
            "QUERIES": 16,
            "num_warps": max(2, keys // 16),
            "num_stages": 1,  # few loops run more than twice: no pipelining
            "maxnreg": _REGISTERS,
        }
        for above, keys in pairwise((0, *_SHORT))
        if above < longest
    ]


def _long_launch(query: Tensor) -> dict[str, Any]:
    """The constants of the launch for long sequences."""
    # Smaller blocks for wide heads, because of the registers.
    block = _BLOCK if query.shape[2] <= 64 else _BLOCK // 2
    return {"ABOVE": _SHORT[-1], "BLOCK": block, "num_warps": 4, "num_stages": 1}
