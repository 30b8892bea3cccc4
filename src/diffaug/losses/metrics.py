"""Measures of how vectors lie in space. All take float tensors (n, width) and give a tensor of one number.

Alignment and uniformity are Wang & Isola's (2020), as SimCSE uses them; anisotropy is the mean cosine of random pairs,
taken here over all pairs instead of a sample; divergence is the delta of the DiffAug paper.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows compared with all others at a time: n * 2048 similarities in memory instead of n * n.
_BLOCK = 2_048


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """How close positive pairs are: E ||f(x) - f(x+)||^2 on the unit sphere, from 0 to 4. Lower is better.

    Args:
        first, second: (n, width), row i of both being a positive pair. Their lengths do not matter.
    """
    return (F.normalize(first, dim=-1) - F.normalize(second, dim=-1)).pow(2).sum(-1).mean()


def uniformity(vectors: Tensor, t: float = 2.0) -> Tensor:
    """How evenly vectors cover the sphere: log E exp(-t ||f(x) - f(y)||^2) over pairs of different rows.

    From 0, when all are equal, down to about -2t. Lower is better. Lengths do not matter.
    """
    unit = F.normalize(vectors, dim=-1)
    n = len(unit)
    total = unit.new_zeros(())
    for start in range(0, n, _BLOCK):
        block, rest = unit[start : start + _BLOCK], unit[start + _BLOCK :]
        total = total + torch.pdist(block).pow(2).mul(-t).exp().sum()
        # Between unit vectors ||x - y||^2 is 2 - 2 x.y
        total = total + (block @ rest.T - 1).mul(2 * t).exp().sum()
    return (total / (n * (n - 1) / 2)).log()


def anisotropy(vectors: Tensor) -> Tensor:
    """Mean cosine of all pairs of different rows: near 1, everything points the same way. Lengths do not matter.

    Since sum_ij u_i.u_j = ||sum_i u_i||^2, no pair is ever formed: (||sum u||^2 - n) / (n (n - 1)).
    """
    unit = F.normalize(vectors, dim=-1)
    n = len(unit)
    return (unit.sum(0).pow(2).sum() - n) / (n * (n - 1))


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """delta: E ||f(x; view 1) - f(x; view 2)||, the mean distance of the two views of a sentence, lengths as they are.

    Args:
        first, second: (n, width), row i of both being the same sentence under the two views.
    """
    return (first - second).norm(dim=-1).mean()
