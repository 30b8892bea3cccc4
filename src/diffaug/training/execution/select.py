"""How the rows of a step go through the encoder: in one plain pass, in parts, or by recorded CUDA graphs.

`passes_for` chooses, once a stage. A method does not know: it calls what it is given for vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from diffaug.errors import DiffaugError
from diffaug.kernels.dropout import QuickDropout
from diffaug.methods.base import Inputs, Method, Represent, Stage
from diffaug.models.attention import attention_shape
from diffaug.models.eval_mode import evaluating
from diffaug.models.rows import Rows
from diffaug.training.execution.cuda_graphs import GraphedEncoder
from diffaug.training.execution.gradient_cache import GradientCache
from diffaug.training.execution.half_precision import Halved
from diffaug.training.execution.length_sorted import by_length, end_to_end
from diffaug.training.precision import Precision

# Vectors of packed rows may be this far from those of padded ones, as a part of their length, in float32.
_TOLERANCE = 1e-3
# Tokens of the longest sentence that is tried, where the run has longer ones or no limit.
_LONGEST_TRIED = 1024


class Passes(Protocol):
    """Stands in for the encoder in the steps of a stage."""

    def prepare(self, inputs: Inputs) -> Inputs:
        """Collated inputs, made ready on the CPU; may run in another thread."""

    def __call__(self, rows: Rows) -> Tensor:
        """Vectors of the rows."""

    def backward(self) -> None:
        """After the loss's backward: carry its gradient on into the encoder, where that has not happened yet."""


class PlainPasses:
    """The encoder as it is, its rows in parts where ``chunk`` says so."""

    def __init__(self, represent: Represent, chunk: int | None, autocast: Any) -> None:
        self._cache = None if chunk is None else GradientCache(represent, chunk, autocast)
        self._represent = self._cache or represent

    def prepare(self, inputs: Inputs) -> Inputs:
        return inputs

    def __call__(self, rows: Rows) -> Tensor:
        return self._represent(rows)

    def backward(self) -> None:
        if self._cache is not None:
            self._cache.backward()


class GraphedPasses:
    """Rows end to end and in 16 bits, through recorded graphs."""

    def __init__(self, method: Method, learning: Mapping[str, nn.Parameter], dtype: torch.dtype) -> None:
        self._encoder = method.encoder
        halved = Halved(method.encoder, method.represent, learning, dtype)
        self._graphs = GraphedEncoder(halved, next(method.parameters()).device)

    def prepare(self, inputs: Inputs) -> Inputs:
        return replace(inputs, rows=replace(inputs.rows, packed=self._encoder.pack(inputs.rows))).pin()

    def __call__(self, rows: Rows) -> Tensor:
        assert rows.packed is not None, "prepare the inputs first"
        return self._graphs(rows.packed)

    def backward(self) -> None:
        self._graphs.backward()


def passes_for(
    method: Method,
    stage: Stage,
    precision: Precision,
    device: torch.device,
    learning: Mapping[str, nn.Parameter],
    fast: bool = True,
) -> Passes:
    """The fastest way there is for this model, stage and machine, or the plain one.

    Args:
        method: ready for the stage.
        stage: what comes.
        precision: of the run.
        device: where it runs.
        learning: the parameters that learn, by their names within the method.
        fast: look for the fastest.
    """
    if not fast:
        return PlainPasses(method.represent, stage.gradient_cache, precision.autocast)
    inside = {name: p for name, p in learning.items() if name.startswith(("encoder.backbone.", "encoder.views."))}
    if device.type == "cuda" and precision.half and stage.gradient_cache is None and inside and can_pack(method):
        return GraphedPasses(method, inside, precision.half)
    represent = on_cpu(method) if device.type == "cpu" else method.represent
    return PlainPasses(represent, stage.gradient_cache, precision.autocast)


def on_cpu(method: Method) -> Represent:
    """The same vectors and gradients, without padding or with little of it, and with quick dropout."""
    way = end_to_end(method) if can_pack(method) else by_length(method.represent)

    def represent_quickly(rows: Rows) -> Tensor:
        with QuickDropout():
            return way(rows)

    return represent_quickly


@torch.no_grad()
def can_pack(method: Method) -> bool:
    """Whether rows end to end give this encoder's vectors: tried, not looked up in a list of names."""
    encoder = method.encoder
    if encoder.views is not None and not encoder.views.packs:
        return False
    device = next(method.parameters()).device
    try:
        attention_shape(encoder.backbone)
        # One as long as the run may have: a layer that sees a window of tokens shows only in longer rows than that.
        longest = min(method.collator.max_length or _LONGEST_TRIED, _LONGEST_TRIED)
        long = torch.randint(5, 9, (longest,), generator=torch.Generator().manual_seed(0))
        ids = [[5] * 3, [6, 7] * 4, [8], long.tolist()]
        rows = method.collator.rows(ids)  # of no view: a cut would be another each time
        with evaluating(method):
            padded = method.represent(rows.to(device))
            packed = method.represent(encoder.pack(rows).to(device))[: len(ids)]  # type: ignore[arg-type]
    except (DiffaugError, TypeError, ValueError, RuntimeError):
        return False
    return bool((padded - packed).norm(dim=1).max() <= _TOLERANCE * padded.norm(dim=1).max())
