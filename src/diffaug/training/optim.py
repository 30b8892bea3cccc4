"""Who learns, how fast: parameter groups by role, and the learning rate's schedule."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW, Optimizer

from diffaug.methods.base import Method, Stage


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
    """AdamW with a group a role; `base_lr` keeps the rate that the schedule scales."""
    groups = [
        {"params": list(method.roles()[role].parameters()), "lr": rate, "base_lr": rate, "role": role}
        for role, rate in stage.learning_rates.items()
    ]
    # All parameters in one pass, where torch has that.
    fused = next(method.parameters()).device.type in ("cpu", "cuda") or None
    return AdamW(groups, betas=(0.9, 0.999), eps=1e-8, weight_decay=stage.weight_decay, fused=fused)


def set_learning_rates(optimizer: Optimizer, stage: Stage, step: int) -> float:
    """Scale every group's rate for the step to come; a function of the step alone, so there is no state to lose.

    Linear warm-up over the given part of the schedule, then linear decay to zero.
    """
    warmup = round(stage.warmup * stage.schedule_steps)
    if step < warmup:
        factor = (step + 1) / warmup
    else:
        factor = max(0.0, (stage.schedule_steps - step) / max(1, stage.schedule_steps - warmup))
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return factor
