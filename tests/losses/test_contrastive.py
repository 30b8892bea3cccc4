"""InfoNCE and NT-Xent against computations by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffaug.losses.contrastive import info_nce, nt_xent
from diffaug.losses.nli import pair_features


def by_hand(z1: np.ndarray, z2: np.ndarray, z3: np.ndarray | None, temperature: float) -> float:
    """The definition, one anchor at a time."""

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))

    losses = []
    for i in range(len(z1)):
        terms = [np.exp(cosine(z1[i], z2[j]) / temperature) for j in range(len(z2))]
        if z3 is not None:
            terms += [np.exp(cosine(z1[i], z3[j]) / temperature) for j in range(len(z3))]
        losses.append(-np.log(terms[i] / sum(terms)))
    return float(np.mean(losses))


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_info_nce_is_the_definition(hard: bool, temperature: float) -> None:
    rng = np.random.default_rng(0)
    z1, z2, z3 = rng.normal(size=(3, 5, 7))
    negatives = torch.from_numpy(z3).float() if hard else None
    ours = info_nce(torch.from_numpy(z1).float(), torch.from_numpy(z2).float(), negatives, temperature)
    assert float(ours) == pytest.approx(by_hand(z1, z2, z3 if hard else None, temperature), rel=1e-4)


def test_info_nce_keeps_full_precision_under_autocast() -> None:
    torch.manual_seed(0)
    z1, z2 = torch.randn(2, 8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = info_nce(z1, z2)
    assert torch.equal(inside, info_nce(z1, z2))


def nt_xent_by_hand(z1: np.ndarray, z2: np.ndarray, temperature: float) -> float:
    """The definition: for each row of each view, the other view's rows and its own view's others."""

    def similarity(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) / temperature))

    directions = []
    for own, other in ((z1, z2), (z2, z1)):
        losses = []
        for i in range(len(own)):
            across = [similarity(own[i], other[j]) for j in range(len(other))]
            within = [similarity(own[i], own[j]) for j in range(len(own)) if j != i]
            losses.append(-np.log(across[i] / (sum(across) + sum(within))))
        directions.append(np.mean(losses))
    return float(np.mean(directions))


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_nt_xent_is_the_definition(n: int, temperature: float) -> None:
    z1, z2 = np.random.default_rng(n).normal(size=(2, n, 7))
    ours = nt_xent(torch.from_numpy(z1), torch.from_numpy(z2), temperature=temperature)
    assert float(ours) == pytest.approx(nt_xent_by_hand(z1, z2, temperature), rel=1e-5, abs=1e-6)


def test_nt_xent_has_the_gradient_of_the_definition() -> None:
    """By finite differences of the computation by hand, in double precision."""
    z1, z2 = np.random.default_rng(1).normal(size=(2, 4, 3))
    tensors = [torch.from_numpy(z).requires_grad_() for z in (z1, z2)]
    nt_xent(*tensors, temperature=0.1).backward()
    step = 1e-5
    for array, tensor in zip((z1, z2), tensors, strict=True):
        assert tensor.grad is not None
        differences = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            kept, around = array[place], []
            for sign in (1, -1):
                array[place] = kept + sign * step
                around.append(nt_xent_by_hand(z1, z2, 0.1))
            array[place] = kept
            differences[place] = (around[0] - around[1]) / (2 * step)
        np.testing.assert_allclose(tensor.grad.numpy(), differences, rtol=1e-4, atol=1e-5)


def test_nt_xent_keeps_full_precision_under_autocast() -> None:
    torch.manual_seed(0)
    z1, z2 = torch.randn(2, 8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = nt_xent(z1, z2)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, nt_xent(z1, z2))


def test_pair_features_by_hand() -> None:
    u, v = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 1.0]])
    assert pair_features(u, v).tolist() == [[1.0, -2.0, 3.0, 1.0, 2.0, 3.0]]
