"""Where a layer ends in dropout, a sum with what went past it and a layer norm: the three as one operation.

Where that is, is seen in a model's first forward, so that no architecture needs to be known. From then on dropout and
sum are put off until the layer norm asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug.kernels.layer_norm import dropped_norm, layer_norm

SUMS = (torch.add, Tensor.add)
_SHAPE = Tensor.shape.__get__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Postponed:
    """Dropout, then a sum, that nobody has computed yet. It is no tensor: what else is done with it is an error.

    Sums go through torch's function, so that all contexts that watch those see them; `Residuals.add` answers.
    """

    states: Tensor
    dropout: float
    seed: Tensor
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
    """A tensor of the first forward: a result of dropout, or a sum with one or two such.

    Attributes:
        tensor: itself, while it is there: kept, it would take up memory until the forward's end.
        number: which call of dropout it came from; None for a sum.
        parts: of a sum, the results of dropout.
        uses: the functions that read it.
    """

    tensor: ref[Tensor]
    number: int | None
    parts: list[_Watched] = field(default_factory=list)
    uses: list[Any] = field(default_factory=list)


class Residuals:
    """Stands in for `dropout` and `layer_norm` of torch in a model that is run again and again."""

    def __init__(self) -> None:
        self._watched: list[_Watched] | None = []  # in the first forward
        self._postponed: dict[int, int] = {}  # which calls of dropout, and the place of their seeds
        self._seeds: Tensor | None = None
        self._calls = 0

    def dropout(self, states: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        """As `torch.nn.functional.dropout`, or postponed."""
        number = self._calls
        self._calls += 1
        if number in self._postponed:
            return Postponed(states, p if training else 0.0, self._seed(number, states.device))
        found = F.dropout(states, p, training, inplace)
        if self._watched is not None and training and 0 < p < 1 and not inplace:
            self._watched.append(_Watched(ref(found), number))
        return found

    def add(self, first: Any, second: Any, **others: Any) -> Any:
        """As `torch.add`, of what was postponed too."""
        for postponed, past in ((first, second), (second, first)):
            if isinstance(postponed, Postponed):
                return replace(postponed, past=past)
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
            assert states.past is not None
            assert weight is not None
            assert bias is not None
            return dropped_norm(states.states, states.past, states.dropout, states.seed, weight, bias, eps)
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
            dropped = [part for part in parts if part.number is not None]
            if dropped and all(isinstance(part, Tensor) and part.shape == found.shape for part in args):
                self._watched.append(_Watched(ref(found), None, dropped))
        if function is F.layer_norm and id(args[0]) in known and not _is_simple(args[1:], **others):
            known[id(args[0])].uses.append(None)

    def end_forward(self) -> None:
        """Forget the seeds; after the first forward, see what can be postponed from now on."""
        self._calls, self._seeds = 0, None
        if self._watched is not None:
            for watched in self._watched:
                alone = [part.number for part in watched.parts if len(part.uses) == 1]
                if watched.uses == [F.layer_norm] and alone and alone[0] is not None:
                    self._postponed[alone[0]] = len(self._postponed)
            self._watched = None

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
