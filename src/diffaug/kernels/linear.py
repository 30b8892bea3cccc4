"""Linear layers that read the same states, queries, keys and values above all, with one backward pass for all of them.

Three small products leave half of a GPU idle and their results have to be added; side by side they are one large
product. Which layers belong together is seen in a model's first forward, so that no architecture needs to be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor

Layer = tuple[Tensor, Tensor | None]
"""Weight and bias."""


class LinearLayers:
    """Stands in for `torch.nn.functional.linear` in a model that is run again and again with the same weights.

    The results are the same however layers are called: one that was computed for other states is computed anew.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[ref[Tensor], list[Layer]]] | None = []  # in the first forward: states and their readers
        self._together: dict[tuple[int, int], list[Layer]] = {}  # by the layer that comes first
        self._ready: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # states and result, by layer
        self._past: dict[int, tuple[Tensor, Tensor]] = {}  # states and the same to go past their layers, by states
        self._ones: dict[int, Tensor] = {}  # (1, tokens), by tokens

    def __call__(self, states: Tensor, weight: Tensor, bias: Tensor | None = None, passes: bool = False) -> Tensor:
        """A layer's result. If the states go past the layer as well (``passes``), take those from `past`."""
        layer = (weight, bias)
        if self._seen is not None:
            self._note(self._seen, states, layer)
        learns = bias is not None and bias.requires_grad
        read, result = self._ready.pop(_key(layer), (None, states))
        if read is states:
            return result
        layers = self._together.get(_key(layer), [layer])
        result, *others = linear(states, layers, self._ones_for(states) if learns else None, passes)
        if passes:
            self._past[id(states)] = states, others.pop()
        self._ready |= {_key(other): (states, found) for other, found in zip(layers[1:], others, strict=True)}
        return result

    def past(self, states: Tensor) -> Tensor:
        """The states, for one operation that makes a gradient for them and for nothing else.

        To that gradient the layers which read the states add theirs, in place of a sum that would read both again.
        """
        read, found = self._past.pop(id(states), (None, states))
        return found if read is states else states

    def end_forward(self) -> None:
        """Let go of what this forward has made; after the first one, see which layers belong together.

        What a recorded forward makes lies in memory that other recordings write to: nothing of it may be left to the
        next.
        """
        self._ready.clear()
        self._past.clear()
        self._ones.clear()
        if self._seen is None:
            return
        for _, layers in self._seen:
            kinds = {(weight.requires_grad, None if bias is None else bias.requires_grad) for weight, bias in layers}
            if len(layers) > 1 and len(kinds) == 1:
                self._together[_key(layers[0])] = layers
        self._seen = None

    @staticmethod
    def _note(seen: list[tuple[ref[Tensor], list[Layer]]], states: Tensor, layer: Layer) -> None:
        # Not the states themselves: those that no gradient needs would all be kept until the forward's end.
        for known, layers in reversed(seen):
            if known() is states:
                layers.append(layer)
                return
        seen.append((ref(states), [layer]))

    def _ones_for(self, states: Tensor) -> Tensor:
        tokens = states.numel() // states.shape[-1]
        if tokens not in self._ones:
            self._ones[tokens] = states.new_ones(1, tokens)
        return self._ones[tokens]


def _key(layer: Layer) -> tuple[int, int]:
    return id(layer[0]), id(layer[1])


def linear(states: Tensor, layers: Sequence[Layer], ones: Tensor | None, passes: bool = False) -> tuple[Tensor, ...]:
    """The results of layers that read the same states, whose gradients are computed together.

    Args:
        states: (.., inputs)
        layers: all or none of the weights learn, and so of the biases.
        ones: (1, tokens), as many as there are states, where biases learn.
        passes: the last result is the states once more. The gradient of these is overwritten.
    """
    weights, biases = zip(*layers, strict=True)
    found: tuple[Tensor, ...] = _Linear.apply(states, ones, passes, *weights, *biases)
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, ones: Tensor | None, passes: bool, *parameters: Tensor | None
    ) -> tuple[Tensor, ...]:
        count = len(parameters) // 2
        weights, biases = parameters[:count], parameters[count:]
        # Frozen weights need no states to be kept.
        ctx.save_for_backward(states if any(ctx.needs_input_grad[3 : 3 + count]) else None, ones, *weights)
        ctx.shape, ctx.passes = states.shape, passes
        found = [F.linear(states, weight, bias) for weight, bias in zip(weights, biases, strict=True)]  # type: ignore[arg-type]
        return *found, *([states] if passes else [])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, ones, *weights = ctx.saved_tensors
        of_states, _, _, *of_others = ctx.needs_input_grad
        count, sizes = len(weights), [len(weight) for weight in weights]
        of_results, d_past = gradients[:count], gradients[count] if ctx.passes else None
        gradient = _side_by_side([part.reshape(-1, part.shape[-1]) for part in of_results])  # (tokens, outputs of all)
        d_states, nothing = None, [None] * count
        d_weights: Sequence[Tensor | None] = nothing
        d_biases: Sequence[Tensor | None] = nothing
        if of_states:
            weight = torch.cat(weights) if count > 1 else weights[0]
            # In place: it was made for nothing else, and `torch.addmm` would copy it first.
            found = gradient @ weight if d_past is None else d_past.view(-1, ctx.shape[-1]).addmm_(gradient, weight)
            d_states = found.view(ctx.shape)
        if any(of_others[:count]):
            d_weights = (gradient.t() @ states.reshape(-1, states.shape[-1])).split(sizes)
        if any(of_others[count:]):
            # A product: the matrix units do it sooner than a sum.
            d_biases = (ones @ gradient).squeeze(0).split(sizes)
        return d_states, None, None, *d_weights, *d_biases


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """(rows, all columns): without a copy where the parts, each (rows, columns), lie in memory as they will."""
    first, step, at = parts[0], parts[0].stride(0), parts[0].storage_offset()
    for part in parts:
        if (
            part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
            or part.storage_offset() != at
            or part.stride() != (step, 1)
        ):
            return torch.cat(list(parts), dim=1)
        at += part.shape[1]
    columns = at - first.storage_offset()
    return first.as_strided((len(first), columns), (step, 1)) if columns <= step else torch.cat(list(parts), dim=1)
