"""Loads and stores of the keys and values of a sequence and head: those of the prefix, then its own.

``column`` counts them. The gradients of queries, keys and values are in one tensor (`kernels.attention`).

Dropout on the prefix is drawn where the prefix is loaded, from a hash of sequence, head, vector and channel: a copy of
the prefix for each sequence, as the reference makes, would take more memory than the rest of a layer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffaug.kernels.random import scrambled


@triton.jit
def _prefix_kept(
    seeds, dropout, row, head, column, channel, heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr
):
    """The dropout factors of the prefix's keys and values, each (columns, dim), from 16 random bits each."""
    seed = scrambled(tl.load(seeds + 1).to(tl.uint32))
    number = ((row * heads + head) * length + column)[:, None] * dim + channel[None, :]
    bits = scrambled(scrambled(number.to(tl.uint32)) ^ seed)
    scale, dropped = 1.0 / (1.0 - dropout), dropout * 65536
    of_keys, of_values = (bits & 0xFFFF).to(tl.float32), (bits >> 16).to(tl.float32)
    return tl.where(of_keys < dropped, 0.0, scale), tl.where(of_values < dropped, 0.0, scale)


@triton.jit
def load_keys(
    key, value, prefix_key, prefix_value, views, seeds, prefix_dropout, row, head, start, tokens, column, channel,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr, drops_prefix: tl.constexpr,
):  # fmt: skip
    """Keys and values (columns, dim); zero after the last."""
    at = (start + column - length)[:, None] * (heads * dim) + head * dim + channel[None, :]
    own = ((column >= length) & (column < length + tokens))[:, None]
    keys, values = tl.load(key + at, mask=own, other=0.0), tl.load(value + at, mask=own, other=0.0)
    if length:
        view = tl.load(views + row) if by_view else 0
        at = ((view * heads + head) * length + column)[:, None] * dim + channel[None, :]
        before = (column < length)[:, None]
        prefix_keys = tl.load(prefix_key + at, mask=before, other=0.0)
        prefix_values = tl.load(prefix_value + at, mask=before, other=0.0)
        if drops_prefix:
            kept_keys, kept_values = _prefix_kept(seeds, prefix_dropout, row, head, column, channel, heads, dim, length)
            prefix_keys = (prefix_keys * kept_keys).to(keys.dtype)
            prefix_values = (prefix_values * kept_values).to(values.dtype)
        keys += prefix_keys
        values += prefix_values
    return keys, values


@triton.jit
def store_keys(
    d_key, d_value, d_prefix_key, d_prefix_value, d_keys, d_values, seeds, prefix_dropout,
    row, head, start, tokens, column, channel,
    with_shares: tl.constexpr, heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr,
    drops_prefix: tl.constexpr,
):  # fmt: skip
    """Their gradients (columns, dim); with ``with_shares``, those of the prefix for this sequence."""
    kind = d_key.dtype.element_ty
    at = (start + column - length)[:, None] * (3 * heads * dim) + head * dim + channel[None, :]
    own = ((column >= length) & (column < length + tokens))[:, None]
    tl.store(d_key + at, d_keys.to(kind), mask=own)
    tl.store(d_value + at, d_values.to(kind), mask=own)
    if with_shares:
        if drops_prefix:
            kept_keys, kept_values = _prefix_kept(seeds, prefix_dropout, row, head, column, channel, heads, dim, length)
            d_keys *= kept_keys
            d_values *= kept_values
        at = ((row * heads + head) * length + column)[:, None] * dim + channel[None, :]
        before = (column < length)[:, None]
        tl.store(d_prefix_key + at, d_keys.to(kind), mask=before)
        tl.store(d_prefix_value + at, d_values.to(kind), mask=before)
