"""Computing in 16 bits throughout: copies of the weights, cast once a step, in place of casts inside of every layer.

Autocast keeps weights and the sums between layers in 32 bits and casts back and forth; on a GPU, short sentences make
that a good part of a step. Here the whole encoder runs in 16 bits; the weights that the optimiser changes, and their
gradients, stay in 32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from diffaug import kernels


class Halved:
    """Calls a function of a module's with 16-bit copies of the weights.

    Args:
        module: owner of the weights, which must stay the same tensors.
        function: computes with the module.
        learning: the parameters that get gradients; of the others, copies are made once.
        dtype: bfloat16 or float16.
    """

    def __init__(
        self,
        module: nn.Module,
        function: Callable[[Any], Tensor],
        learning: Mapping[str, nn.Parameter],
        dtype: torch.dtype,
    ) -> None:
        self._bound = _Bound(module, function)
        chosen = {id(parameter) for parameter in learning.values()}
        self._copies: dict[str, Tensor] = {}
        self._learning: list[tuple[nn.Parameter, Tensor]] = []
        for name, parameter in self._bound.named_parameters():
            copy = parameter.detach().to(dtype)
            self._copies[name] = copy
            if id(parameter) in chosen:
                self._learning.append((parameter, copy.requires_grad_()))
        sizes = [parameter.numel() for parameter, _ in self._learning]
        # One tensor for all gradients, of which the parameters' are parts: they are added in one go.
        self._gradients = torch.zeros(sum(sizes), device=self._learning[0][0].device)
        for (parameter, _), part in zip(self._learning, self._gradients.split(sizes), strict=True):
            if parameter.grad is not None:
                part.copy_(parameter.grad.flatten())
            parameter.grad = part.view_as(parameter)

    def __call__(self, argument: Any) -> Tensor:
        """The function's result."""
        with _quick_gradients():
            found: Tensor = functional_call(self._bound, self._copies, (argument,))
        return found

    @torch.no_grad()
    def refresh(self) -> None:
        """After the weights have changed."""
        for parameter, copy in self._learning:
            copy.copy_(parameter)

    def backward(self, vectors: Tensor, gradient: Tensor) -> None:
        """Add the gradients of all that learns, given that of the function's result."""
        copies = [copy for _, copy in self._learning]
        found = torch.autograd.grad(vectors, copies, gradient, materialize_grads=True)
        with torch.no_grad():
            self._gradients.add_(torch.cat([part.flatten() for part in found]))


def _quick_gradients() -> AbstractContextManager[Any]:
    if not (torch.cuda.is_available() and kernels.have_triton()):
        return nullcontext()
    from diffaug.kernels.sums import QuickSums

    return QuickSums()


class _Bound(nn.Module):
    """A function as a module's forward, for `functional_call`."""

    def __init__(self, module: nn.Module, function: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.module = module
        self._function = function

    def forward(self, argument: Any) -> Tensor:
        return self._function(argument)
