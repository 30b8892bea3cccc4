"""Adapter views (Houlsby et al., 2019): small bottleneck layers after attention and after the feed-forward block.

h <- h + f(h W_down + b_down) W_up + b_up, with GELU as f and biases as in the authors' code. The paper's formula omits
the biases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffaug.config import Recipe
from diffaug.errors import DiffaugError
from diffaug.models.config import AdapterConfig
from diffaug.models.views.base import view_count
from diffaug.models.views.hooks import HookedViews, Update, scale_views

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Self


class Bottleneck(Update):
    """The adapters of all views at one layer.

    Per view, W_down and W_up are both stored as (bottleneck, size), so that the matrices of all views can be viewed as
    one matrix without a copy.
    """

    def __init__(self, views: int, size: int, bottleneck: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(views, bottleneck, size))
        self.down_bias = nn.Parameter(torch.zeros(views, bottleneck))
        # Zero, so that training starts from the unchanged backbone. The views diverge through their random W_down.
        self.up = nn.Parameter(torch.zeros(views, bottleneck, size))
        self.up_bias = nn.Parameter(torch.zeros(views, size))
        nn.init.uniform_(self.down, -(size**-0.5), size**-0.5)  # torch's default for a linear layer

    def forward(self, inputs: Tensor, output: Tensor, weights: Tensor) -> Tensor:
        inner = F.gelu(F.linear(output, self.down.flatten(0, 1), self.down_bias.flatten()))
        bias = weights.to(self.up_bias.dtype) @ self.up_bias  # (sequences or 1, size)
        return scale_views(inner, weights) @ self.up.flatten(0, 1) + bias.unsqueeze(1)


class Adapter(HookedViews):
    """Adapters after the two output projections of every layer, before the residual connection."""

    config: AdapterConfig

    def __init__(self, config: AdapterConfig, backbone: PreTrainedModel) -> None:
        if min(config.views, config.bottleneck) < 1:
            raise DiffaugError(f"an adapter needs at least one view and a bottleneck of at least 1, got {config}")
        super().__init__(
            config.views,
            backbone,
            ("attention", "feed_forward"),
            lambda target: Bottleneck(config.views, target.outputs, config.bottleneck),
        )
        self.config = config

    @classmethod
    def from_recipe(cls, recipe: Recipe, backbone: PreTrainedModel) -> Self:
        return cls(AdapterConfig(view_count(recipe), recipe.views.bottleneck), backbone)
