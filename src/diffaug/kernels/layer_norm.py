"""Layer norms whose gradients of weight and bias, sums over all tokens of a batch, are computed quickly.

torch adds them up in kernels that leave most of a GPU idle when there are ten thousand tokens and not a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

# Programs that share the rows of a layer norm's gradient.
_PROGRAMS = 1024


def layer_norm(
    states: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """As `torch.nn.functional.layer_norm`; quicker where weight and bias learn."""
    if weight is None or bias is None or not weight.requires_grad or len(shape) > 1:
        return F.layer_norm(states, shape, weight, bias, eps)
    found: Tensor = _LayerNorm.apply(states, weight, bias, eps)
    return found


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        states = states.contiguous()  # the kernel counts through rows that lie end to end
        found, mean, deviation = torch.native_layer_norm(states, weight.shape, weight, bias, eps)
        ctx.save_for_backward(states, weight, mean, deviation)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, mean, scale = ctx.saved_tensors
        rows, width = states.numel() // states.shape[-1], states.shape[-1]
        d_states = torch.empty_like(states)
        shares = torch.empty(2, _PROGRAMS, width, device=states.device)
        _norm_backward[(_PROGRAMS,)](
            states, gradients[0].contiguous(), weight, mean, scale, d_states, shares[0], shares[1],
            rows, width, WIDTH=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        d_weight, d_bias = shares.sum(1).to(weight.dtype)
        return d_states, d_weight, d_bias, None


@triton.jit
def _norm_backward(
    states, gradients, weight, means, scales, d_states, d_weight, d_bias, rows, width, WIDTH: tl.constexpr
):  # fmt: skip
    """Each program takes every so many-th row, and keeps its share of the sums to itself."""
    program = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    real = column < width
    weights = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    sum_weight, sum_bias = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        at = row * width + column
        state = tl.load(states + at, mask=real, other=0.0).to(tl.float32)
        gradient = tl.load(gradients + at, mask=real, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        normed = tl.where(real, (state - tl.load(means + row)) * scale, 0.0)
        weighted = gradient * weights
        along = tl.sum(normed * weighted, 0) / width
        mean = tl.sum(weighted, 0) / width
        tl.store(d_states + at, ((weighted - normed * along - mean) * scale).to(d_states.dtype.element_ty), mask=real)
        sum_weight += gradient * normed
        sum_bias += gradient
    tl.store(d_weight + program * width + column, sum_weight, mask=real)
    tl.store(d_bias + program * width + column, sum_bias, mask=real)
