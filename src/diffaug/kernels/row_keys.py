"""Keys and values of a row and head, wherever they are in memory: those of the prefix, then the row's own.

``column`` counts them through. Gradients of queries, keys and values lie side by side (`kernels.attention`).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_keys(
    key, value, prefix_key, prefix_value, views, row, head, start, tokens, column, channel,
    heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr, by_view: tl.constexpr,
):  # fmt: skip
    """Keys and values (columns, dim); zero behind the last."""
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
def store_keys(
    d_key, d_value, d_prefix_key, d_prefix_value, d_keys, d_values, row, head, start, tokens, column, channel,
    with_shares: tl.constexpr, heads: tl.constexpr, dim: tl.constexpr, length: tl.constexpr,
):  # fmt: skip
    """Their gradients (columns, dim); those of the prefix, where asked for, as this row's share."""
    d_keys, d_values = d_keys.to(d_key.dtype.element_ty), d_values.to(d_value.dtype.element_ty)
    at = (start + column - length)[:, None] * (3 * heads * dim) + head * dim + channel[None, :]
    own = ((column >= length) & (column < length + tokens))[:, None]
    tl.store(d_key + at, d_keys, mask=own)
    tl.store(d_value + at, d_values, mask=own)
    if with_shares:
        at = ((row * heads + head) * length + column)[:, None] * dim + channel[None, :]
        before = (column < length)[:, None]
        tl.store(d_prefix_key + at, d_keys, mask=before)
        tl.store(d_prefix_value + at, d_values, mask=before)
