"""Operations that are faster than torch's for short sentences.

- `attention`: on a GPU, packed sequences with a prefix before each (`short_attention` and `long_attention`);
- `linear`, `layer_norm`: on a GPU, faster gradients; `residual_fusion`: layer norm with the dropout and the sum before
  it; `fused_operations` replaces torch's functions by them;
- `casts`: on a GPU, copies between 16 and 32 bits;
- `dropout`, `onednn`: on a CPU.

Those for a GPU need Triton, which torch's GPU builds include, and are imported only where they are used. Each has a
reference in plain torch: a model computes the same without them.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


@cache
def have_triton() -> bool:
    """Whether Triton is installed and there is a GPU that our kernels support: NVIDIA, Ampere or newer."""
    return (
        find_spec("triton") is not None
        and torch.version.hip is None
        and torch.cuda.is_available()
        and torch.cuda.get_device_capability() >= (8, 0)
    )


def supports_attention(query: Tensor) -> bool:
    """Whether `kernels.attention` supports queries (.., head_dim)."""
    return query.is_cuda and query.dtype in HALF and query.shape[-1] in (16, 32, 64, 128) and have_triton()
