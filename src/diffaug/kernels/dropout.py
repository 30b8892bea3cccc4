"""Faster dropout on a CPU: 16 random bits per value.

torch draws one random number per value, which took an eighth of a training step. `FastDropout` gets four decisions from
each random number, for any model that runs inside of the context.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug.kernels.function_mode import FunctionOverrides

_LEVELS = 1 << 16


def dropout(states: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """The same as `torch.nn.functional.dropout`; never in place."""
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
    """The same as `torch.nn.functional.scaled_dot_product_attention`, which is not fused on a CPU with dropout."""
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


class FastDropout(FunctionOverrides):
    """A context with faster dropout of float32 tensors on a CPU, dropout of attention weights included.

    It uses torch's random state, as any dropout. Probabilities are rounded to a multiple of 1/65536.
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
    """(count,): whether each value is kept; ``dropped`` of 65,536 are not."""
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:count] >= dropped - _LEVELS // 2
