"""Executors run the encoder in the steps of a stage: the plain one, or a faster one where there is one.

A method does not know which one it gets: `Method.losses` calls it with a token batch and gets vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from diffaug.errors import DiffaugError
from diffaug.methods.base import Encode, Method, Stage, StepBatch
from diffaug.models.attention import attention_shape
from diffaug.models.batch import PaddedBatch
from diffaug.models.eval_mode import evaluating
from diffaug.training.execution.cpu import fast_cpu_encode
from diffaug.training.execution.cuda_graphs import CudaGraphExecutor
from diffaug.training.execution.gradient_cache import GradientCache
from diffaug.training.precision import Precision

# Vectors of a packed batch may differ from those of a padded one by this fraction of their norm, in float32.
_TOLERANCE = 1e-3
# The longest sentence in the trial, in tokens, if the run has longer ones or no limit.
_MAX_TRIAL_LENGTH = 1024


class Executor(Protocol):
    """Runs the encoder in the steps of a stage."""

    def prepare(self, batch: StepBatch) -> StepBatch:
        """Prepare a collated batch on the CPU; may run in another thread."""

    def __call__(self, tokens: PaddedBatch) -> Tensor:
        """(sequences, hidden size): the pooled vectors of the batch."""

    def backward(self) -> None:
        """After the loss's backward: pass the gradient of the vectors on to the encoder, if that is still to do."""


class PlainExecutor:
    """One forward of the whole batch; autograd does the rest."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode

    def prepare(self, batch: StepBatch) -> StepBatch:
        return batch

    def __call__(self, tokens: PaddedBatch) -> Tensor:
        return self._encode(tokens)

    def backward(self) -> None:
        pass


def plain_executor(method: Method, stage: Stage, precision: Precision) -> Executor:
    """The reference: padded batches through `Method.represent`, with a gradient cache if the stage asks for one."""
    return _autograd_executor(method.represent, stage, precision)


def fast_executor(
    method: Method, stage: Stage, precision: Precision, device: torch.device, learning: Mapping[str, nn.Parameter]
) -> Callable[[], Executor] | None:
    """Makes the fastest executor for this model, stage and machine; None if that is the plain one.

    Args:
        method: prepared for the stage.
        stage: the stage to run.
        precision: of the run.
        device: where it runs.
        learning: the parameters that get gradients, by their names in the method.
    """
    inside = encoder_parameters(learning)
    if device.type == "cpu":
        encode = fast_cpu_encode(method, packed=can_pack(method))
        return lambda: _autograd_executor(encode, stage, precision)
    half = precision.half
    if device.type == "cuda" and half and stage.gradient_cache is None and inside and can_pack(method):
        return lambda: CudaGraphExecutor(method, inside, half)
    return None


def encoder_parameters(parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Those of a method's parameters that an executor computes with."""
    return {name: p for name, p in parameters.items() if name.startswith(("encoder.backbone.", "encoder.views."))}


def _autograd_executor(encode: Encode, stage: Stage, precision: Precision) -> Executor:
    if stage.gradient_cache is not None:
        return GradientCache(encode, stage.gradient_cache, precision.autocast)
    return PlainExecutor(encode)


@torch.no_grad()
def can_pack(method: Method) -> bool:
    """Whether this encoder gives the same vectors for packed batches: tested with a forward, for any architecture."""
    encoder = method.encoder
    if encoder.views is not None and not encoder.views.supports_packed:
        return False
    device = next(method.parameters()).device
    try:
        attention_shape(encoder.backbone)
        # One sentence is as long as the run may have: sliding-window attention differs only in long ones.
        longest = min(method.collator.max_length or _MAX_TRIAL_LENGTH, _MAX_TRIAL_LENGTH)
        long = torch.randint(5, 9, (longest,), generator=torch.Generator().manual_seed(0))
        ids = [[5] * 3, [6, 7] * 4, [8], long.tolist()]
        batch = method.collator.rows(ids)  # without views, whose augmentations would be random
        with evaluating(method):
            padded = method.represent(batch.to(device))
            packed = method.represent(encoder.pack(batch).to(device))[: len(ids)]
    except (DiffaugError, TypeError, ValueError, RuntimeError):
        return False
    return bool((padded - packed).norm(dim=1).max() <= _TOLERANCE * padded.norm(dim=1).max())
