"""The check of the fast path: before a stage begins, it must give the loss and the gradients of the plain path.

Both compute one batch of the stage, as the stage will run but for dropout and random augmentations. The plain path
computes it in parts, so that it needs no more memory than the fast one. In 16 bits both differ from 32 bits, and so
from each other; how much the plain path differs tells how much the fast one may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from diffaug.methods.base import Method, Stage, StepBatch
from diffaug.models.eval_mode import evaluating
from diffaug.training.execution.executor import Executor, PlainExecutor, encoder_parameters
from diffaug.training.execution.gradient_cache import GradientCache
from diffaug.training.precision import Precision
from diffaug.training.random_state import random_state, same_random_state, set_random_state

# The loss, and the gradient of each parameter, may differ from the one in 32 bits by this fraction of its norm ...
_TOLERANCE = {None: 0.01, torch.bfloat16: 0.1, torch.float16: 0.1}
# ... plus this many times what the plain path differs by ...
_TIMES_PLAIN = 4.0
# ... plus, for a gradient, this fraction of the norm of all of them: that of a key's bias is zero but for rounding.
_OF_ALL = 1e-3
# Parts in which the plain path computes the batch. The fast path takes half of its memory.
_PARTS = 4
# Without it, gradients are too small for fp16.
_LOSS_SCALE = 1024.0


def fast_path_difference(
    method: Method,
    stage: Stage,
    batch: StepBatch,
    fast: Callable[[], Executor],
    precision: Precision,
    learning: Mapping[str, nn.Parameter],
) -> str | None:
    """Where the fast path differs from the plain one by more than the tolerance, in words; None if it does not.

    Random state, weights and gradients are afterwards as before.

    Args:
        method: prepared for the stage.
        stage: the stage to run.
        batch: a collated batch of it.
        fast: makes the executor to check. It is made for this, since a CUDA graph without dropout is of no further use.
        precision: of the run.
        learning: the parameters that get gradients, by their names in the method.
    """
    device = next(method.parameters()).device
    start = random_state(device)
    views = method.encoder.views
    if views is not None and views.config is None:  # random augmentations, of which each path would draw its own
        batch = replace(batch, tokens=replace(batch.tokens, view_ids=None))

    def step(make: Callable[[], Executor], autocast: Callable[[], AbstractContextManager[Any]]) -> dict[str, Tensor]:
        set_random_state(device, start)  # for what else is random in a loss
        executor = make()
        with autocast():
            loss = method.losses(stage, executor.prepare(batch).to(device), executor)["loss"]
        (loss * _LOSS_SCALE).backward()
        executor.backward()
        found = {name: _taken_gradient(parameter) for name, parameter in learning.items()}
        return {**found, "the loss": loss.detach().float() * _LOSS_SCALE}

    def plain(autocast: Callable[[], AbstractContextManager[Any]]) -> Callable[[], Executor]:
        if not encoder_parameters(learning):  # nothing is stored for a backward pass
            return lambda: PlainExecutor(method.represent)
        return lambda: GradientCache(method.represent, -(-len(batch.tokens) // _PARTS), autocast)

    with same_random_state(device), evaluating(method), _same_modules(method):
        exact = step(plain(nullcontext), nullcontext)
        half = exact if precision.half is None else step(plain(precision.autocast), precision.autocast)
        found = step(fast, precision.autocast)
    return _difference(exact, half, found, _TOLERANCE[precision.half])


def _difference(
    exact: Mapping[str, Tensor], plain: Mapping[str, Tensor], fast: Mapping[str, Tensor], tolerance: float
) -> str | None:
    """The value that differs most, if one differs too much."""
    names = list(exact)

    def norms(tensors: Iterator[Tensor]) -> Tensor:
        return torch.stack([tensor.norm() for tensor in tensors]).double().cpu()

    size = norms(exact[name] for name in names)
    noise = norms(plain[name] - exact[name] for name in names)
    error = norms(fast[name] - exact[name] for name in names)
    gradients = torch.tensor([name != "the loss" for name in names])
    allowed = tolerance * size + _TIMES_PLAIN * noise + gradients * _OF_ALL * size[gradients].norm()
    excess = (error / allowed).nan_to_num(torch.inf)
    excess[~noise.isfinite() | (error == 0)] = 0  # where the plain path overflows, it tells nothing
    worst = int(excess.argmax())
    if excess[worst] <= 1:
        return None
    name = names[worst] if names[worst] == "the loss" else f"the gradient of {names[worst]}"
    differs, may = (f"{100 * float(value[worst] / size[worst]):.3g} %" for value in (error, allowed))
    return f"{name} differs by {differs}, more than {may}"


def _taken_gradient(parameter: nn.Parameter) -> Tensor:
    """A copy of the gradient, which is removed."""
    found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
    parameter.grad = None
    return found


@contextmanager
def _same_modules(method: Method) -> Iterator[None]:
    """After this context, parameters and buffers are as before: a flow initialises itself with its first batch.

    The backbone does nothing of the kind and is left out: it is large.
    """
    before = {
        name: value.clone() for name, value in method.state_dict().items() if not name.startswith("encoder.backbone.")
    }
    try:
        yield
    finally:
        method.load_state_dict(before, strict=False)
