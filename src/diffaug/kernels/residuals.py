"""Where a layer ends in dropout, a sum with what went past it and a layer norm: the three as one operation.

Where that is, is seen in a model's first forward, so that no architecture needs to be known. From then on dropout and
sum are put off until the layer norm asks for them, and with them the bias of a linear layer right before: its gradient
is a sum over what that one operation has in its hands.
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
class Postponed:
    """Bias, dropout, then a sum, that nobody has computed yet. It is no tensor: what else is done with it is an error.

    Sums go through torch's function, so that all contexts that watch those see them; `Residuals.add` answers.
    """

    states: Tensor
    bias: Tensor | None = None
    dropout: float = 0.0
    seed: Tensor | None = None
    past: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return self.states.shape

    def __add__(self, past: Tensor) -> Postponed:
        found: Postponed = torch.add(self, past)  # type: ignore[call-overload]
        return found

    __radd__ = __add__

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return NotImplemented


@dataclass
class _Watched:
    """A tensor of the first forward: the result of a linear layer, of dropout, or a sum.

    Attributes:
        tensor: itself, while it is there: kept, it would take up memory until the forward's end.
        made_by: `linear`, `dropout` or `add`.
        number: which call of that.
        parts: of a sum, the results of dropout; of a result of dropout, that of a linear layer.
        uses: the functions that read it.
        reader: of a sum, which call of a linear layer was the first to read what went past.
    """

    tensor: ref[Tensor]
    made_by: Any
    number: int = -1
    parts: list[_Watched] = field(default_factory=list)
    uses: list[Any] = field(default_factory=list)
    reader: int = -1


class Residuals:
    """Stands in for `linear`, `dropout` and `layer_norm` of torch in a model that is run again and again.

    Args:
        layers: computes the linear layers.
    """

    def __init__(self, layers: LinearLayers) -> None:
        self._layers = layers
        self._watched: list[_Watched] | None = []  # in the first forward
        self._read: list[tuple[ref[Tensor], int]] = []  # in the first forward: what calls of linear layers read
        self._postponed: dict[int, int] = {}  # which calls of dropout, and the place of their seeds
        self._biases: set[int] = set()  # which calls of linear layers leave theirs to what was postponed
        self._passing: set[int] = set()  # which calls of linear layers read what is added to something postponed
        self._seeds: Tensor | None = None
        self._calls: Counter[Any] = Counter()

    def linear(self, states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        """As `torch.nn.functional.linear`, or with its bias postponed."""
        number = self._number(F.linear)
        if number in self._biases:
            return Postponed(self._layers(states, weight, passes=number in self._passing), bias)
        found = self._layers(states, weight, bias, number in self._passing)
        if self._watched is not None:
            self._read.append((ref(states), number))
            if bias is not None:
                self._watched.append(_Watched(ref(found), F.linear, number))
        return found

    def dropout(self, states: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        """As `torch.nn.functional.dropout`, or postponed."""
        number = self._number(F.dropout)
        if number in self._postponed:
            postponed = states if isinstance(states, Postponed) else Postponed(states)
            return replace(postponed, dropout=p if training else 0.0, seed=self._seed(number, postponed.states.device))
        found = F.dropout(states, p, training, inplace)
        if self._watched is not None and training and 0 < p < 1 and not inplace:
            before = [each for each in self._watched if each.made_by is F.linear and each.tensor() is states]
            self._watched.append(_Watched(ref(found), F.dropout, number, before))
        return found

    def add(self, first: Any, second: Any, **others: Any) -> Any:
        """As `torch.add`, of what was postponed too."""
        for postponed, past in ((first, second), (second, first)):
            if isinstance(postponed, Postponed):
                return replace(postponed, past=self._layers.past(past))
        return torch.add(first, second, **others)

    def layer_norm(
        self,
        states: Tensor | Postponed,
        shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """As `torch.nn.functional.layer_norm`, of what was postponed too."""
        if isinstance(states, Postponed):
            assert states.seed is not None
            assert states.past is not None
            assert weight is not None
            assert bias is not None
            return dropped_norm(states.states, states.bias, states.past, states.dropout, states.seed, weight, bias, eps)
        return layer_norm(states, shape, weight, bias, eps)

    def watch(self, function: Callable[..., Any], args: Sequence[Any], others: Mapping[str, Any], found: Any) -> None:
        """Every call of a function of torch's in the first forward, and its result."""
        if self._watched is None or function == _SHAPE:  # which reads no numbers
            return
        known = {id(watched.tensor()): watched for watched in self._watched}
        known.pop(id(None), None)  # of those that are gone
        for used in _members([*args, *others.values()]):
            if id(used) in known:
                known[id(used)].uses.append(function)
        if function in SUMS and len(args) == 2 and not others:
            parts = [known[id(part)] for part in args if id(part) in known]
            dropped = [part for part in parts if part.made_by is F.dropout]
            if dropped and all(isinstance(part, Tensor) and part.shape == found.shape for part in args):
                readers = [number for states, number in self._read if any(states() is part for part in args)]
                self._watched.append(_Watched(ref(found), torch.add, parts=dropped, reader=min(readers, default=-1)))
        if function is F.layer_norm and id(args[0]) in known and not _is_simple(args[1:], **others):
            known[id(args[0])].uses.append(None)

    def end_forward(self) -> None:
        """Forget the seeds; after the first forward, see what can be postponed from now on."""
        self._seeds = None
        self._calls.clear()
        for watched in self._watched or []:
            alone = [part for part in watched.parts if len(part.uses) == 1]
            if watched.made_by is torch.add and watched.uses == [F.layer_norm] and alone:
                self._postponed[alone[0].number] = len(self._postponed)
                self._biases |= {before.number for before in alone[0].parts if len(before.uses) == 1}
                self._passing |= {watched.reader}
        self._watched = None
        self._read.clear()

    def _number(self, function: Any) -> int:
        """Of the call that is under way: calls are known by their order, as layers may share their weights."""
        self._calls[function] += 1
        return self._calls[function] - 1

    def _seed(self, number: int, device: torch.device) -> Tensor:
        """Drawn on the device, so that a recorded forward draws anew in every replay; all at once."""
        if self._seeds is None:
            self._seeds = torch.randint(2**31, (len(self._postponed),), device=device)
        return self._seeds[self._postponed[number]]


def _is_simple(args: Sequence[Any], weight: Any = None, bias: Any = None, eps: float = 1e-5) -> bool:
    """Whether a layer norm is one along the last dimension, with weight and bias."""
    shape, weight, bias, *_ = [*args, *[weight, bias][len(args) - 1 :]]
    return len(shape) == 1 and weight is not None and bias is not None


def _members(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _members(value)
        else:
            yield value
