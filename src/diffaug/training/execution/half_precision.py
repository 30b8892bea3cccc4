"""16-bit copies of the weights, cast once per step instead of inside of every layer.

Autocast keeps weights and residual sums in 32 bits and casts back and forth; with short sentences that is a large part
of a step on a GPU. Here the whole encoder runs in 16 bits. The weights that the optimiser updates, and their gradients,
stay in 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from diffaug import kernels

# Smaller parameters, mostly biases, are cast together, and so are their gradients: a kernel for each would take longer
# to launch than to run. Larger ones are cast one by one: concatenating them takes as long as casting them.
_LARGE = 1 << 16


class HalfPrecisionCopies:
    """Calls a function of a module with 16-bit copies of its weights.

    Args:
        module: the owner of the weights, which must stay the same tensors.
        function: computes with the module.
        learning: the parameters that get gradients; the others are copied once.
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
        learns = {name: p for name, p in self._bound.named_parameters() if id(p) in chosen}
        small = {name: parameter for name, parameter in learns.items() if parameter.numel() < _LARGE}
        large = [{name: parameter} for name, parameter in learns.items() if name not in small]
        self._groups = [_Group(parameters, dtype) for parameters in [small, *large] if parameters]
        self._copies = {name: p.detach().to(dtype) for name, p in self._bound.named_parameters()}
        for group in self._groups:
            self._copies |= group.copies
        self._fused = _fused_operations()
        self._refresh_all = _one_kernel([pair for group in self._groups for pair in group.pairs])

    def __call__(self, argument: Any) -> Tensor:
        """The function's result."""
        with self._fused:
            result: Tensor = functional_call(self._bound, self._copies, (argument,))
        return result

    def refresh(self) -> None:
        """Copy the weights again, after they have changed."""
        if self._refresh_all is not None:
            self._refresh_all()
            return
        for group in self._groups:
            group.refresh()

    def backward(self, vectors: Tensor, gradient: Tensor) -> None:
        """Compute the gradients of the weights from that of the function's result; usually within `accumulating`."""
        copies = [copy for group in self._groups for copy in group.copies.values()]
        gradients = iter(torch.autograd.grad(vectors, copies, gradient, materialize_grads=True))
        for group in self._groups:
            group.write(list(islice(gradients, len(group.copies))))

    def detach_gradients(self) -> None:
        """Call before a `backward` outside of `accumulating`: it overwrites the buffers of the last gradients."""
        for group in self._groups:
            group.detach_gradients()

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Add what `backward`, or a replay of it, computes in this context to the parameters' gradients."""
        self.detach_gradients()
        yield
        for group in self._groups:
            group.accumulate()


class _Group:
    """Parameters whose copies, and whose gradients, are views of one tensor, so that they are cast together.

    Args:
        parameters: in 32 bits, by name.
        dtype: of the copies.

    Attributes:
        copies: by name.
        pairs: of copy and parameter.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], dtype: torch.dtype) -> None:
        self._parameters = list(parameters.values())
        sizes, device = [parameter.numel() for parameter in self._parameters], self._parameters[0].device
        self._copy = torch.empty(sum(sizes), dtype=dtype, device=device)
        self._gradient = torch.empty(sum(sizes), device=device)
        self.refresh()
        copies, gradients = self._copy.split(sizes), self._gradient.split(sizes)
        self.copies = {
            name: part.view_as(parameter).requires_grad_()
            for (name, parameter), part in zip(parameters.items(), copies, strict=True)
        }
        self.pairs = [(part, p.detach()) for p, part in zip(self._parameters, copies, strict=True)]
        self._gradients = [(p, part.view_as(p)) for p, part in zip(self._parameters, gradients, strict=True)]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights again."""
        self._copy.copy_(_flattened(self._parameters))

    @torch.no_grad()
    def write(self, gradients: Sequence[Tensor]) -> None:
        """Cast new gradients into the buffer, over the last ones."""
        found = _flattened(gradients)
        if found.is_cuda and kernels.have_triton():
            from diffaug.kernels.casts import copy_to_wider

            copy_to_wider(self._gradient, found.contiguous())
        else:
            self._gradient.copy_(found)

    def detach_gradients(self) -> None:
        """Copy gradients that are still the buffer itself, as with several batches per step."""
        for parameter, gradient in self._gradients:
            if parameter.grad is not None and parameter.grad is gradient:
                parameter.grad = gradient.clone()

    def accumulate(self) -> None:
        """Add the buffer to the parameters' gradients; a parameter without a gradient gets the buffer itself."""
        for parameter, gradient in self._gradients:
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.add_(gradient)


def _flattened(tensors: Sequence[Tensor]) -> Tensor:
    flat = [tensor.flatten() for tensor in tensors]
    return torch.cat(flat) if len(flat) > 1 else flat[0]


def _one_kernel(pairs: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None] | None:
    """A function that casts all parameters to their copies in one kernel; None if no kernel can."""
    fit = (p.is_cuda and p.is_contiguous() and p.dtype == torch.float32 for _, p in pairs)
    if not pairs or not kernels.have_triton() or not all(fit):
        return None
    from diffaug.kernels.casts import CastingCopies

    return CastingCopies(pairs)


def _fused_operations() -> AbstractContextManager[Any]:
    if not kernels.have_triton():
        return nullcontext()
    from diffaug.kernels.fused_operations import FusedOperations

    return FusedOperations()


class _Bound(nn.Module):
    """A function as a module's forward, for `functional_call`."""

    def __init__(self, module: nn.Module, function: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.module = module
        self._function = function

    def forward(self, argument: Any) -> Tensor:
        return self._function(argument)
