"""Initial weights of new layers, as transformers' `init_weights` sets them.

The releases of SimCSE, PromptBERT, DiffCSE and DiffAug build their heads, classifiers and prefixes inside a
`PreTrainedModel` and call `init_weights`, so these layers start like the layers of the language model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULT_STD = 0.02


def initializer_range(backbone: PreTrainedModel) -> float:
    """Standard deviation of the backbone's own initial weights."""
    return float(getattr(backbone.config, "initializer_range", DEFAULT_STD))


@torch.no_grad()
def init_normal(module: nn.Module, std: float) -> None:
    """Set weights of linear layers and embeddings to N(0, std) and biases to zero. Norms stay as they are."""
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Embedding)):
            layer.weight.normal_(0.0, std)
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                layer.bias.zero_()
