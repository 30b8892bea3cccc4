"""What is put off until a layer norm asks for it, in models that no library has: against plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from triton_device import DEVICE, DTYPE, INTERPRETED

from diffaug.kernels import layer_norm, linear, residual_fusion
from diffaug.kernels.fused_operations import FusedOperations

TOLERANCE = 1e-4 if INTERPRETED else 5e-2
WIDTH = 16


class Parts(nn.Module):
    """What the models below are put together from; dropout drops nothing."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH, bias=bias), nn.Linear(WIDTH, WIDTH, bias=bias)
        self.dropout, self.norm, self.last = nn.Dropout(1e-12), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def end(self, states: Tensor, past: Tensor) -> Tensor:
        found: Tensor = self.norm(self.dropout(states) + past)
        return found


def usual(parts: Parts, x: Tensor) -> Tensor:
    return parts.end(parts.second(parts.first(x).relu()), x)


def twice_in_a_row(parts: Parts, x: Tensor) -> Tensor:
    x = parts.end(parts.first(x), x)
    return parts.end(parts.first(x), x)


def once_elsewhere(parts: Parts, x: Tensor) -> Tensor:
    """The same layer, then without dropout behind it, then as one of two that read the same states."""
    x = parts.end(parts.first(x), x)
    x = parts.norm(parts.first(x) + x)
    return parts.end(parts.first(x), x) * parts.second(x)


def one_of_two_readers_of_the_same(parts: Parts, x: Tensor) -> Tensor:
    return parts.second(x) * parts.end(parts.first(x), x)


def readers_together(parts: Parts, x: Tensor) -> Tensor:
    return parts.end(parts.first(parts.first(x) * parts.second(x)), x)


def read_twice(parts: Parts, x: Tensor) -> Tensor:
    inner = parts.first(x)
    return parts.end(inner, x) * inner


def two_dropped(parts: Parts, x: Tensor) -> Tensor:
    return parts.end(parts.first(x), parts.dropout(parts.second(x)))


def past_is_read_again(parts: Parts, x: Tensor) -> Tensor:
    x = parts.last(x)
    return parts.end(parts.second(parts.first(x).relu()), x) * x


def past_goes_past_again(parts: Parts, x: Tensor) -> Tensor:
    return parts.end(parts.second(parts.end(parts.first(x), x)), x)


# With how many sums that are postponed, how many biases, and how many linear layers that read what goes past.
MODELS: dict[Callable[[Parts, Tensor], Tensor], tuple[int, int, int]] = {
    usual: (1, 1, 1),
    twice_in_a_row: (2, 2, 2),
    once_elsewhere: (2, 2, 2),
    one_of_two_readers_of_the_same: (1, 1, 1),
    readers_together: (1, 1, 1),
    read_twice: (1, 0, 1),
    two_dropped: (1, 1, 0),
    past_is_read_again: (1, 1, 1),
    past_goes_past_again: (2, 2, 1),
}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("kind", ["all learn", "biases frozen", "weights frozen", "no biases"])
def test_results_and_gradients_are_torchs(
    model: Callable[[Parts, Tensor], Tensor], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if INTERPRETED:
        monkeypatch.setattr(layer_norm, "_PROGRAMS", 8)
        monkeypatch.setattr(FusedOperations, "applies", lambda *_: True)
    torch.manual_seed(0)
    parts = Parts(bias=kind != "no biases").to(DEVICE, DTYPE).train()
    for name, parameter in parts.named_parameters():
        nn.init.normal_(parameter)
        parameter.requires_grad_({"biases frozen": "weight", "weights frozen": "bias"}.get(kind, "") in name)
    x = torch.randn(1, 9, WIDTH, device=DEVICE, dtype=DTYPE, requires_grad=True)
    leaves = {"x": x} | {name: p for name, p in parts.named_parameters() if p.requires_grad}
    wanted = model(parts, x)
    gradient = torch.randn_like(wanted)
    of_torch = torch.autograd.grad(wanted, list(leaves.values()), gradient, allow_unused=True)

    offsets: list[bool] = []
    passing: list[bool] = []
    dropped_norm, product = residual_fusion.dropped_norm, linear.linear

    def fused(states: Tensor, offset: Tensor | None, *others: Any) -> Tensor:
        offsets.append(offset is not None)
        return dropped_norm(states, offset, *others)

    def watched(states: Tensor, layers: Any, ones: Tensor | None, passes: bool) -> tuple[Tensor, ...]:
        passing.append(passes)
        return product(states, layers, ones, passes)

    monkeypatch.setattr(residual_fusion, "dropped_norm", fused)
    monkeypatch.setattr(linear, "linear", watched)
    sums, biases, readers = MODELS[model]
    quick = FusedOperations()
    for forward in range(3):
        offsets.clear()
        passing.clear()
        with quick:
            found = model(parts, x)
        if forward:
            assert (len(offsets), sum(passing)) == (sums, readers)
            assert sum(offsets) == (0 if kind == "no biases" else biases)
        torch.testing.assert_close(found, wanted, rtol=TOLERANCE, atol=10 * TOLERANCE)
        ours = torch.autograd.grad(found, list(leaves.values()), gradient, allow_unused=True)
        for mine, reference in zip(ours, of_torch, strict=True):
            torch.testing.assert_close(mine, reference, rtol=TOLERANCE, atol=100 * TOLERANCE)
