"""Without padding on a CPU: rows are sorted by their length.

A GPU is kept busy by one large batch, padding or not. A CPU pays for every padded token. Where a model takes rows end
to end, only attention is padded, between rows of similar length; elsewhere such rows go through the encoder together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffaug.methods.base import Method, Represent
from diffaug.models.padding import cut
from diffaug.models.rows import Rows

# Tokens that go through the encoder at a time.
_BUDGET = 2048


def end_to_end(method: Method) -> Represent:
    """The same vectors and gradients, of rows that lie end to end: for a method of which `can_pack` says so."""

    def represent_packed(rows: Rows) -> Tensor:
        order = torch.argsort(_lengths(rows), stable=True)
        packed = method.encoder.pack(rows.take(order), fill=False)
        return method.represent(packed)[torch.argsort(order)]  # type: ignore[arg-type]

    return represent_packed


def by_length(represent: Represent) -> Represent:
    """The same vectors and gradients, computed in parts of rows of similar length."""

    def represent_in_parts(rows: Rows) -> Tensor:
        if rows.attention_mask is None:
            return represent(rows)
        lengths, order = torch.sort(_lengths(rows), stable=True)
        parts = [represent(rows.take(order[part])) for part in cut(lengths.tolist(), _BUDGET)]
        return torch.cat(parts)[torch.argsort(order)]

    return represent_in_parts


def _lengths(rows: Rows) -> Tensor:
    mask = torch.ones_like(rows.input_ids) if rows.attention_mask is None else rows.attention_mask
    return mask.sum(1)
