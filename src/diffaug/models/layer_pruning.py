"""Compute the last layer at the pooled tokens only.

"cls" and "mask" pooling read one token per sequence. Of all other tokens the last layer needs only keys and values:
everything after its attention would be computed for nothing. Those operations treat tokens one by one, so that they
can be given the pooled tokens alone. The first linear layer after the last attention selects them; residual
connections that still have all tokens are reduced when they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug.kernels.function_mode import FunctionMode
from diffaug.models.batch import PackedBatch
from diffaug.models.packed_attention import PackedAttention

_SUMS = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}


class LastLayerPruning(FunctionMode):
    """The context of one backbone forward, whose last hidden states are then (1, sequences, width).

    Args:
        batch: the packed batch, which says where it is pooled.
        attention: counts the layers.
    """

    def __init__(self, batch: PackedBatch, attention: PackedAttention) -> None:
        super().__init__()
        self._pool_positions = batch.pool_positions
        self._tokens = batch.input_ids.shape[1]
        self._attention = attention
        self._active = False

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self._active and func in _SUMS and self._sizes_differ(args):
            # Never in place: the tensor with all tokens may be read again.
            func, args = torch.add, tuple(self._select(states) for states in args)
        elif not self._active and func is F.linear and self._attention.complete:
            args = (self._select(args[0]), *args[1:])
            self._active = True
        return func(*args, **kwargs)

    def _sizes_differ(self, states: Sequence[Any]) -> bool:
        """Whether these are (1, all tokens, width) and (1, pooled tokens, width)."""
        lengths = [each.shape[1] for each in states if len(getattr(each, "shape", ())) == 3]
        return sorted(lengths) == sorted([self._tokens, len(self._pool_positions)])

    def _select(self, states: Any) -> Any:
        return states.index_select(1, self._pool_positions) if states.shape[1] == self._tokens else states
