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

if TYPE_CHECKING:
    from diffaug.models.packed import Packed

# Rows of at most so many tokens go first.
_SHORT = 32


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
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
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
    length = 0 if prefix is None else prefix.shape[3]
    common = {
        "heads": query.shape[1],
        "dim": query.shape[2],
        "length": length,
        "by_view": views is not None,
        "drops": dropout > 0,
        "PREFIX": max(16, triton.next_power_of_2(length)),
    }
    launches = [{**common, "ABOVE": 0, "KEYS": min(longest, _SHORT), "QUERIES": 16, "num_warps": 2}]
    if longest > _SHORT:
        launches.append({**common, "ABOVE": _SHORT, "KEYS": longest, "QUERIES": 32, "num_warps": longest // 16})
    return launches


@triton.jit
def _load(own, prefix, at, at_before, real, real_before, length: tl.constexpr):
    """Keys, or values: a row's own (KEYS, dim), and those before it (PREFIX, dim), which mean nothing without any."""
    found = tl.load(own + at, mask=real, other=0.0)
    before = found
    if length:
        before = tl.load(prefix + at_before, mask=real_before, other=0.0)
    return found, before


@triton.jit
def _chance(seed, number):
    """A random number in [0, 1) for each of ``number``: dropout needs no better generator than a good hash."""
    mixed = _mixed(_mixed(number.to(tl.uint32)) ^ seed.to(tl.uint32))
    return (mixed >> 8).to(tl.float32) * (1.0 / (1 << 24))


@triton.jit
def _mixed(number):
    """Every bit of a 32-bit number changes half of the result's: a hash with the constants of C. Wellons' search."""
    number = (number ^ (number >> 16)) * 0x7FEB352D
    number = (number ^ (number >> 15)) * 0x846CA68B
    return number ^ (number >> 16)


@triton.jit
def _weights(
    queries, keys, before, column, place, row, head, first, tokens, seed, scale, dropout,
    heads: tl.constexpr, length: tl.constexpr, drops: tl.constexpr,
    PREFIX: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Attention weights on keys (QUERIES, KEYS) and prefix (QUERIES, PREFIX), and by what dropout multiplies them."""
    scores = tl.dot(queries, tl.trans(keys)) * scale
    scores = tl.where((column < tokens)[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    scores_before = tl.zeros([QUERIES, PREFIX], tl.float32)
    if length:
        scores_before = tl.dot(queries, tl.trans(before)) * scale
        scores_before = tl.where((place < length)[None, :], scores_before, float("-inf"))
        top = tl.maximum(top, tl.max(scores_before, 1))
    weights = tl.exp(scores - top[:, None])
    total = tl.sum(weights, 1)
    weights_before = scores_before
    if length:
        weights_before = tl.exp(scores_before - top[:, None])
        total += tl.sum(weights_before, 1)
        weights_before = weights_before / total[:, None]
    weights = weights / total[:, None]
    kept = tl.full([QUERIES, KEYS], 1.0, tl.float32)
    kept_before = tl.full([QUERIES, PREFIX], 1.0, tl.float32)
    if drops:
        # Rows of both launches have the same numbers; with KEYS in the seed, they do not share their luck.
        number = ((row * heads + head) * KEYS + first + tl.arange(0, QUERIES)) * (KEYS + PREFIX)
        scaled = 1.0 / (1.0 - dropout)
        kept = tl.where(_chance(seed + KEYS, number[:, None] + column[None, :]) < dropout, 0.0, scaled)
        if length:
            chance = _chance(seed + KEYS, number[:, None] + KEYS + place[None, :])
            kept_before = tl.where(chance < dropout, 0.0, scaled)
    return weights, weights_before, kept, kept_before


@triton.jit
def _forward(
    query, key, value, prefix_key, prefix_value, out, starts, lengths, views, seeds, scale, dropout,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr, drops: tl.constexpr,
    PREFIX: tl.constexpr, ABOVE: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """One program a row and head; rows of another launch are left to that."""
    row, head = tl.program_id(0), tl.program_id(1)
    start, tokens = tl.load(starts + row).to(tl.int32), tl.load(lengths + row).to(tl.int32)
    if (tokens <= ABOVE) | (tokens > KEYS):
        return
    column, place, channel = tl.arange(0, KEYS), tl.arange(0, PREFIX), tl.arange(0, dim)
    at = (start + column)[:, None] * (heads * dim) + head * dim + channel[None, :]
    real, real_before = (column < tokens)[:, None], (place < length)[:, None]
    view = tl.load(views + row) if by_view else 0
    at_before = ((view * heads + head) * length + place)[:, None] * dim + channel[None, :]
    keys, before = _load(key, prefix_key, at, at_before, real, real_before, length)
    values, values_before = _load(value, prefix_value, at, at_before, real, real_before, length)
    seed = tl.load(seeds) if drops else 0
    for first in range(0, tokens, QUERIES):
        line = first + tl.arange(0, QUERIES)
        here = (start + line)[:, None] * (heads * dim) + head * dim + channel[None, :]
        queries = tl.load(query + here, mask=(line < tokens)[:, None], other=0.0)
        weights, weights_before, kept, kept_before = _weights(
            queries, keys, before, column, place, row, head, first, tokens, seed, scale, dropout,
            heads, length, drops, PREFIX, KEYS, QUERIES,
        )  # fmt: skip
        found = tl.dot((weights * kept).to(values.dtype), values)
        if length:
            found += tl.dot((weights_before * kept_before).to(values.dtype), values_before)
        tl.store(out + here, found.to(values.dtype), mask=(line < tokens)[:, None])


@triton.jit
def _backward(
    query, key, value, prefix_key, prefix_value, d_out, d_query, d_key, d_value, d_prefix_key, d_prefix_value,
    starts, lengths, views, seeds, scale, dropout, with_shares: tl.constexpr,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr, drops: tl.constexpr,
    PREFIX: tl.constexpr, ABOVE: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """One program a row and head; the weights are computed again, from the same random numbers."""
    row, head = tl.program_id(0), tl.program_id(1)
    start, tokens = tl.load(starts + row).to(tl.int32), tl.load(lengths + row).to(tl.int32)
    if (tokens <= ABOVE) | (tokens > KEYS):
        return
    column, place, channel = tl.arange(0, KEYS), tl.arange(0, PREFIX), tl.arange(0, dim)
    at = (start + column)[:, None] * (heads * dim) + head * dim + channel[None, :]
    real, real_before = (column < tokens)[:, None], (place < length)[:, None]
    view = tl.load(views + row) if by_view else 0
    at_before = ((view * heads + head) * length + place)[:, None] * dim + channel[None, :]
    keys, before = _load(key, prefix_key, at, at_before, real, real_before, length)
    values, values_before = _load(value, prefix_value, at, at_before, real, real_before, length)
    seed = tl.load(seeds) if drops else 0
    d_keys, d_values = tl.zeros([KEYS, dim], tl.float32), tl.zeros([KEYS, dim], tl.float32)
    d_before, d_values_before = tl.zeros([PREFIX, dim], tl.float32), tl.zeros([PREFIX, dim], tl.float32)
    for first in range(0, tokens, QUERIES):
        line = first + tl.arange(0, QUERIES)
        here = (start + line)[:, None] * (heads * dim) + head * dim + channel[None, :]
        queries = tl.load(query + here, mask=(line < tokens)[:, None], other=0.0)
        gradient = tl.load(d_out + here, mask=(line < tokens)[:, None], other=0.0)
        weights, weights_before, kept, kept_before = _weights(
            queries, keys, before, column, place, row, head, first, tokens, seed, scale, dropout,
            heads, length, drops, PREFIX, KEYS, QUERIES,
        )  # fmt: skip
        d_weights = tl.dot(gradient, tl.trans(values)) * kept
        d_values += tl.dot(tl.trans((weights * kept).to(values.dtype)), gradient)
        shared = tl.sum(d_weights * weights, 1)
        d_weights_before = weights_before
        if length:
            d_weights_before = tl.dot(gradient, tl.trans(values_before)) * kept_before
            shared += tl.sum(d_weights_before * weights_before, 1)
        d_scores = (weights * (d_weights - shared[:, None]) * scale).to(values.dtype)
        d_queries = tl.dot(d_scores, keys)
        d_keys += tl.dot(tl.trans(d_scores), queries)
        if length:
            d_scores_before = (weights_before * (d_weights_before - shared[:, None]) * scale).to(values.dtype)
            d_queries += tl.dot(d_scores_before, before)
            if with_shares:
                d_before += tl.dot(tl.trans(d_scores_before), queries)
                d_values_before += tl.dot(tl.trans((weights_before * kept_before).to(values.dtype)), gradient)
        tl.store(d_query + here, d_queries.to(values.dtype), mask=(line < tokens)[:, None])
    tl.store(d_key + at, d_keys.to(values.dtype), mask=real)
    tl.store(d_value + at, d_values.to(values.dtype), mask=real)
    if with_shares:
        own = ((row * heads + head) * length + place)[:, None] * dim + channel[None, :]
        tl.store(d_prefix_key + own, d_before.to(values.dtype), mask=real_before)
        tl.store(d_prefix_value + own, d_values_before.to(values.dtype), mask=real_before)
