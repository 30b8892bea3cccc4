"""In the last layer, only the tokens that are pooled.

A vector that is read at one token needs the last layer's keys and values of all tokens, and nothing else of them: what
comes behind the last attention is computed for a row's other twenty tokens in vain. Every operation there treats tokens
one by one, so that a shorter row will do, which the first linear layer is given. What went past the attention still has
all tokens: when it is added, the pooled ones are taken of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from diffaug.models.packed import Packed, PackedStates

_SUMS = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}


class OnlyPooled(TorchFunctionMode):
    """The context for one forward of a backbone, whose last states then are (1, rows, width).

    Args:
        packed: the rows, and where they are pooled.
        states: counts the attentions.
    """

    def __init__(self, packed: Packed, states: PackedStates) -> None:
        super().__init__()
        self._pool_at = packed.pool_at
        self._all = packed.input_ids.shape[1]
        self._states = states
        self._begun = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self._begun and func in _SUMS and self._differ(args):
            # Never in place: there may be more to read of the longer one.
            func, args = torch.add, tuple(self._pooled(states) for states in args)
        elif not self._begun and func is F.linear and self._states.complete:
            args = (self._pooled(args[0]), *args[1:])
            self._begun = True
        return func(*args, **(kwargs or {}))

    def _differ(self, states: Sequence[Any]) -> bool:
        """Whether these are (1, all tokens, width) and (1, pooled tokens, width)."""
        lengths = [each.shape[1] for each in states if len(getattr(each, "shape", ())) == 3]
        return sorted(lengths) == sorted([self._all, len(self._pool_at)])

    def _pooled(self, states: Any) -> Any:
        return states.index_select(1, self._pool_at) if states.shape[1] == self._all else states
