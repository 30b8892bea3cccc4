"""The measures against their definitions, pair by pair."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from diffaug.losses import metrics


def sample(rows: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(rows, 6, generator=generator, dtype=torch.float64) + 0.5
    return first, first + 0.3 * torch.randn(rows, 6, generator=generator, dtype=torch.float64)


def unit(vectors: torch.Tensor) -> np.ndarray:
    array = vectors.numpy()
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def test_alignment() -> None:
    first, second = sample()
    expected = np.mean([sum((a - b) ** 2) for a, b in zip(unit(first), unit(second), strict=True)])
    assert float(metrics.alignment(first, second)) == pytest.approx(expected)
    assert float(metrics.alignment(first, first * 3)) == pytest.approx(0, abs=1e-12)
    assert float(metrics.alignment(first, -first)) == pytest.approx(4)


@pytest.mark.parametrize("block", [2_048, 7])
def test_uniformity(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_BLOCK", block)
    vectors = sample()[0]
    kernel = [np.exp(-2 * sum((a - b) ** 2)) for a, b in combinations(unit(vectors), 2)]
    assert float(metrics.uniformity(vectors)) == pytest.approx(np.log(np.mean(kernel)))
    assert float(metrics.uniformity(vectors[:1].repeat(9, 1))) == pytest.approx(0, abs=1e-6)


def test_uniformity_has_gradients_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_BLOCK", 3)
    vectors = sample(8)[0].requires_grad_()
    assert torch.autograd.gradcheck(metrics.uniformity, vectors)


def test_anisotropy() -> None:
    vectors = sample()[0]
    expected = np.mean([a @ b for a, b in combinations(unit(vectors), 2)])
    assert float(metrics.anisotropy(vectors)) == pytest.approx(expected)


def test_divergence_keeps_the_lengths() -> None:
    first, second = sample()
    expected = np.mean(np.linalg.norm((first - second).numpy(), axis=1))
    assert float(metrics.divergence(first, second)) == pytest.approx(expected)
    assert float(metrics.divergence(2 * first, 2 * second)) == pytest.approx(2 * expected)
