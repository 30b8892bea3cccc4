"""Without padding on a CPU: rows of similar length go through the encoder together.

A GPU is kept busy by one large batch, padding or not. A CPU pays for every padded token, and has nothing to gain from
batches that do not fit its cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffaug.methods.base import Represent
from diffaug.models.rows import Rows

# Tokens that go through the encoder at a time.
_BUDGET = 2048


def by_length(represent: Represent) -> Represent:
    """The same vectors and gradients, computed in parts of rows of similar length."""

    def represent_in_parts(rows: Rows) -> Tensor:
        if rows.attention_mask is None:
            return represent(rows)
        lengths = rows.attention_mask.sum(1)
        order = torch.argsort(lengths, stable=True)
        parts, start = [], 0
        while start < len(order):
            # Sorted by length: a row more widens the part to that row's length.
            fits = (torch.arange(1, len(order) - start + 1) * lengths[order[start:]]) <= _BUDGET
            stop = start + max(1, int(fits.sum()))
            parts.append(represent(rows.take(order[start:stop])))
            start = stop
        return torch.cat(parts)[torch.argsort(order)]

    return represent_in_parts
