"""Where kernels are tested: on a GPU, or without one in Triton's interpreter (`make test-kernels`).

Import it before the kernels. Where there is neither, the tests of whoever imports it are skipped.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
DEVICE, DTYPE = ("cpu", torch.float32) if INTERPRETED else ("cuda", torch.bfloat16)


def leaf(*shape: int) -> Tensor:
    """Random numbers that learn."""
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE, requires_grad=True)
