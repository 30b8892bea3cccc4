"""Who learns, how fast: parameter groups by role, and the learning rate's schedule."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from diffaug.methods.base import Method, Stage

# Roles of which every parameter decays: BERT-flow's code exempts what is named "bias", and nothing in its flow is.
_DECAY_WHOLLY = ("flow",)


def trainable(method: Method, stage: Stage) -> dict[str, nn.Parameter]:
    """Let the stage's roles learn, freeze everything else, and return what learns by name."""
    roles = method.roles()
    if unknown := set(stage.learning_rates) - set(roles):
        raise ValueError(f"stage {stage.number} names roles that do not exist: {sorted(unknown)}")
    method.requires_grad_(False)
    for role in stage.learning_rates:
        roles[role].requires_grad_(True)
    learning = {name: parameter for name, parameter in method.named_parameters() if parameter.requires_grad}
    for role in stage.clipped_with:
        roles[role].requires_grad_(True)
    return learning


def build_optimizer(method: Method, stage: Stage) -> Optimizer:
    """AdamW with a group for each role, or two where weights decay: biases and norms are exempt.

    `base_lr` and `base_decay` keep what `set_learning_rates` scales.
    """
    loop, roles = method.recipe.loop, method.roles()
    groups = [
        {
            "params": parameters,
            "role": role,
            "lr": rate,
            "base_lr": rate,
            "weight_decay": decay,
            "base_decay": decay,
            "bias_correction": loop.adam_bias_correction,
        }
        for role, rate in stage.learning_rates.items()
        for parameters, decay in _by_decay(role, roles[role], stage.weight_decay)
    ]
    # All parameters in one pass, where torch has that.
    fused = next(method.parameters()).device.type in ("cpu", "cuda") or None
    return AdamW(groups, betas=(0.9, 0.999), eps=loop.adam_epsilon, fused=fused)


def set_learning_rates(optimizer: Optimizer, stage: Stage, step: int) -> float:
    """Scale every group's rate for the step to come; a function of the step alone, so there is no state to lose.

    Linear warm-up over the given part of the schedule, then linear decay to zero or a constant rate.
    """
    warmup = round(stage.warmup * stage.schedule_steps)
    if step < warmup:
        factor = (step + 1) / warmup
    elif stage.schedule == "constant":
        factor = 1.0
    else:
        factor = max(0.0, (stage.schedule_steps - step) / max(1, stage.schedule_steps - warmup))
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
        if not group["bias_correction"]:
            _undo_bias_correction(optimizer, group, step + 1)
    return factor


def _undo_bias_correction(optimizer: Optimizer, group: dict[str, Any], number: int) -> None:
    """Choose rate, epsilon and decay so that AdamW's step of that number, from 1, is m / (sqrt(v) + epsilon).

    AdamW divides m by ``first`` and sqrt(v) by ``second``.
    """
    first, second = (1 - beta**number for beta in group["betas"])
    second = math.sqrt(second)
    group["lr"] *= first / second
    group["eps"] = optimizer.defaults["eps"] / second
    group["weight_decay"] = group["base_decay"] * second / first  # which AdamW multiplies by the rate


def _by_decay(role: str, module: nn.Module, decay: float) -> list[tuple[list[nn.Parameter], float]]:
    """The parameters of a role and their weight decay: all together, or those that are exempt apart."""
    if decay == 0 or role in _DECAY_WHOLLY:
        return [(list(module.parameters()), decay)]
    exempt = {
        id(parameter)
        for part in module.modules()
        for name, parameter in part.named_parameters(recurse=False)
        if name.endswith("bias") or "Norm" in type(part).__name__
    }
    parts = (
        ([p for p in module.parameters() if id(p) not in exempt], decay),
        ([p for p in module.parameters() if id(p) in exempt], 0.0),
    )
    return [(parameters, own) for parameters, own in parts if parameters]
