"""Denoising at inference: what a template says by itself, kept as a table and taken off every vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffaug.errors import DiffaugError
from diffaug.models.backbone import position_limit
from diffaug.models.config import DenoiseConfig, ModelConfig
from diffaug.models.rows import Rows
from diffaug.models.template import Template


def denoise_config(
    config: ModelConfig, backbone: PreTrainedModel, template: Template, *, behind_head: bool
) -> DenoiseConfig:
    """Settings of a table for every length of a sentence that the backbone has positions for.

    Raises:
        DiffaugError: the backbone has no limit on the length of a row.
    """
    positions = position_limit(backbone)
    if positions is None:
        raise DiffaugError(
            f"a '{backbone.config.model_type}' backbone has no limit on the length of a row, which denoising at "
            "inference needs; set model.denoise=false"
        )
    if config.prefix is not None:
        positions -= config.prefix.total
    return DenoiseConfig(
        lengths=max(1, positions - len(template) + 1), template_tokens=len(template), behind_head=behind_head
    )


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
