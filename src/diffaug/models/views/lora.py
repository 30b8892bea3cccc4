"""Views by LoRA (Hu et al., 2021): low-rank updates of the query and value projections.

h <- h + s x W_down W_up, where x is what the projection is given and h what it makes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffaug.errors import DiffaugError
from diffaug.models.config import LoraConfig
from diffaug.models.views.hooks import HookedViews, Update, weigh

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LowRank(Update):
    """The low-rank matrices of all views at one place: W_down (rank, inputs) and W_up (rank, outputs) a view."""

    def __init__(self, views: int, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.down = nn.Parameter(torch.empty(views, rank, inputs))
        # Zero, so that training starts from the backbone as it is. The views part by their random W_down.
        self.up = nn.Parameter(torch.zeros(views, rank, outputs))
        nn.init.uniform_(self.down, -(inputs**-0.5), inputs**-0.5)  # as a linear layer begins

    def forward(self, inputs: Tensor, output: Tensor, weights: Tensor) -> Tensor:
        inner = F.linear(inputs, self.down.flatten(0, 1))
        return weigh(inner, self.scale * weights) @ self.up.flatten(0, 1)


class Lora(HookedViews):
    """Low-rank updates of what every layer takes for queries and for values."""

    config: LoraConfig

    def __init__(self, config: LoraConfig, backbone: PreTrainedModel) -> None:
        if min(config.views, config.rank) < 1:
            raise DiffaugError(f"LoRA needs at least one view and a rank of at least one, not {config}")
        super().__init__(
            config.views,
            backbone,
            ("query", "value"),
            lambda place: LowRank(config.views, place.inputs, place.outputs, config.rank, config.scale),
        )
        self.config = config
