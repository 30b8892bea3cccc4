"""Denoising at inference: the vectors of the bare template, stored as a table and subtracted from every vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from diffaug.errors import DiffaugError
from diffaug.models.backbone import position_limit
from diffaug.models.batch import PaddedBatch
from diffaug.models.config import DenoiseConfig, ModelConfig
from diffaug.models.template import Template

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def denoise_config(
    config: ModelConfig, backbone: PreTrainedModel, template: Template, *, behind_head: bool
) -> DenoiseConfig:
    """The settings of a table for every sentence length that the backbone has positions for.

    Raises:
        DiffaugError: the backbone has no maximum length.
    """
    positions = position_limit(backbone)
    if positions is None:
        raise DiffaugError(
            f"a '{backbone.config.model_type}' backbone has no maximum length, which denoising at inference needs; set "
            "model.denoise=false"
        )
    if config.prefix is not None:
        positions -= config.prefix.total
    return DenoiseConfig(
        lengths=max(1, positions - len(template) + 1), template_tokens=len(template), behind_head=behind_head
    )


class Denoise(nn.Module):
    """One vector per sentence length.

    The vector of the bare template depends only on the length of the sentence it stands for, so that it is computed
    once and stored.
    """

    def __init__(self, config: DenoiseConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Parameter(torch.zeros(config.lengths, width), requires_grad=False)

    def forward(self, vectors: Tensor, batch: PaddedBatch) -> Tensor:
        """(sequences, width): the vectors minus those of their bare templates."""
        lengths = batch.lengths() - self.config.template_tokens
        return vectors - self.table[lengths]
