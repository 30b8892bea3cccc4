"""Quick gradients on a GPU, for whatever model runs inside of a context."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from diffaug.kernels import HALF
from diffaug.kernels.layer_norm import layer_norm
from diffaug.kernels.linear import LinearLayers
from diffaug.kernels.replacing import Replacing


class QuickGradients(Replacing):
    """Inside of this context, 16-bit linear layers and layer norms on a GPU have quick gradients.

    For one model, each forward of which is a `with` block of its own.
    """

    def __init__(self) -> None:
        self._linear = LinearLayers()
        super().__init__({F.linear: self._linear, F.layer_norm: layer_norm})

    def applies(self, first: Tensor) -> bool:
        return first.is_cuda and first.dtype in HALF

    def __exit__(self, *error: Any) -> None:
        self._linear.end_forward()
        super().__exit__(*error)
