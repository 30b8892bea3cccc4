"""Computing in 16 bits throughout: copies of the weights, cast once a step, in place of casts inside of every layer.

Autocast keeps weights and the sums between layers in 32 bits and casts back and forth; on a GPU, short sentences make
that a good part of a step. Here the whole encoder runs in 16 bits; the weights that the optimiser changes, and their
gradients, stay in 32.
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

# Parameters of fewer numbers, biases above all, are cast together, and so are their gradients: by itself each would
# take longer to start than to run. Larger ones go alone: to join them takes as long as to cast them.
_LARGE = 1 << 16


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
        learns = {name: p for name, p in self._bound.named_parameters() if id(p) in chosen}
        small = {name: parameter for name, parameter in learns.items() if parameter.numel() < _LARGE}
        large = [{name: parameter} for name, parameter in learns.items() if name not in small]
        self._groups = [_Group(parameters, dtype) for parameters in [small, *large] if parameters]
        self._copies = {name: p.detach().to(dtype) for name, p in self._bound.named_parameters()}
        for group in self._groups:
            self._copies |= group.copies
        self._quick = _quick_gradients()
        self._refresh_all = _all_at_once([pair for group in self._groups for pair in group.pairs])

    def __call__(self, argument: Any) -> Tensor:
        """The function's result."""
        with self._quick:
            found: Tensor = functional_call(self._bound, self._copies, (argument,))
        return found

    def refresh(self) -> None:
        """After the weights have changed."""
        if self._refresh_all is not None:
            self._refresh_all()
            return
        for group in self._groups:
            group.refresh()

    def backward(self, vectors: Tensor, gradient: Tensor) -> None:
        """Compute the gradients of all that learns, given that of the function's result; in `adding`, as a rule."""
        copies = [copy for group in self._groups for copy in group.copies.values()]
        found = iter(torch.autograd.grad(vectors, copies, gradient, materialize_grads=True))
        for group in self._groups:
            group.write(list(islice(found, len(group.copies))))

    def keep_earlier(self) -> None:
        """Before a `backward` that is not to be added: it writes where the gradients of the last one may lie."""
        for group in self._groups:
            group.keep_earlier()

    @contextmanager
    def adding(self) -> Iterator[None]:
        """What `backward` computes in this context, or a replay of it, is added to the parameters' gradients."""
        self.keep_earlier()
        yield
        for group in self._groups:
            group.add()


class _Group:
    """Parameters that are cast in one go, and whose gradients are cast in one go: all are parts of one tensor.

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
        """Cast anew."""
        self._copy.copy_(_joined(self._parameters))

    @torch.no_grad()
    def write(self, gradients: Sequence[Tensor]) -> None:
        """Cast new gradients, over those of the last time."""
        found = _joined(gradients)
        if found.is_cuda and kernels.have_triton():
            from diffaug.kernels.casts import copy_wider

            copy_wider(self._gradient, found.contiguous())
        else:
            self._gradient.copy_(found)

    def keep_earlier(self) -> None:
        """Those of the last time may be what the parameters have so far, where a step has several parts."""
        for parameter, gradient in self._gradients:
            if parameter.grad is not None and parameter.grad is gradient:
                parameter.grad = gradient.clone()

    def add(self) -> None:
        """Add what was written to the parameters' gradients, which as a rule have none: then it is what they have."""
        for parameter, gradient in self._gradients:
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.add_(gradient)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    flat = [tensor.flatten() for tensor in tensors]
    return torch.cat(flat) if len(flat) > 1 else flat[0]


def _all_at_once(pairs: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None] | None:
    """Casts all parameters, given the copies to write them to; None where no kernel does."""
    fit = (p.is_cuda and p.is_contiguous() and p.dtype == torch.float32 for _, p in pairs)
    if not pairs or not kernels.have_triton() or not all(fit):
        return None
    from diffaug.kernels.casts import Copies

    return Copies(pairs)


def _quick_gradients() -> AbstractContextManager[Any]:
    if not kernels.have_triton():
        return nullcontext()
    from diffaug.kernels.fused import Quick

    return Quick()


class _Bound(nn.Module):
    """A function as a module's forward, for `functional_call`."""

    def __init__(self, module: nn.Module, function: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.module = module
        self._function = function

    def forward(self, argument: Any) -> Tensor:
        return self._function(argument)
