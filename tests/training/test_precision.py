"""Loss scaling and clipping against the computation by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from diffaug.training.optimizer import trainable
from diffaug.training.precision import Precision


@pytest.mark.parametrize("scaled", [True, False], ids=["loss scaled", "loss not scaled"])
def test_gradients_of_others_are_clipped_with_the_loss_scale(scaled: bool) -> None:
    torch.manual_seed(0)
    learns, other = (nn.Parameter(torch.randn(5, dtype=torch.float64)) for _ in range(2))
    before = learns.detach().clone()
    optimizer, precision = SGD([learns], lr=1.0), Precision("fp32", torch.device("cpu"))
    if scaled:
        precision._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    precision.backward((learns * 1e-3).sum() + (other * 2e-3).sum())
    precision.step(optimizer, [learns, other], clip=1.0)
    norm = (5 * 1e-3**2 + 5 * (2e-3 * 2**16) ** 2) ** 0.5
    torch.testing.assert_close(before - learns.detach(), torch.full_like(before, 1e-3 / norm))
    assert learns.grad is None
    assert other.grad is None


def test_nothing_is_scaled_where_all_that_is_clipped_learns() -> None:
    learns = nn.Parameter(torch.zeros(4))
    optimizer, precision = SGD([learns], lr=1.0), Precision("fp32", torch.device("cpu"))
    precision.backward((learns * 3.0).sum())
    precision.step(optimizer, [learns], clip=3.0)
    torch.testing.assert_close(learns.detach(), torch.full((4,), -1.5))


def test_released_stage_1_gives_gradients_to_what_does_not_learn(tiny_run: Callable[..., Any]) -> None:
    method, inputs = tiny_run("semi", released={"stage1_clips_scaled_gradients": True})
    stage, collated = inputs(1)
    learning = trainable(method, stage)
    assert not any("backbone" in name or "projection" in name for name in learning)
    method.losses(stage, collated, method.encoder.represent)["loss"].backward()
    assert all(p.grad is not None for p in learning.values())
    assert any(p.grad is not None for p in method.encoder.backbone.parameters())
    second, _ = inputs(2)
    assert second.clipped_with == ()
