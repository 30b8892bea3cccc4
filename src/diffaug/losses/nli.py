"""Classifying the relation of two sentences from their vectors."""

from __future__ import annotations

import torch
from torch import Tensor


def pair_features(u: Tensor, v: Tensor) -> Tensor:
    """[u; v; |u - v|], what a classifier of sentence pairs reads: (n, width) twice -> (n, 3 * width)."""
    return torch.cat([u, v, (u - v).abs()], dim=-1)
