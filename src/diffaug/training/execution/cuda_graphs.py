"""The encoder's forward and backward pass as recorded CUDA graphs.

A step on short sentences is a thousand small kernels, and starting them takes longer than running them. Recorded once
and replayed, they start together. A recording holds for one size of a batch; packed batches have few
(`diffaug.models.packed`), and what has no recording yet gets one.

Stands in for the encoder like the gradient cache does: call it for vectors, take the loss backward, then call
`backward`. Random numbers go on from replay to replay, and weights are read where the optimiser left them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from diffaug.models.packed import Packed
from diffaug.training.execution.half_precision import Halved

# Passes before the first recording.
_WARM_UP = 2


@dataclass
class _Recording:
    """Both passes of one size, and the tensors they read and write."""

    inputs: Packed
    vectors: Tensor
    gradient: Tensor
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph


class GraphedEncoder:
    """See the module's text.

    Args:
        encoder: from packed rows to vectors, filler rows included.
        device: the GPU.
    """

    def __init__(self, encoder: Halved, device: torch.device) -> None:
        self._encoder = encoder
        self._device = device
        self._recordings: dict[tuple[int, ...], _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._warm: set[int] = set()
        self._under_way: tuple[_Recording, Tensor] | None = None

    def __call__(self, packed: Packed) -> Tensor:
        """Vectors of the rows, cut off from the encoder."""
        # Recordings share their memory: another forward would overwrite what the first one's backward reads.
        assert self._under_way is None, "one forward, one backward"
        recording = self._recordings.get(packed.size) or self._record(packed)
        for name, tensor in packed.tensors().items():
            recording.inputs.tensors()[name].copy_(tensor, non_blocking=True)
        recording.forward.replay()
        vectors = recording.vectors[: len(packed)].float().requires_grad_()
        self._under_way = recording, vectors
        return vectors

    def backward(self) -> None:
        """Carry the loss's gradient on from the vectors into the encoder."""
        assert self._under_way is not None, "a forward comes first"
        recording, vectors = self._under_way
        self._under_way = None
        assert vectors.grad is not None, "take the loss backward first"
        recording.gradient[: len(vectors)].copy_(vectors.grad)
        recording.gradient[len(vectors) :].zero_()
        with self._encoder.adding():
            recording.backward.replay()

    def _record(self, packed: Packed) -> _Recording:
        # The copies are in 16 bits already: autocast, which the loss is computed under, would cast back and forth.
        with torch.autocast(self._device.type, enabled=False):
            return self._recorded(packed)

    def _recorded(self, packed: Packed) -> _Recording:
        random_state = torch.cuda.get_rng_state(self._device)
        inputs = packed.to(self._device)
        if packed.longest not in self._warm:
            self._warm_up(inputs)
            self._warm.add(packed.longest)
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with self._capture(forward):
            self._encoder.refresh()
            vectors = self._encoder(inputs)
        gradient = torch.zeros_like(vectors)
        with self._capture(backward):
            self._encoder.backward(vectors, gradient)
        torch.cuda.set_rng_state(random_state, self._device)
        recording = _Recording(inputs, vectors.detach(), gradient, forward, backward)
        self._recordings[packed.size] = recording
        return recording

    def _warm_up(self, inputs: Packed) -> None:
        """Passes in which kernels are compiled and libraries set up their memory, which a recording must not see.

        What of it depends on the batch depends on its longest row alone.
        """
        self._encoder.keep_earlier()  # of the step's parts before this one
        with self._aside():
            for _ in range(_WARM_UP):
                vectors = self._encoder(inputs)
                self._encoder.backward(vectors, torch.zeros_like(vectors))
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # the recordings have memory of their own

    @contextmanager
    def _capture(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        # Not `torch.cuda.graph`: that gives back all cached memory before each recording, to be fetched again after it.
        # Another thread prepares batches meanwhile, which is none of this recording's business.
        with self._aside():
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On a stream of its own, after what is under way and before what comes."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)
