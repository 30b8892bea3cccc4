"""Replaced-token detection: which tokens to mask, which were replaced, and the loss of telling them apart."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def choose_masked(candidates: Tensor, rate: float) -> Tensor:
    """Choose at random, row by row, which tokens to mask.

    Of a row's n candidates ``rate * n`` are chosen. Where that is no whole number, chance decides between the two next
    to it so that the mean is right: of 5 tokens at a rate of 0.3, one in half of the rows and two in the other half.
    Random numbers come from the generator of the device the candidates are on.

    Args:
        candidates: (rows, length), true for tokens that may be masked.
        rate: from 0 to 1.

    Returns:
        (rows, length), true for the chosen.
    """
    lottery = torch.rand(candidates.shape, device=candidates.device).masked_fill(~candidates, 2.0)
    rounding = torch.rand(len(candidates), device=candidates.device)
    wanted = (rate * candidates.sum(1) + rounding).floor()  # (rows,)
    place = lottery.argsort(1).argsort(1)  # (rows, length): a token's place in its row's order of lots
    return (place < wanted.unsqueeze(1)) & candidates


def replaced_labels(original: Tensor, filled: Tensor) -> Tensor:
    """(rows, length): 1 where the filled-in token differs from the original one, 0 where it is the same."""
    return (original != filled).long()


def replaced_token_loss(logits: Tensor, labels: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy of telling replaced tokens from original ones, over real tokens only.

    Sum and number come apart, because the mean over several processes is not the mean of their means.

    Args:
        logits: (rows, length, 2), for original and for replaced.
        labels: (rows, length), from `replaced_labels`.
        real: (rows, length), true for tokens and false for padding.

    Returns:
        the sum over the real tokens, and how many there are; both scalars, in float32.
    """
    losses = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none")
    return (losses * real.flatten()).sum(), real.sum().float()
