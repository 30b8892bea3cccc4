"""Fuses dropout, residual sum and layer norm at the end of a layer into one operation.

Where they follow each other is found in a model's first forward, for any architecture. From then on dropout and sum are
deferred until the layer norm, and so is the bias of the linear layer before them, whose gradient the fused operation
computes as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug.kernels.layer_norm import dropped_norm, layer_norm
from diffaug.kernels.linear import LinearLayers

SUMS = (torch.add, Tensor.add)
_SHAPE = Tensor.shape.__get__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class DeferredSum:
    """Bias, dropout and sum that are not computed yet. It is not a tensor: any other operation on it is an error.

    Sums go through `torch.add`, so that all function modes see them; `ResidualFusion.add` handles them.
    """

    states: Tensor
    bias: Tensor | None = None
    dropout: float = 0.0
    seed: Tensor | None = None
    past: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return self.states.shape

    def __add__(self, past: Tensor) -> DeferredSum:
        found: DeferredSum = torch.add(self, past)  # type: ignore[call-overload]
        return found

    __radd__ = __add__

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return NotImplemented


@dataclass
class _Traced:
    """A tensor of the first forward: the result of a linear layer, of dropout, or of a sum.

    Attributes:
        tensor: a weak reference, since a strong one would keep its memory until the end of the forward.
        made_by: `linear`, `dropout` or `add`.
        number: the index of that call.
        parts: of a sum, the results of dropout in it; of dropout, the result of a linear layer it was applied to.
        uses: the functions that read it.
        reader: of a sum, the first call of a linear layer that reads the residual.
    """

    tensor: ref[Tensor]
    made_by: Any
    number: int = -1
    parts: list[_Traced] = field(default_factory=list)
    uses: list[Any] = field(default_factory=list)
    reader: int = -1


class ResidualFusion:
    """Replaces `linear`, `dropout` and `layer_norm` of torch in a model that runs repeatedly.

    Args:
        layers: computes the linear layers.
    """

    def __init__(self, layers: LinearLayers) -> None:
        self._layers = layers
        self._traced: list[_Traced] | None = []  # in the first forward only
        self._read: list[
            tuple[ref[Tensor], int]
        ] = []  # in the first forward only: the inputs of calls of linear layers
        self._deferred: dict[int, int] = {}  # deferred calls of dropout, and the index of their seed
        self._biases: set[int] = set()  # calls of linear layers whose bias is deferred
        self._passing: set[int] = set()  # calls of linear layers whose input is a residual of a deferred sum
        self._seeds: Tensor | None = None
        self._calls: Counter[Any] = Counter()

    def linear(self, states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        """The same as `torch.nn.functional.linear`, or with its bias deferred."""
        number = self._number(F.linear)
        if number in self._biases:
            return DeferredSum(self._layers(states, weight, passes=number in self._passing), bias)
        found = self._layers(states, weight, bias, number in self._passing)
        if self._traced is not None:
            self._read.append((ref(states), number))
            if bias is not None:
                self._traced.append(_Traced(ref(found), F.linear, number))
        return found

    def dropout(self, states: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        """The same as `torch.nn.functional.dropout`, or deferred."""
        number = self._number(F.dropout)
        if number in self._deferred:
            deferred = states if isinstance(states, DeferredSum) else DeferredSum(states)
            return replace(deferred, dropout=p if training else 0.0, seed=self._seed(number, deferred.states.device))
        found = F.dropout(states, p, training, inplace)
        if self._traced is not None and training and 0 < p < 1 and not inplace:
            before = [each for each in self._traced if each.made_by is F.linear and each.tensor() is states]
            self._traced.append(_Traced(ref(found), F.dropout, number, before))
        return found

    def add(self, first: Any, second: Any, **others: Any) -> Any:
        """The same as `torch.add`, also for a deferred sum."""
        for deferred, past in ((first, second), (second, first)):
            if isinstance(deferred, DeferredSum):
                return replace(deferred, past=self._layers.past(past))
        return torch.add(first, second, **others)

    def layer_norm(
        self,
        states: Tensor | DeferredSum,
        shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """The same as `torch.nn.functional.layer_norm`, also for a deferred sum."""
        if isinstance(states, DeferredSum):
            assert states.seed is not None
            assert states.past is not None
            assert weight is not None
            assert bias is not None
            return dropped_norm(states.states, states.bias, states.past, states.dropout, states.seed, weight, bias, eps)
        return layer_norm(states, shape, weight, bias, eps)

    def trace(self, function: Callable[..., Any], args: Sequence[Any], others: Mapping[str, Any], found: Any) -> None:
        """Record a call of a torch function, and its result, in the first forward."""
        if self._traced is None or function == _SHAPE:  # reads no values
            return
        known = {id(traced.tensor()): traced for traced in self._traced}
        known.pop(id(None), None)  # tensors that have been freed
        for used in _members([*args, *others.values()]):
            if id(used) in known:
                known[id(used)].uses.append(function)
        if function in SUMS and len(args) == 2 and not others:
            parts = [known[id(part)] for part in args if id(part) in known]
            dropped = [part for part in parts if part.made_by is F.dropout]
            if dropped and all(isinstance(part, Tensor) and part.shape == found.shape for part in args):
                readers = [number for states, number in self._read if any(states() is part for part in args)]
                self._traced.append(_Traced(ref(found), torch.add, parts=dropped, reader=min(readers, default=-1)))
        if function is F.layer_norm and id(args[0]) in known and not _is_simple(args[1:], **others):
            known[id(args[0])].uses.append(None)

    def end_forward(self) -> None:
        """Drop the seeds; after the first forward, decide what is deferred from now on."""
        self._seeds = None
        self._calls.clear()
        for traced in self._traced or []:
            alone = [part for part in traced.parts if len(part.uses) == 1]
            if traced.made_by is torch.add and traced.uses == [F.layer_norm] and alone:
                self._deferred[alone[0].number] = len(self._deferred)
                self._biases |= {before.number for before in alone[0].parts if len(before.uses) == 1}
                self._passing |= {traced.reader}
        self._traced = None
        self._read.clear()

    def _number(self, function: Any) -> int:
        """The index of the current call. Calls are identified by their order, since layers may share their weights."""
        self._calls[function] += 1
        return self._calls[function] - 1

    def _seed(self, number: int, device: torch.device) -> Tensor:
        """Drawn on the device, so that a CUDA graph draws new seeds in every replay; all seeds in one call."""
        if self._seeds is None:
            self._seeds = torch.randint(2**31, (len(self._deferred),), device=device)
        return self._seeds[self._deferred[number]]


def _is_simple(args: Sequence[Any], weight: Any = None, bias: Any = None, eps: float = 1e-5) -> bool:
    """Whether a layer norm is over the last dimension, with weight and bias."""
    shape, weight, bias, *_ = [*args, *[weight, bias][len(args) - 1 :]]
    return len(shape) == 1 and weight is not None and bias is not None


def _members(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _members(value)
        else:
            yield value
