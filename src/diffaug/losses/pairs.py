"""Losses of pairs whose similarity is known: by a score, or as same and different."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cosent(first: Tensor, second: Tensor, scores: Tensor, temperature: float = 0.05) -> Tensor:
    """CoSENT: of any two pairs of the batch, the one with the higher score is to have the higher cosine.

    log(1 + sum exp((cos_low - cos_high) / temperature)), over all two pairs with different scores.

    Args:
        first: (n, width), one sentence of each pair.
        second: (n, width), the other one.
        scores: (n,), on any increasing scale; only their order counts.
        temperature: what the cosines are divided by.

    Returns:
        a scalar; 0 if all scores are equal.
    """
    with torch.autocast(first.device.type, enabled=False):  # see info_nce
        return _ranking(F.cosine_similarity(first.float(), second.float(), dim=-1) / temperature, scores)


def angle(first: Tensor, second: Tensor, scores: Tensor, temperature: float = 0.05) -> Tensor:
    """AnglE: as `cosent`, but with the angle between complex vectors instead of the cosine.

    The first half of a vector is the real part, the second half the imaginary part. The similarity is the absolute sum
    of the real and imaginary parts of first / second, divided by the ratio of their lengths. It has a gradient where
    that of the cosine vanishes.

    Args:
        first: (n, width), of an even width.
        second: (n, width)
        scores: (n,)
        temperature: what the similarities are divided by.
    """
    with torch.autocast(first.device.type, enabled=False):
        a, b = (torch.complex(*vectors.float().chunk(2, dim=-1)) for vectors in (first, second))  # (n, width / 2)
        length_a, length_b = (z.abs().pow(2).sum(-1, keepdim=True).sqrt() for z in (a, b))  # (n, 1)
        quotient = a * b.conj() / (length_a * length_b)
        return _ranking((quotient.real + quotient.imag).sum(-1).abs() / temperature, scores)


def _ranking(similarities: Tensor, scores: Tensor) -> Tensor:
    """log(1 + sum exp(s_i - s_j)) over all i, j with a lower score of i than of j."""
    difference = similarities.unsqueeze(1) - similarities.unsqueeze(0)  # (n, n): i minus j
    wrong_order = scores.unsqueeze(1) < scores.unsqueeze(0)
    terms = difference.masked_fill(~wrong_order, -torch.inf).flatten()
    return torch.cat([terms.new_zeros(1), terms]).logsumexp(0)
