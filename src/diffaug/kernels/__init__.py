"""Operations of our own, where those of torch are slow for short sentences.

- `attention`: on a GPU, rows end to end with a prefix before each, by `short_rows` and `long_rows`;
- `linear`, `layer_norm`: on a GPU, gradients; `residuals`: a layer norm together with dropout and sum before it;
  `quick` puts them in the place of torch's;
- `casts`: on a GPU, copies between 16 bits and 32;
- `dropout`: on a CPU.

Those for a GPU need Triton, which comes with torch's builds for GPUs, and are imported only where they are used. All
have a plain way beside them: a model computes the same without.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


@cache
def have_triton() -> bool:
    """Whether the kernels' compiler is there, and a GPU that it compiles for: not AMD's, nor one before Ampere."""
    return (
        find_spec("triton") is not None
        and torch.version.hip is None
        and torch.cuda.is_available()
        and torch.cuda.get_device_capability() >= (8, 0)
    )


def attention_fits(query: Tensor) -> bool:
    """Whether `kernels.attention` takes queries (.., head_dim)."""
    return query.is_cuda and query.dtype in HALF and query.shape[-1] in (16, 32, 64, 128) and have_triton()
