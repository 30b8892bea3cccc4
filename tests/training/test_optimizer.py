"""The optimiser's steps against AdamW written out by hand, who decays, and the schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from diffaug.training.optimizer import build_optimizer, set_learning_rates, trainable


class ByHand:
    """Adam with decoupled weight decay, as BERT's own optimiser and transformers' AdamW compute it."""

    def __init__(self, value: Any, epsilon: float, decay: float, bias_correction: bool) -> None:
        self.value = value.astype(np.float64)
        self._epsilon, self._decay, self._bias_correction = epsilon, decay, bias_correction
        self._m, self._v, self._steps = np.zeros_like(self.value), np.zeros_like(self.value), 0

    def step(self, gradient: Any, rate: float) -> None:
        gradient = gradient.astype(np.float64)
        self._steps += 1
        self._m = 0.9 * self._m + 0.1 * gradient
        self._v = 0.999 * self._v + 0.001 * gradient**2
        m, v = self._m, self._v
        if self._bias_correction:
            m, v = m / (1 - 0.9**self._steps), v / (1 - 0.999**self._steps)
        self.value = self.value - rate * (m / (np.sqrt(v) + self._epsilon) + self._decay * self.value)


def first_stage(run: Any) -> tuple[Any, Any]:
    """The method of a recipe, and its stage 1, or 2 where it has no other."""
    method, inputs, _ = run
    stage, _ = inputs(2 if method.recipe.stage1 is None else 1)
    return method, stage


def is_exempt(name: str) -> bool:
    """By the names that sentence-transformers exempts."""
    return any(part in name for part in ("bias", "LayerNorm.bias", "LayerNorm.weight"))


@pytest.mark.parametrize(
    ("recipe", "changes", "epsilon", "decay", "correction"),
    [
        ("sbert", (), 1e-6, 0.01, False),
        ("consert-unsup", (), 1e-6, 0.01, False),
        ("simcse-sup", (), 1e-8, 0.0, True),
        ("simcse-sup", ("stage2.weight_decay=0.1", "loop.adam_epsilon=1e-3"), 1e-3, 0.1, True),
    ],
)
def test_steps_are_those_of_adam_by_hand(
    recipe_run: Callable[..., Any],
    recipe: str,
    changes: tuple[str, ...],
    epsilon: float,
    decay: float,
    correction: bool,
) -> None:
    method, stage = first_stage(recipe_run(recipe, *changes))
    stage = replace(stage, learning_rates=dict.fromkeys(stage.learning_rates, 1e-2), schedule_steps=10, warmup=0.3)
    names = trainable(method, stage)
    optimizer = build_optimizer(method, stage)
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in names.values()}
    hands = {
        name: ByHand(p.detach().numpy(), epsilon, 0.0 if is_exempt(name) else decay, correction)
        for name, p in names.items()
    }
    random = torch.Generator().manual_seed(0)
    for step, factor in enumerate([1 / 3, 2 / 3, 1, 1, 6 / 7, 5 / 7]):
        assert set_learning_rates(optimizer, stage, step) == pytest.approx(factor)
        for name, parameter in names.items():
            # From far below the epsilons to far above them.
            scales = 10 ** torch.empty(parameter.shape).uniform_(-8, 0, generator=random)
            parameter.grad = scales * torch.randn(parameter.shape, generator=random)
            hands[name].step(parameter.grad.numpy(), 1e-2 * factor)
        optimizer.step()
    assert any(is_exempt(name) for name in names)
    for name, parameter in names.items():
        np.testing.assert_allclose(parameter.detach().numpy(), hands[name].value, rtol=1e-4, atol=2e-6, err_msg=name)


def test_without_decay_a_role_is_one_group(recipe_run: Callable[..., Any]) -> None:
    method, stage = first_stage(recipe_run("simcse-sup"))
    assert [group["role"] for group in build_optimizer(method, stage).param_groups] == list(stage.learning_rates)


def test_all_of_a_flow_decays_at_a_constant_rate(recipe_run: Callable[..., Any]) -> None:
    method, stage = first_stage(recipe_run("bert-flow-nli"))
    stage = replace(stage, learning_rates={"flow": 1e-2})
    names = trainable(method, stage)
    assert any(name.endswith(".bias") for name in names)
    for parameter in names.values():
        torch.nn.init.normal_(parameter)  # what is zero cannot decay
    optimizer = build_optimizer(method, stage)
    hands = {name: ByHand(p.detach().numpy(), 1e-6, 0.01, bias_correction=False) for name, p in names.items()}
    for step in range(4):
        assert set_learning_rates(optimizer, stage, step) == 1.0
        for name, parameter in names.items():
            parameter.grad = torch.full_like(parameter, 1e-5)
            hands[name].step(parameter.grad.numpy(), 1e-2)
        optimizer.step()
    assert set_learning_rates(optimizer, stage, stage.schedule_steps) == 1.0
    for name, parameter in names.items():
        np.testing.assert_allclose(parameter.detach().numpy(), hands[name].value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_constant_rate_may_warm_up(recipe_run: Callable[..., Any]) -> None:
    method, stage = first_stage(recipe_run("simcse-sup", "stage2.schedule=constant", "stage2.warmup=0.4"))
    stage = replace(stage, schedule_steps=5)
    optimizer = build_optimizer(method, stage)
    assert [set_learning_rates(optimizer, stage, step) for step in range(5)] == [0.5, 1, 1, 1, 1]
