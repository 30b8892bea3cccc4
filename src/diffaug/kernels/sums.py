"""Gradients that are sums over all tokens of a batch: of biases, and of a layer norm's weight and bias.

torch adds them up in kernels that leave most of a GPU idle when there are ten thousand tokens and not a million.
`QuickSums` puts faster ones in their place, for whatever model runs inside of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from diffaug.kernels import HALF
from diffaug.kernels.replacing import Replacing

# Programs that share the rows of a layer norm's gradient.
_PROGRAMS = 1024


def _linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if bias is None or not bias.requires_grad:
        return F.linear(states, weight, bias)
    return _Linear.apply(states, weight, bias)


def _layer_norm(
    states: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if weight is None or bias is None or not weight.requires_grad or len(shape) > 1:
        return F.layer_norm(states, shape, weight, bias, eps)
    return _LayerNorm.apply(states, weight, bias, eps)


class QuickSums(Replacing):
    """Inside of this context, 16-bit linear layers and layer norms on a GPU have quick gradients."""

    functions: ClassVar = {F.linear: _linear, F.layer_norm: _layer_norm}

    def applies(self, first: Tensor) -> bool:
        return first.is_cuda and first.dtype in HALF


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(states, weight)
        return F.linear(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        gradient = gradients[0].flatten(0, -2)  # (tokens, outputs)
        d_states = (gradient @ weight).view_as(states) if ctx.needs_input_grad[0] else None
        d_weight = gradient.t() @ states.flatten(0, -2) if ctx.needs_input_grad[1] else None
        # A product with ones: the matrix units do it sooner than a sum. They are made anew every time: what a recorded
        # graph makes lies in memory that other recordings write to, and must not outlive its own replay.
        return d_states, d_weight, (gradient.new_ones(1, len(gradient)) @ gradient).squeeze(0)


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
