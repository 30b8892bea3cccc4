"""Operations of our own, where those of torch are slow for short sentences.

- `attention`: on a GPU, rows end to end with a prefix before each;
- `sums`: on a GPU, gradients that are sums over all tokens;
- `dropout`: on a CPU.

The first two need Triton, which comes with torch's builds for GPUs, and are imported only where they are used. All have
a plain way beside them: a model computes the same without.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

# All keys of a row are held by one program: more do not fit.
LONGEST = 128
HALF = (torch.bfloat16, torch.float16)


@cache
def have_triton() -> bool:
    """Whether the kernels' compiler is there."""
    return find_spec("triton") is not None


def attention_fits(query: Tensor, longest: int) -> bool:
    """Whether `kernels.attention` takes queries (.., head_dim) of rows with that many keys at most, prefix counted."""
    return (
        query.is_cuda
        and query.dtype in HALF
        and query.shape[-1] in (16, 32, 64, 128)
        and longest <= LONGEST
        and have_triton()
    )
