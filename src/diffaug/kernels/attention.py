"""Attention of short rows that lie end to end, a prefix before each: forward and backward as one kernel each.

Sentences have some twenty tokens, so all keys of a row fit into one program: no running maximum, nothing kept for the
backward pass but the inputs, no padding in memory, and the prefix is read where it is instead of being copied before
every row. torch's own kernel for rows end to end has no dropout, which the methods here live on.

For which inputs, `kernels.attention_fits` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffaug.kernels.chance import chance

if TYPE_CHECKING:
    from diffaug.models.packed import Packed

# Rows of at most so many keys go first, then those of twice as many, and so on.
_SHORT = 32
# A thread's registers at most: backward would take more, and leave most of a GPU's threads without any.
_REGISTERS = 128


def attend_short(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix: Tensor | None,
    packed: Packed,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    """(tokens, heads, head_dim)

    Args:
        query, key, value: (tokens, heads, head_dim)
        prefix: (2, views, heads, length, head_dim): keys and values before every row; None for none.
        packed: where the rows begin and end, and the view of each.
        scale: of the products of queries and keys.
        dropout: the part of the attention weights that is dropped.
        seed: (), of dropout, on the device.
    """
    found: Tensor = _ShortAttention.apply(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        None if prefix is None else prefix.contiguous(),
        packed.starts,
        packed.lengths,
        packed.views,
        seed,
        packed.longest,
        scale,
        dropout,
    )
    return found


class _ShortAttention(torch.autograd.Function):
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
        seed: Tensor | None,
        longest: int,
        scale: float,
        dropout: float,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, prefix, starts, lengths, views, seed)
        ctx.numbers = longest, scale, dropout
        out = torch.empty_like(query)
        for constants in _launches(query, prefix, views, longest, dropout):
            _forward[_grid(query, starts)](
                query, key, value, *_halves(prefix, query), out, starts, lengths, *_or(starts, views, seed),
                scale, dropout, **constants,
            )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, prefix, starts, lengths, views, seed = ctx.saved_tensors
        longest, scale, dropout = ctx.numbers
        gradient = gradients[0].contiguous()
        # Side by side, as one product takes them that goes on from here (`kernels.linear`).
        d_query, d_key, d_value = query.new_empty(len(query), 3, *query.shape[1:]).unbind(1)
        # The rows' own shares, which are added up below: hundreds of programs that add to the same few numbers would
        # wait for each other, and in an order that is another every time.
        shares = None
        if prefix is not None and ctx.needs_input_grad[3]:
            shares = torch.empty(2, len(starts), *prefix.shape[2:], dtype=query.dtype, device=query.device)
        for constants in _launches(query, prefix, views, longest, dropout):
            _backward[_grid(query, starts)](
                query, key, value, *_halves(prefix, query), gradient, d_query, d_key, d_value,
                *_halves(shares, query), starts, lengths, *_or(starts, views, seed), scale, dropout,
                with_shares=shares is not None, **constants,
            )  # fmt: skip
        d_prefix = None
        if shares is not None:
            own = torch.zeros_like(starts) if views is None else views
            one_hot = (torch.arange(prefix.shape[1], device=own.device)[:, None] == own).to(shares.dtype)
            d_prefix = (one_hot @ shares.flatten(2)).view_as(prefix)  # (2, views, ...), from (2, rows, ...)
        return d_query, d_key, d_value, d_prefix, *[None] * 7


def _grid(query: Tensor, starts: Tensor) -> tuple[int, int]:
    return len(starts), query.shape[1]


def _halves(prefix: Tensor | None, stand_in: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values; a kernel that has no prefix still wants an address."""
    return (stand_in, stand_in) if prefix is None else (prefix[0], prefix[1])


def _or(stand_in: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    return [stand_in if tensor is None else tensor for tensor in tensors]


def _launches(
    query: Tensor, prefix: Tensor | None, views: Tensor | None, longest: int, dropout: float
) -> list[dict[str, Any]]:
    """The kernels' constants: most rows are far shorter than the longest, and go first with fewer keys a program."""
    common = {
        "heads": query.shape[1],
        "dim": query.shape[2],
        "length": 0 if prefix is None else prefix.shape[3],
        "by_view": views is not None,
        "drops": dropout > 0,
        "QUERIES": 16,
        "num_stages": 1,  # few loops run more than twice: nothing to fetch ahead
        "maxnreg": _REGISTERS,
    }
    launches, above, keys = [], 0, min(longest, _SHORT)
    while above < longest:
        launches.append({**common, "ABOVE": above, "KEYS": keys, "num_warps": max(2, keys // 16)})
        above, keys = keys, 2 * keys
    return launches


@triton.jit
def _load(
    key, value, prefix_key, prefix_value, views, row, head, start, tokens, column, channel,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr,
):  # fmt: skip
    """Keys and values of a row and head (KEYS, dim): those of the prefix, then the row's own, then nothing."""
    at = (start + column - length)[:, None] * (heads * dim) + head * dim + channel[None, :]
    own = ((column >= length) & (column < length + tokens))[:, None]
    keys, values = tl.load(key + at, mask=own, other=0.0), tl.load(value + at, mask=own, other=0.0)
    if length:
        view = tl.load(views + row) if by_view else 0
        at = ((view * heads + head) * length + column)[:, None] * dim + channel[None, :]
        before = (column < length)[:, None]
        keys += tl.load(prefix_key + at, mask=before, other=0.0)
        values += tl.load(prefix_value + at, mask=before, other=0.0)
    return keys, values


@triton.jit
def _weights(
    queries, keys, column, row, head, first, count, seed, scale, dropout,
    heads: tl.constexpr, drops: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Attention weights (QUERIES, KEYS) on the first ``count`` keys, and by what dropout multiplies them."""
    scores = tl.dot(queries, tl.trans(keys)) * scale
    scores = tl.where((column < count)[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    weights = weights / tl.sum(weights, 1)[:, None]
    kept = tl.full([QUERIES, KEYS], 1.0, tl.float32)
    if drops:
        # Rows of both launches have the same numbers; with KEYS in the seed, they do not share their luck.
        number = ((row * heads + head) * KEYS + first + tl.arange(0, QUERIES)) * KEYS
        luck = chance(seed + KEYS, number[:, None] + column[None, :])
        kept = tl.where(luck < dropout, 0.0, 1.0 / (1.0 - dropout))
    return weights, kept


@triton.jit
def _forward(
    query, key, value, prefix_key, prefix_value, out, starts, lengths, views, seeds, scale, dropout,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr, drops: tl.constexpr,
    ABOVE: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """One program a row and head; rows of another launch are left to that."""
    row, head = tl.program_id(0), tl.program_id(1)
    start, tokens = tl.load(starts + row).to(tl.int32), tl.load(lengths + row).to(tl.int32)
    if (length + tokens <= ABOVE) | (length + tokens > KEYS):
        return
    column, channel = tl.arange(0, KEYS), tl.arange(0, dim)
    keys, values = _load(
        key, value, prefix_key, prefix_value, views, row, head, start, tokens, column, channel,
        heads, dim, length, by_view,
    )  # fmt: skip
    seed = tl.load(seeds) if drops else 0
    for first in range(0, tokens, QUERIES):
        line = first + tl.arange(0, QUERIES)
        here = (start + line)[:, None] * (heads * dim) + head * dim + channel[None, :]
        queries = tl.load(query + here, mask=(line < tokens)[:, None], other=0.0)
        weights, kept = _weights(
            queries, keys, column, row, head, first, length + tokens, seed, scale, dropout, heads, drops, KEYS, QUERIES
        )
        found = tl.dot((weights * kept).to(values.dtype), values)
        tl.store(out + here, found.to(values.dtype), mask=(line < tokens)[:, None])


@triton.jit
def _backward(
    query, key, value, prefix_key, prefix_value, d_out, d_query, d_key, d_value, d_prefix_key, d_prefix_value,
    starts, lengths, views, seeds, scale, dropout, with_shares: tl.constexpr,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr, drops: tl.constexpr,
    ABOVE: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """One program a row and head; the weights are computed again, from the same random numbers."""
    row, head = tl.program_id(0), tl.program_id(1)
    start, tokens = tl.load(starts + row).to(tl.int32), tl.load(lengths + row).to(tl.int32)
    if (length + tokens <= ABOVE) | (length + tokens > KEYS):
        return
    column, channel = tl.arange(0, KEYS), tl.arange(0, dim)
    keys, values = _load(
        key, value, prefix_key, prefix_value, views, row, head, start, tokens, column, channel,
        heads, dim, length, by_view,
    )  # fmt: skip
    seed = tl.load(seeds) if drops else 0
    d_keys, d_values = tl.zeros([KEYS, dim], tl.float32), tl.zeros([KEYS, dim], tl.float32)
    for first in range(0, tokens, QUERIES):
        line = first + tl.arange(0, QUERIES)
        here = (start + line)[:, None] * (heads * dim) + head * dim + channel[None, :]
        queries = tl.load(query + here, mask=(line < tokens)[:, None], other=0.0)
        gradient = tl.load(d_out + here, mask=(line < tokens)[:, None], other=0.0)
        weights, kept = _weights(
            queries, keys, column, row, head, first, length + tokens, seed, scale, dropout, heads, drops, KEYS, QUERIES
        )
        d_weights = tl.dot(gradient, tl.trans(values)) * kept
        d_values += tl.dot(tl.trans((weights * kept).to(values.dtype)), gradient)
        d_scores = weights * (d_weights - tl.sum(d_weights * weights, 1)[:, None]) * scale
        d_scores = d_scores.to(values.dtype)
        d_keys += tl.dot(tl.trans(d_scores), queries)
        there = (start + line)[:, None] * (3 * heads * dim) + head * dim + channel[None, :]
        tl.store(d_query + there, tl.dot(d_scores, keys).to(values.dtype), mask=(line < tokens)[:, None])
    at = (start + column - length)[:, None] * (3 * heads * dim) + head * dim + channel[None, :]
    own = ((column >= length) & (column < length + tokens))[:, None]
    tl.store(d_key + at, d_keys.to(values.dtype), mask=own)
    tl.store(d_value + at, d_values.to(values.dtype), mask=own)
    if with_shares:
        share = ((row * heads + head) * length + column)[:, None] * dim + channel[None, :]
        tl.store(d_prefix_key + share, d_keys.to(values.dtype), mask=(column < length)[:, None])
        tl.store(d_prefix_value + share, d_values.to(values.dtype), mask=(column < length)[:, None])
