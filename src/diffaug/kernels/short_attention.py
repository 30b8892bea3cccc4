"""Attention over short sequences: one program holds all keys of its sequence, without a running maximum, and only the
inputs are saved for the backward pass.

The arguments are those of `kernels.attention`. A launch handles the sequences with more than ``ABOVE`` and at most
``KEYS`` keys, those of the prefix included.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffaug.kernels.attention_keys import load_keys, store_keys
from diffaug.kernels.random import chance


@triton.jit
def _weights(
    queries, keys, column, row, head, first, count, seed, scale, dropout,
    heads: tl.constexpr, drops: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Attention weights (QUERIES, KEYS) on the first ``count`` keys, and the factors of their dropout."""
    scores = tl.dot(queries, tl.trans(keys)) * scale
    scores = tl.where((column < count)[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    weights = weights / tl.sum(weights, 1)[:, None]
    kept = tl.full([QUERIES, KEYS], 1.0, tl.float32)
    if drops:
        # KEYS is part of the seed, so that sequences of both launches get different random numbers.
        number = ((row * heads + head) * KEYS + first + tl.arange(0, QUERIES)) * KEYS
        luck = chance(seed + KEYS, number[:, None] + column[None, :])
        kept = tl.where(luck < dropout, 0.0, 1.0 / (1.0 - dropout))
    return weights, kept


@triton.jit
def short_forward(
    query, key, value, prefix_key, prefix_value, out, starts, lengths, views, seeds, scale, dropout, prefix_dropout,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr, drops: tl.constexpr,
    drops_prefix: tl.constexpr, ABOVE: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """One program per sequence and head; sequences of the other launch are skipped."""
    row, head = tl.program_id(0), tl.program_id(1)
    start, tokens = tl.load(starts + row).to(tl.int32), tl.load(lengths + row).to(tl.int32)
    if (length + tokens <= ABOVE) | (length + tokens > KEYS):
        return
    column, channel = tl.arange(0, KEYS), tl.arange(0, dim)
    keys, values = load_keys(
        key, value, prefix_key, prefix_value, views, seeds, prefix_dropout, row, head, start, tokens, column, channel,
        heads, dim, length, by_view, drops_prefix,
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
def short_backward(
    query, key, value, prefix_key, prefix_value, d_out, d_query, d_key, d_value, d_prefix_key, d_prefix_value,
    starts, lengths, views, seeds, scale, dropout, prefix_dropout, with_shares: tl.constexpr,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr, drops: tl.constexpr,
    drops_prefix: tl.constexpr, ABOVE: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """One program per sequence and head; the weights are recomputed with the same random numbers."""
    row, head = tl.program_id(0), tl.program_id(1)
    start, tokens = tl.load(starts + row).to(tl.int32), tl.load(lengths + row).to(tl.int32)
    if (length + tokens <= ABOVE) | (length + tokens > KEYS):
        return
    column, channel = tl.arange(0, KEYS), tl.arange(0, dim)
    keys, values = load_keys(
        key, value, prefix_key, prefix_value, views, seeds, prefix_dropout, row, head, start, tokens, column, channel,
        heads, dim, length, by_view, drops_prefix,
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
    store_keys(
        d_key, d_value, d_prefix_key, d_prefix_value, d_keys, d_values, seeds, prefix_dropout,
        row, head, start, tokens, column, channel, with_shares, heads, dim, length, drops_prefix,
    )  # fmt: skip
