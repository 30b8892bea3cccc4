"""Attention over long sequences: a program has a block of queries and loops over blocks of keys, as in FlashAttention.
The output and the log-sum-exp of each query are saved for the backward pass.

The arguments are those of `kernels.attention`. A launch handles the sequences with more than ``ABOVE`` keys, those of
the prefix included.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffaug.kernels.attention_keys import load_keys, store_keys
from diffaug.kernels.random import chance, scrambled


@triton.jit
def _kept(
    line, column, row, head, seed, dropout, heads: tl.constexpr, drops: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The dropout factors of the weights (BLOCK, BLOCK)."""
    kept = tl.full([BLOCK, BLOCK], 1.0, tl.float32)
    if drops:
        # A seed per sequence and head: a single counter over all weights would exceed 32 bits.
        luck = chance(scrambled((seed + row * heads + head).to(tl.uint32)), (line << 16)[:, None] + column[None, :])
        kept = tl.where(luck < dropout, 0.0, 1.0 / (1.0 - dropout))
    return kept


@triton.jit
def long_forward(
    query, key, value, prefix_key, prefix_value, out, log_sums, starts, lengths, views, seeds,
    scale, dropout, prefix_dropout,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr, drops: tl.constexpr,
    drops_prefix: tl.constexpr, ABOVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per sequence, head and block of queries."""
    row, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, tokens = tl.load(starts + row).to(tl.int32), tl.load(lengths + row).to(tl.int32)
    if (length + tokens <= ABOVE) | (block * BLOCK >= tokens):
        return
    line, channel = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, dim)
    here = (start + line)[:, None] * (heads * dim) + head * dim + channel[None, :]
    queries = tl.load(query + here, mask=(line < tokens)[:, None], other=0.0)
    seed = tl.load(seeds) if drops else 0
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    total, found = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK, dim], tl.float32)
    for first in range(0, length + tokens, BLOCK):
        column = first + tl.arange(0, BLOCK)
        keys, values = load_keys(
            key, value, prefix_key, prefix_value, views, seeds, prefix_dropout, row, head, start, tokens,
            column, channel, heads, dim, length, by_view, drops_prefix,
        )  # fmt: skip
        scores = tl.dot(queries, tl.trans(keys)) * scale
        scores = tl.where((column < length + tokens)[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, shrink = tl.exp(scores - higher[:, None]), tl.exp(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        weights *= _kept(line, column, row, head, seed, dropout, heads, drops, BLOCK)
        found = found * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        highest = higher
    tl.store(out + here, (found / total[:, None]).to(queries.dtype), mask=(line < tokens)[:, None])
    tl.store(log_sums + (start + line) * heads + head, highest + tl.log(total), mask=line < tokens)


@triton.jit
def _load_queries(
    query, out, d_out, log_sums, start, tokens, line, head, channel, heads: tl.constexpr, dim: tl.constexpr
):  # fmt: skip
    """Queries and output gradients (BLOCK, dim), the log-sum-exp, and the sum of gradient times output per query."""
    here = (start + line)[:, None] * (heads * dim) + head * dim + channel[None, :]
    there = (line < tokens)[:, None]
    queries, gradient = tl.load(query + here, mask=there, other=0.0), tl.load(d_out + here, mask=there, other=0.0)
    found = tl.load(out + here, mask=there, other=0.0)
    log_sum = tl.load(log_sums + (start + line) * heads + head, mask=line < tokens, other=0.0)
    return queries, gradient, log_sum, tl.sum(gradient.to(tl.float32) * found.to(tl.float32), 1)


@triton.jit
def _again(
    queries, gradient, log_sum, average, keys, values, line, column, row, head, count, seed, scale, dropout,
    heads: tl.constexpr, drops: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weights after dropout, with the same random numbers, and the gradients of the scores."""
    scores = tl.dot(queries, tl.trans(keys)) * scale
    weights = tl.where((column < count)[None, :], tl.exp(scores - log_sum[:, None]), 0.0)
    kept = _kept(line, column, row, head, seed, dropout, heads, drops, BLOCK)
    d_weights = tl.dot(gradient, tl.trans(values)) * kept
    d_scores = weights * (d_weights - average[:, None]) * scale
    return (weights * kept).to(values.dtype), d_scores.to(values.dtype)


@triton.jit
def long_backward(
    query, key, value, prefix_key, prefix_value, out, log_sums, d_out, d_query, d_key, d_value,
    d_prefix_key, d_prefix_value, starts, lengths, views, seeds, scale, dropout, prefix_dropout,
    with_shares: tl.constexpr,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr, drops: tl.constexpr,
    drops_prefix: tl.constexpr, ABOVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per sequence, head and block: of keys, over all queries; then of queries, over all keys."""
    row, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, tokens = tl.load(starts + row).to(tl.int32), tl.load(lengths + row).to(tl.int32)
    if (length + tokens <= ABOVE) | (block * BLOCK >= length + tokens):
        return
    mine, channel = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, dim)
    seed = tl.load(seeds) if drops else 0

    keys, values = load_keys(
        key, value, prefix_key, prefix_value, views, seeds, prefix_dropout, row, head, start, tokens,
        mine, channel, heads, dim, length, by_view, drops_prefix,
    )  # fmt: skip
    d_keys, d_values = tl.zeros([BLOCK, dim], tl.float32), tl.zeros([BLOCK, dim], tl.float32)
    for first in range(0, tokens, BLOCK):
        line = first + tl.arange(0, BLOCK)
        queries, gradient, log_sum, average = _load_queries(
            query, out, d_out, log_sums, start, tokens, line, head, channel, heads, dim
        )
        weights, d_scores = _again(
            queries, gradient, log_sum, average, keys, values, line, mine, row, head, length + tokens,
            seed, scale, dropout, heads, drops, BLOCK,
        )  # fmt: skip
        d_values += tl.dot(tl.trans(weights), gradient)
        d_keys += tl.dot(tl.trans(d_scores), queries)
    store_keys(
        d_key, d_value, d_prefix_key, d_prefix_value, d_keys, d_values, seeds, prefix_dropout,
        row, head, start, tokens, mine, channel, with_shares, heads, dim, length, drops_prefix,
    )  # fmt: skip

    if block * BLOCK < tokens:
        queries, gradient, log_sum, average = _load_queries(
            query, out, d_out, log_sums, start, tokens, mine, head, channel, heads, dim
        )
        d_queries = tl.zeros([BLOCK, dim], tl.float32)
        for first in range(0, length + tokens, BLOCK):
            column = first + tl.arange(0, BLOCK)
            keys, values = load_keys(
                key, value, prefix_key, prefix_value, views, seeds, prefix_dropout, row, head, start, tokens,
                column, channel, heads, dim, length, by_view, drops_prefix,
            )  # fmt: skip
            _, d_scores = _again(
                queries, gradient, log_sum, average, keys, values, mine, column, row, head, length + tokens,
                seed, scale, dropout, heads, drops, BLOCK,
            )  # fmt: skip
            d_queries += tl.dot(d_scores, keys)
        at = (start + mine)[:, None] * (3 * heads * dim) + head * dim + channel[None, :]
        tl.store(d_query + at, d_queries.to(queries.dtype), mask=(mine < tokens)[:, None])
