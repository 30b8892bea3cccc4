"""Copies between 16 and 32 bits.

From 16 to 32 bits, torch's copy reads one value at a time. The other way it is fast, but launches one kernel per
parameter, and there are hundreds of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
# Bytes per vectorised load or store, which must be aligned to them.
_WIDE = 16


def copy_to_wider(target: Tensor, source: Tensor) -> None:
    """The same as ``target.copy_(source)``; both must be contiguous and on a GPU."""
    count = source.numel()
    _copy[(triton.cdiv(count, _BLOCK),)](source, target, count, BLOCK=_BLOCK, num_warps=8)


class CastingCopies:
    """Casts many tensors into others in one kernel, again and again. The tensors must keep their addresses.

    Args:
        pairs: of target and source, contiguous; all targets have one dtype, and so have all sources.
    """

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._pairs = list(pairs)  # keeps the tensors alive, whose addresses are used below
        parts = [part for target, source in self._pairs for part in _parts(target, source)]
        self._parts = torch.tensor(parts, device=pairs[0][0].device)

    def __call__(self) -> None:
        """Copy all again."""
        target, source = self._pairs[0]
        _copy_parts[(len(self._parts),)](self._parts, target, source, BLOCK=_BLOCK, num_warps=8)


def _parts(target: Tensor, source: Tensor) -> list[tuple[int, int, int, bool]]:
    """What each program copies: addresses, number of values, and whether it is a full, aligned block."""
    parts = []
    for start in range(0, source.numel(), _BLOCK):
        count = min(_BLOCK, source.numel() - start)
        to = target.data_ptr() + start * target.element_size()
        at = source.data_ptr() + start * source.element_size()
        parts.append((to, at, count, count == _BLOCK and to % _WIDE == 0 and at % _WIDE == 0))
    return parts


@triton.jit
def _copy(source, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < count
    tl.store(target + at, tl.load(source + at, mask=real).to(target.dtype.element_ty), mask=real)


@triton.jit
def _copy_parts(parts, any_target, any_source, BLOCK: tl.constexpr):
    """``any_target`` and ``any_source`` are passed for their dtypes."""
    part = parts + tl.program_id(0) * 4
    target = tl.load(part).to(any_target.dtype)
    source = tl.load(part + 1).to(any_source.dtype)
    at = tl.arange(0, BLOCK)
    if tl.load(part + 3) != 0:
        target, source = tl.multiple_of(target, 16), tl.multiple_of(source, 16)
        tl.store(target + at, tl.load(source + at).to(any_target.dtype.element_ty))
    else:
        real = at < tl.load(part + 2)
        tl.store(target + at, tl.load(source + at, mask=real).to(any_target.dtype.element_ty), mask=real)
