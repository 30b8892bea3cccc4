"""The encoder's forward and backward pass as CUDA graphs.

A step on short sentences is a thousand small kernels, and launching them takes longer than running them. Captured once
as a CUDA graph and replayed, they are launched together. A graph is valid for one batch size. Packed batches have few
sizes (`diffaug.models.batch`), and a new size is captured when it first occurs. All graphs share one memory pool, but
each has its inputs, its results and the driver's copy of its operations, so their number is limited.

Every replay draws new random numbers and reads the current weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from diffaug.methods.base import Method, StepBatch
from diffaug.models.batch import PackedBatch, PaddedBatch
from diffaug.training.execution.half_precision import HalfPrecisionCopies

# Passes before the first capture.
_WARM_UP = 2
# Batch sizes whose graphs are kept. Of more, those not used for longest are captured again when they return.
_MAX_SIZES = 64


@dataclass
class _Graphs:
    """The graphs of both passes for one batch size, and the static tensors they read and write."""

    inputs: PackedBatch
    vectors: Tensor
    gradient: Tensor
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph


class CudaGraphExecutor:
    """An executor that packs batches, computes in 16 bits, and replays CUDA graphs.

    Args:
        method: prepared for the stage, on a GPU.
        learning: the encoder's parameters that get gradients, by name.
        dtype: bfloat16 or float16.
    """

    def __init__(self, method: Method, learning: Mapping[str, nn.Parameter], dtype: torch.dtype) -> None:
        copies = HalfPrecisionCopies(method.encoder, method.represent, learning, dtype)
        self._pack = method.encoder.pack
        self._graphs = GraphedEncoder(copies, next(method.parameters()).device)

    def prepare(self, batch: StepBatch) -> StepBatch:
        return replace(batch, tokens=replace(batch.tokens, packed=self._pack(batch.tokens))).pin_memory()

    def __call__(self, tokens: PaddedBatch) -> Tensor:
        assert tokens.packed is not None, "call prepare first"
        return self._graphs(tokens.packed)

    def backward(self) -> None:
        self._graphs.backward()


class GraphedEncoder:
    """Captures and replays the graphs.

    Args:
        encoder: from a packed batch to the vectors of all its sequences, filler included.
        device: the GPU.
    """

    def __init__(self, encoder: HalfPrecisionCopies, device: torch.device) -> None:
        self._encoder = encoder
        self._device = device
        self._by_size: dict[tuple[int, ...], _Graphs] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._warm: set[int] = set()
        self._pending: tuple[_Graphs, Tensor] | None = None

    def __call__(self, batch: PackedBatch) -> Tensor:
        """The vectors of the real sequences, without a graph to the encoder."""
        # All graphs share one memory pool: another forward would overwrite what the first one's backward reads.
        assert self._pending is None, "a forward must be followed by a backward"
        graphs = self._by_size.pop(batch.size, None) or self._capture(batch)
        self._by_size[batch.size] = graphs  # the last is the most recently used
        for name, tensor in batch.tensors().items():
            graphs.inputs.tensors()[name].copy_(tensor, non_blocking=True)
        graphs.forward.replay()
        vectors = graphs.vectors[: len(batch)].float().requires_grad_()
        self._pending = graphs, vectors
        return vectors

    def backward(self) -> None:
        """Pass the gradient of the vectors on to the encoder."""
        assert self._pending is not None, "a backward needs a forward"
        graphs, vectors = self._pending
        self._pending = None
        assert vectors.grad is not None, "call the loss's backward first"
        graphs.gradient[: len(vectors)].copy_(vectors.grad)
        graphs.gradient[len(vectors) :].zero_()
        with self._encoder.accumulating():
            graphs.backward.replay()

    def _capture(self, batch: PackedBatch) -> _Graphs:
        if len(self._by_size) >= _MAX_SIZES:
            torch.cuda.synchronize(self._device)  # its last replay may still run
            del self._by_size[next(iter(self._by_size))]
        # The copies are in 16 bits already: the autocast that the loss is computed under would cast back and forth.
        with torch.autocast(self._device.type, enabled=False):
            return self._captured(batch)

    def _captured(self, batch: PackedBatch) -> _Graphs:
        random_state = torch.cuda.get_rng_state(self._device)
        inputs = batch.to(self._device)
        if batch.max_keys not in self._warm:
            self._warm_up(inputs)
            self._warm.add(batch.max_keys)
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with self._capturing(forward):
            self._encoder.refresh()
            vectors = self._encoder(inputs)
        gradient = torch.zeros_like(vectors)
        with self._capturing(backward):
            self._encoder.backward(vectors, gradient)
        torch.cuda.set_rng_state(random_state, self._device)
        return _Graphs(inputs, vectors.detach(), gradient, forward, backward)

    def _warm_up(self, inputs: PackedBatch) -> None:
        """Passes that compile kernels and initialise libraries, which must not happen during a capture.

        Which kernels are compiled depends on the largest number of keys only.
        """
        self._encoder.detach_gradients()  # those of earlier batches of the same step
        with self._side_stream():
            for _ in range(_WARM_UP):
                vectors = self._encoder(inputs)
                self._encoder.backward(vectors, torch.zeros_like(vectors))
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # graphs have a memory pool of their own

    @contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        # Not `torch.cuda.graph`, which frees all cached memory before each capture; it is needed again afterwards.
        # Another thread prepares batches during the capture, hence "thread_local".
        with self._side_stream():
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()

    @contextmanager
    def _side_stream(self) -> Iterator[None]:
        """A stream of its own, synchronised with the current one at both ends."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)
