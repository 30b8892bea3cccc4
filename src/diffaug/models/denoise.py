"""Denoising at inference: what a template says by itself, kept as a table and taken off every vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diffaug.models.config import DenoiseConfig
from diffaug.models.rows import Rows


class Denoise(nn.Module):
    """A vector for each length a sentence may have.

    The bare template's state depends on the length of the sentence it stands for and on nothing else, so that it need
    not be computed again and again.
    """

    def __init__(self, config: DenoiseConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Parameter(torch.zeros(config.lengths, width), requires_grad=False)

    def forward(self, vectors: Tensor, rows: Rows) -> Tensor:
        """(rows, width): the vectors without their template's share."""
        mask = torch.ones_like(rows.input_ids) if rows.attention_mask is None else rows.attention_mask
        lengths = mask.sum(1) - self.config.template_tokens
        return vectors - self.table[lengths]
