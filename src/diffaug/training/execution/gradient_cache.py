"""Gradient cache: contrastive batches larger than memory, with the loss and gradients of the plain way.

The rows go through the encoder in chunks without a graph; the loss is computed on all vectors and differentiated with
respect to them; then each chunk goes through the encoder again, with the same random numbers, and its share of that
gradient flows on into the weights. Memory holds the graph of one chunk instead of all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from diffaug.models.rows import Rows


class GradientCache:
    """Stands in for the encoder in one step: call it for vectors, take the loss backward, then call `backward`.

    Args:
        represent: the encoder's own way from rows to vectors.
        chunk: rows at a time.
        autocast: the precision in which the chunks run again; makes a context a chunk.
    """

    def __init__(
        self, represent: Callable[[Rows], Tensor], chunk: int, autocast: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._represent = represent
        self._chunk = chunk
        self._autocast = autocast
        self._calls: list[tuple[Rows, Tensor, list[tuple[Tensor, Tensor | None]]]] = []

    def __call__(self, rows: Rows) -> Tensor:
        """Vectors of the rows, cut off from the encoder."""
        states, parts = [], []
        with torch.no_grad():
            for start in range(0, len(rows), self._chunk):
                states.append(_random_state(rows.input_ids.device))
                parts.append(self._represent(rows.part(start, start + self._chunk)))
        vectors = torch.cat(parts).requires_grad_()
        self._calls.append((rows, vectors, states))
        return vectors

    def backward(self) -> None:
        """Carry the loss's gradient on from the vectors into the encoder."""
        for rows, vectors, states in self._calls:
            assert vectors.grad is not None, "take the loss backward first"
            after = _random_state(rows.input_ids.device)
            for i, state in enumerate(states):
                start = i * self._chunk
                _set_random_state(rows.input_ids.device, state)
                with self._autocast():
                    again = self._represent(rows.part(start, start + self._chunk))
                torch.autograd.backward(again, vectors.grad[start : start + self._chunk].to(again.dtype))
            _set_random_state(rows.input_ids.device, after)
        self._calls.clear()


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
