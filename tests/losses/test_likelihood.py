"""Bits per dimension against scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from diffaug.losses.likelihood import bits_per_dimension


def test_a_linear_flow_gives_the_density_of_its_gaussian() -> None:
    """For z = A x the density of x is that of N(0, (A'A)^-1), which scipy knows without any change of variables."""
    rng = np.random.default_rng(0)
    a, x = rng.normal(size=(5, 5)), rng.normal(size=(7, 5))
    density = stats.multivariate_normal(mean=np.zeros(5), cov=np.linalg.inv(a.T @ a))
    log_det = torch.full((7,), float(np.linalg.slogdet(a)[1]))
    ours = bits_per_dimension(torch.from_numpy(x @ a.T).float(), log_det)
    assert float(ours) == pytest.approx(-density.logpdf(x).mean() / np.log(2) / 5, rel=1e-4)


def test_the_log_determinants_of_the_rows_count_each_with_its_own_row() -> None:
    z, log_det = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([3.0, -1.0])
    nats = [-stats.norm.logpdf([1.0, 2.0]).sum() - 3.0, -stats.norm.logpdf([0.0, 0.0]).sum() + 1.0]
    assert float(bits_per_dimension(z, log_det)) == pytest.approx(np.mean(nats) / (2 * np.log(2)), rel=1e-5)


def test_full_precision_whatever_comes_in() -> None:
    torch.manual_seed(0)
    z, log_det = torch.randn(4, 64).bfloat16(), torch.randn(4).bfloat16()
    assert torch.equal(bits_per_dimension(z, log_det), bits_per_dimension(z.float(), log_det.float()))
