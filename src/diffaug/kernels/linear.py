"""Linear layers with the same input, mostly queries, keys and values, with one backward pass for all of them.

Three small matrix products leave half of a GPU idle, and their results have to be added; concatenated they are one
large product. Which layers share their input is found in a model's first forward, for any architecture.
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
    """Replaces `torch.nn.functional.linear` in a model that runs repeatedly with the same weights.

    Results do not depend on the order of calls: a result that was computed ahead for another input is not used.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[ref[Tensor], list[Layer]]] | None = []  # first forward: inputs and their layers
        self._together: dict[tuple[int, int], list[Layer]] = {}  # layers with the same input, by the first of them
        self._ready: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # input and result computed ahead, by layer
        self._past: dict[int, tuple[Tensor, Tensor]] = {}  # input and its alias for the residual connection, by input
        self._ones: dict[int, Tensor] = {}  # (1, tokens), by tokens

    def __call__(self, states: Tensor, weight: Tensor, bias: Tensor | None = None, passes: bool = False) -> Tensor:
        """A layer's result. ``passes``: the input also is a residual, which is then to be taken from `past`."""
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
        """The states as a residual, for one operation that computes their gradient.

        The layers that read the states add their gradient to it in place, which saves a separate sum.
        """
        read, found = self._past.pop(id(states), (None, states))
        return found if read is states else states

    def end_forward(self) -> None:
        """Drop the results of this forward; after the first one, find the layers with the same input.

        The results of a CUDA graph are in memory that other graphs overwrite: none may be left for the next forward.
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
        # Weak references: otherwise states that no gradient needs would stay in memory until the end of the forward.
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
    """The results of layers with the same input, whose gradients are computed together.

    Args:
        states: (.., inputs)
        layers: all or none of the weights get gradients, and likewise the biases.
        ones: (1, tokens), if the biases get gradients.
        passes: return the states as a last result, whose gradient is overwritten.
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
        # Frozen weights do not need the states in the backward pass.
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
        gradient = _concatenated([part.reshape(-1, part.shape[-1]) for part in of_results])  # (tokens, outputs of all)
        d_states, nothing = None, [None] * count
        d_weights: Sequence[Tensor | None] = nothing
        d_biases: Sequence[Tensor | None] = nothing
        if of_states:
            weight = torch.cat(weights) if count > 1 else weights[0]
            # In place: nothing else reads it, and `torch.addmm` would copy it first.
            found = gradient @ weight if d_past is None else d_past.view(-1, ctx.shape[-1]).addmm_(gradient, weight)
            d_states = found.view(ctx.shape)
        if any(of_others[:count]):
            d_weights = (gradient.t() @ states.reshape(-1, states.shape[-1])).split(sizes)
        if any(of_others[count:]):
            # A matrix product, which is faster than a sum on tensor cores.
            d_biases = (ones @ gradient).squeeze(0).split(sizes)
        return d_states, None, None, *d_weights, *d_biases


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    """(rows, all columns), without a copy if the parts, each (rows, columns), are adjacent in memory already."""
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
