"""Gradient cache: contrastive batches larger than memory, with the same loss and gradients as in one pass.

The sequences go through the encoder in chunks, without a graph. The loss is computed on all vectors and differentiated
with respect to them. Then each chunk goes through the encoder again, with the same random numbers, and its part of that
gradient is passed on to the weights. Memory holds the graph of one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from diffaug.methods.base import Encode, StepBatch
from diffaug.models.batch import PaddedBatch
from diffaug.training.random_state import random_state, same_random_state, set_random_state


class GradientCache:
    """An executor with a gradient cache.

    Args:
        encode: a token batch to its vectors.
        chunk: the number of sequences per chunk.
        autocast: makes the autocast context in which a chunk runs again.
    """

    def __init__(self, encode: Encode, chunk: int, autocast: Callable[[], AbstractContextManager[None]]) -> None:
        self._encode = encode
        self._chunk = chunk
        self._autocast = autocast
        self._calls: list[tuple[PaddedBatch, Tensor, list[dict[str, Tensor]]]] = []

    def prepare(self, batch: StepBatch) -> StepBatch:
        return batch

    def __call__(self, tokens: PaddedBatch) -> Tensor:
        """The vectors, without a graph to the encoder."""
        states, parts = [], []
        with torch.no_grad():
            for start in range(0, len(tokens), self._chunk):
                states.append(random_state(tokens.input_ids.device))
                parts.append(self._encode(tokens.slice(start, start + self._chunk)))
        vectors = torch.cat(parts).requires_grad_()
        self._calls.append((tokens, vectors, states))
        return vectors

    def backward(self) -> None:
        """Pass the gradient of the vectors on to the encoder."""
        for tokens, vectors, states in self._calls:
            assert vectors.grad is not None, "call the loss's backward first"
            device = tokens.input_ids.device
            with same_random_state(device):
                for i, state in enumerate(states):
                    start = i * self._chunk
                    set_random_state(device, state)
                    with self._autocast():
                        again = self._encode(tokens.slice(start, start + self._chunk))
                    torch.autograd.backward(again, vectors.grad[start : start + self._chunk].to(again.dtype))
        self._calls.clear()
