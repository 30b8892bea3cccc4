"""Numbers with fewer bits: autocast, and loss scaling where fp16 needs it.

Plain torch, not accelerate's switch: that one is fixed for the life of a process, and a notebook may train twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diffaug.errors import DiffaugError

# What torch's GradScaler starts with.
_LOSS_SCALE = 2.0**16
_TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """How a run computes.

    Args:
        wanted: auto, fp32, bf16 or fp16; auto is bf16 on a GPU that has it, and fp32 elsewhere.
        device: where it computes.
    """

    def __init__(self, wanted: str, device: torch.device) -> None:
        if wanted == "auto":
            # Older GPUs imitate bf16, which is slower than fp32, and our kernels' compiler does not know it there.
            has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
            wanted = "bf16" if has_it else "fp32"
        if wanted == "fp16" and device.type != "cuda":
            raise DiffaugError("loop.precision=fp16 needs a GPU; use bf16 or fp32 here")
        self._type = _TYPES[wanted]
        self._device = device
        self._scaler = torch.amp.GradScaler(device.type, enabled=wanted == "fp16")

    def autocast(self) -> AbstractContextManager[Any]:
        """The context for a forward pass."""
        return torch.autocast(self._device.type, dtype=self._type, enabled=self._type is not None)

    @property
    def half(self) -> torch.dtype | None:
        """The 16-bit type of a forward pass; None in 32 bits."""
        return self._type

    def backward(self, loss: Tensor) -> None:
        """Gradients, scaled if need be."""
        self._scaler.scale(loss).backward()

    def step(self, optimizer: Optimizer, parameters: Iterable[nn.Parameter], clip: float | None) -> None:
        """Unscale, clip, step, and drop the gradients; a step with overflown ones is left out.

        Args:
            optimizer: its parameters' gradients are unscaled.
            parameters: those whose gradients are clipped together. Others than the optimiser's keep the loss scale, as
                in DiffAug's release; where the loss is not scaled, they get the scale that fp16 starts with.
            clip: the largest norm of these gradients.
        """
        parameters = list(parameters)
        self._scaler.unscale_(optimizer)
        if not self._scaler.is_enabled():
            stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for parameter in parameters:
                if id(parameter) not in stepped and parameter.grad is not None:
                    parameter.grad.mul_(_LOSS_SCALE)
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        self._scaler.step(optimizer)
        self._scaler.update()
        for parameter in parameters:
            parameter.grad = None

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know of the scaling."""
        return self._scaler.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        if state:
            self._scaler.load_state_dict(state)
