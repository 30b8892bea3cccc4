"""Dropout on a CPU: sixteen random bits decide about a number.

torch draws a random number for each, one after the other, which took an eighth of the time of a training step.
`QuickDropout` makes four decisions of every draw, for whatever model runs inside of it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug.kernels.override import Replacing

_LEVELS = 1 << 16


def dropout(states: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """As `torch.nn.functional.dropout`; never in place."""
    if not training or p == 0.0:
        return states
    dropped: Tensor = _Dropout.apply(states, p)
    return dropped


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As `torch.nn.functional.scaled_dot_product_attention`, which with dropout computes on a CPU just like this."""
    if dropout_p == 0.0 or is_causal or enable_gqa:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * scale) @ key.transpose(-2, -1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return dropout(scores.softmax(-1), dropout_p) @ value


class QuickDropout(Replacing):
    """Inside of this context, dropout of float32 tensors on a CPU is quick, that of attention weights included.

    It follows torch's random state like any other dropout. Probabilities are rounded to the 65,536th part.
    """

    def __init__(self) -> None:
        super().__init__({F.dropout: dropout, F.scaled_dot_product_attention: attention})

    def applies(self, first: Tensor) -> bool:
        return first.device.type == "cpu" and first.dtype == torch.float32


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, p: float) -> Tensor:
        kept = _decisions(states.numel(), round(p * _LEVELS)).view(states.shape)
        ctx.save_for_backward(kept)
        ctx.scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
        return torch.where(kept, states * ctx.scale, 0.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return torch.where(kept, gradients[0] * ctx.scale, 0.0), None


def _decisions(count: int, dropped: int) -> Tensor:
    """(count,): whether a number is kept, where ``dropped`` of 65,536 are not."""
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:count] >= dropped - _LEVELS // 2
