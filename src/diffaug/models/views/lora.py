"""LoRA views (Hu et al., 2021): low-rank updates of the query and value projections.

h <- h + s x W_down W_up, where x is the input of the projection and h its output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffaug.config import Recipe
from diffaug.errors import DiffaugError
from diffaug.models.config import LoraConfig
from diffaug.models.views.base import view_count
from diffaug.models.views.hooks import HookedViews, Update, scale_views

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Self


class LowRank(Update):
    """The low-rank matrices of all views at one layer: per view, W_down (rank, inputs) and W_up (rank, outputs)."""

    def __init__(self, views: int, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.down = nn.Parameter(torch.empty(views, rank, inputs))
        # Zero, so that training starts from the unchanged backbone. The views diverge through their random W_down.
        self.up = nn.Parameter(torch.zeros(views, rank, outputs))
        nn.init.uniform_(self.down, -(inputs**-0.5), inputs**-0.5)  # torch's default for a linear layer

    def forward(self, inputs: Tensor, output: Tensor, weights: Tensor) -> Tensor:
        inner = F.linear(inputs, self.down.flatten(0, 1))
        return scale_views(inner, self.scale * weights) @ self.up.flatten(0, 1)


class Lora(HookedViews):
    """Low-rank updates of the queries and values of every layer."""

    config: LoraConfig

    def __init__(self, config: LoraConfig, backbone: PreTrainedModel) -> None:
        if min(config.views, config.rank) < 1:
            raise DiffaugError(f"LoRA needs at least one view and a rank of at least 1, got {config}")
        super().__init__(
            config.views,
            backbone,
            ("query", "value"),
            lambda target: LowRank(config.views, target.inputs, target.outputs, config.rank, config.scale),
        )
        self.config = config

    @classmethod
    def from_recipe(cls, recipe: Recipe, backbone: PreTrainedModel) -> Self:
        return cls(LoraConfig(view_count(recipe), recipe.views.bottleneck, recipe.views.scale), backbone)
