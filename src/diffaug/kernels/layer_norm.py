"""Layer norm for batches of few tokens, alone or fused with the dropout and the residual sum before it.

torch's kernels for the gradients of weight and bias, which are sums over all tokens, leave most of a GPU idle with ten
thousand tokens instead of a million. And where a layer ends in dropout, residual sum and layer norm, most of the time
is spent on writing and reading the intermediate results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from diffaug.kernels.random import chance

# The maximum number of programs that share the rows of a layer norm's gradient, and the values that all of them hold at
# a time: what fits into the registers of a large GPU (640 rows of 1024, five per multiprocessor). More programs would
# run in a second wave, and each has partial sums to be added up.
_PROGRAMS = 1024
_NUMBERS = 5 << 17
# Columns of the partial sums per program: few, so that the whole GPU takes part.
_COLUMNS = 16


def layer_norm(
    states: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The same as `torch.nn.functional.layer_norm`; faster if weight and bias get gradients."""
    if weight is None or bias is None or not weight.requires_grad or len(shape) > 1:
        return F.layer_norm(states, shape, weight, bias, eps)
    found: Tensor = _LayerNorm.apply(states, weight, bias, eps)
    return found


def dropped_norm(
    states: Tensor,
    offset: Tensor | None,
    past: Tensor,
    dropout: float,
    seed: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
) -> Tensor:
    """The layer norm of the sum of ``states`` + ``offset``, after dropout, and ``past``.

    Args:
        states, past: (.., width)
        offset: (width,), usually the bias of the linear layer before; its gradient is computed here.
        dropout: on ``states`` + ``offset``.
        seed: (), the seed of the dropout, on the device.
        weight, bias: (width,)
        eps: of the layer norm.
    """
    found: Tensor = _DroppedNorm.apply(states, offset, past, dropout, seed, weight, bias, eps)
    return found


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        states = states.contiguous()  # the kernel assumes contiguous rows
        found, mean, scale = torch.native_layer_norm(states, weight.shape, weight, bias, eps)
        ctx.save_for_backward(states, weight, mean, scale)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, mean, scale = ctx.saved_tensors
        d_states, _, sums = _gradients(gradients[0], states, weight, mean, scale, 0.0, None, True, False)
        return d_states, *sums, None


class _DroppedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        offset: Tensor | None,
        past: Tensor,
        dropout: float,
        seed: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
    ) -> Tensor:
        states, past = states.contiguous(), past.contiguous()
        sums, found = torch.empty_like(states), torch.empty_like(states)
        rows, width = states.numel() // states.shape[-1], states.shape[-1]
        mean, scale = torch.empty(2, rows, device=states.device)
        _dropped_forward[(rows,)](
            states, states if offset is None else offset, past, seed, weight, bias, sums, found, mean, scale,
            width, eps, dropout, has_offset=offset is not None, WIDTH=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(sums, weight, mean, scale, seed)
        ctx.dropout = dropout
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sums, weight, mean, scale, seed = ctx.saved_tensors
        _, of_offset, _, _, _, of_weight, of_bias, _ = ctx.needs_input_grad
        learns = of_weight or of_bias
        d_past, d_states, found = _gradients(
            gradients[0], sums, weight, mean, scale, ctx.dropout, seed, learns, of_offset
        )
        d_weight, d_bias = found[:2] if learns else (None, None)
        return d_states, found[-1] if of_offset else None, d_past, None, None, d_weight, d_bias, None


def _gradients(
    gradient: Tensor,
    states: Tensor,
    weight: Tensor,
    mean: Tensor,
    scale: Tensor,
    dropout: float,
    seed: Tensor | None,
    learns: bool,
    offset_learns: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The gradients of the states, of the same before dropout (None without a seed), and sums over all tokens.

    The states lie end to end. The sums are weight's and bias's gradients, if they learn, then the offset's, if that
    does: (sums, width).
    """
    rows, width = states.numel() // states.shape[-1], states.shape[-1]
    padded = triton.next_power_of_2(width)
    d_states = torch.empty_like(states)
    d_before = None if seed is None else torch.empty_like(states)
    sums = 2 * learns + offset_learns
    # If nothing is summed, one program per row is fastest.
    programs = min(_PROGRAMS, _NUMBERS // padded) if sums else rows
    shares = torch.empty(sums, programs, width, device=states.device)
    _norm_backward[(programs,)](
        states, gradient.contiguous(), weight, mean, scale, mean if seed is None else seed,
        d_states, d_states if d_before is None else d_before, shares if sums else mean, rows, width, dropout,
        learns=learns, offset_learns=offset_learns, drops=seed is not None, WIDTH=padded, num_warps=4,
    )  # fmt: skip
    return d_states, d_before, _summed(shares, weight.dtype) if sums else shares


def _summed(shares: Tensor, dtype: torch.dtype) -> Tensor:
    """(sums, width) in another dtype, from (sums, programs, width). torch would leave nearly all of a GPU idle here.

    Their order is always the same, and so is the result.
    """
    sums, programs, width = shares.shape
    found = shares.new_empty(sums, width, dtype=dtype)
    _sum[(triton.cdiv(width, _COLUMNS), sums)](
        shares, found, programs, width, PROGRAMS=triton.next_power_of_2(programs), COLUMNS=_COLUMNS, num_warps=8
    )  # fmt: skip
    return found


@triton.jit
def _kept(seed, row, column, dropout, WIDTH: tl.constexpr):
    """The dropout factors of a row."""
    return tl.where(chance(seed, row * WIDTH + column) < dropout, 0.0, 1.0 / (1.0 - dropout))


@triton.jit
def _dropped_forward(
    states, offset, past, seeds, weight, bias, sums, out, means, scales, width, eps, dropout,
    has_offset: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    row, column = tl.program_id(0), tl.arange(0, WIDTH)
    real = column < width
    at = row * width + column
    kept = _kept(tl.load(seeds), row, column, dropout, WIDTH)
    total = tl.load(states + at, mask=real, other=0.0).to(tl.float32)
    if has_offset:
        total += tl.load(offset + column, mask=real, other=0.0).to(tl.float32)
    total *= kept
    total += tl.load(past + at, mask=real, other=0.0).to(tl.float32)
    # Rounded as the backward pass will read it.
    rounded = total.to(sums.dtype.element_ty)
    tl.store(sums + at, rounded, mask=real)
    total = rounded.to(tl.float32)
    mean = tl.sum(total, 0) / width
    centred = tl.where(real, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    weights = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    found = centred * scale * weights + tl.load(bias + column, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, found.to(out.dtype.element_ty), mask=real)


@triton.jit
def _norm_backward(
    states, gradients, weight, means, scales, seeds, d_states, d_before, shares, rows, width, dropout,
    learns: tl.constexpr, offset_learns: tl.constexpr, drops: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Each program takes every n-th row, and writes its own partial sums."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, WIDTH)
    real = column < width
    weights = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    sum_weight, sum_bias = tl.zeros([WIDTH], tl.float32), tl.zeros([WIDTH], tl.float32)
    sum_offset = tl.zeros([WIDTH], tl.float32)
    for row in range(program, rows, programs):
        at = row * width + column
        state = tl.load(states + at, mask=real, other=0.0).to(tl.float32)
        gradient = tl.load(gradients + at, mask=real, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        normed = tl.where(real, (state - tl.load(means + row)) * scale, 0.0)
        weighted = gradient * weights
        along = tl.sum(normed * weighted, 0) / width
        mean = tl.sum(weighted, 0) / width
        found = (weighted - normed * along - mean) * scale
        tl.store(d_states + at, found.to(d_states.dtype.element_ty), mask=real)
        if drops:
            found *= _kept(tl.load(seeds), row, column, dropout, WIDTH)
            tl.store(d_before + at, found.to(d_before.dtype.element_ty), mask=real)
        if offset_learns:
            sum_offset += found
        if learns:
            sum_weight += gradient * normed
            sum_bias += gradient
    share = shares + program * width + column
    if learns:
        tl.store(share, sum_weight, mask=real)
        tl.store(share + programs * width, sum_bias, mask=real)
        share += 2 * programs * width
    if offset_learns:
        tl.store(share, sum_offset, mask=real)


@triton.jit
def _sum(shares, out, programs, width, PROGRAMS: tl.constexpr, COLUMNS: tl.constexpr):
    """Each program takes some columns and loads all of their partial sums at once, to hide the memory latency."""
    which, share = tl.program_id(1), tl.arange(0, PROGRAMS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < width
    at = (which * programs + share[:, None]) * width + column[None, :]
    found = tl.load(shares + at, mask=(share < programs)[:, None] & real[None, :], other=0.0)
    tl.store(out + which * width + column, tl.sum(found, 0).to(out.dtype.element_ty), mask=real)
