"""InfoNCE against a computation by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffaug.objectives.contrastive import info_nce
from diffaug.objectives.nli import pair_features


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


def test_pair_features_by_hand() -> None:
    u, v = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 1.0]])
    assert pair_features(u, v).tolist() == [[1.0, -2.0, 3.0, 1.0, 2.0, 3.0]]
