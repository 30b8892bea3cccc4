"""Prefix views: each view has learned keys and values, which every sequence of the view attends to.

In training an MLP computes the keys and values from a small matrix, which makes training stable
(`ReparametrisedPrefix`). A trained prefix is folded to plain keys and values (`FoldedPrefix`), which are saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffaug.config import Recipe
from diffaug.models.attention import AttentionShape, PrefixAttention, attention_shape
from diffaug.models.batch import PackedBatch, TokenBatch
from diffaug.models.config import PrefixConfig
from diffaug.models.initialise import DEFAULT_STD, init_normal, initializer_range
from diffaug.models.packed_attention import PackedAttention
from diffaug.models.views.base import Views, view_count

if TYPE_CHECKING:
    from typing_extensions import Self


class Prefix(Views):
    """The common part of both forms."""

    config: PrefixConfig
    supports_packed = True
    supports_pruning = True

    def __init__(self, config: PrefixConfig, shape: AttentionShape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    @contextmanager
    def applied(self, batch: TokenBatch) -> Iterator[dict[str, Any]]:
        prefix = self.attention(batch.view_ids)
        if isinstance(batch, PackedBatch):
            packed = PackedAttention(batch, len(prefix.blocks), prefix.blocks, prefix.dropout)
            yield {"packed": packed}
            packed.finish()
        else:
            yield {"prefix": prefix}
            prefix.finish()

    def prefix_length(self, by_view: bool) -> int:
        return self.config.length if by_view else self.config.total

    def keys_and_values(self) -> Tensor:
        """(layers, 2, views, heads, length, head_dim)"""
        raise NotImplementedError

    @property
    def dropout_rate(self) -> float:
        """Dropout on the keys and values in the current mode. Each sequence draws its own mask."""
        return 0.0

    def attention(self, view_ids: Tensor | None) -> PrefixAttention:
        """The prefix for one forward.

        Args:
            view_ids: (sequences,), the view of each sequence, which attends to the keys of this view only. None:
                every sequence attends to the keys of all views, as at inference.
        """
        blocks = self.keys_and_values()
        if view_ids is None:
            # (layers, 2, views, heads, length, d) -> (layers, 2, 1, heads, views * length, d), view 1 first
            blocks = blocks.transpose(2, 3).flatten(3, 4).unsqueeze(2)
        return PrefixAttention(blocks, view_ids, self.dropout_rate)


class ReparametrisedPrefix(Prefix):
    """P' (views * length, width) -> Linear -> Tanh -> Linear -> a key and a value for each layer, with dropout.

    Weights are initialised to N(0, ``std``) and biases to zero, as transformers initialises new layers. The prefix then
    has a far smaller norm than the model's own keys and values, which the paper's kappa measures. With torch's
    defaults the norm would be forty times as large.

    Args:
        config: number of views, and vectors per view.
        shape: layers and heads of the backbone's attention.
        dropout: on the keys and values while they learn.
        std: standard deviation of the initial weights; BERT's `initializer_range` is 0.02.
    """

    def __init__(
        self, config: PrefixConfig, shape: AttentionShape, dropout: float = 0.1, std: float = DEFAULT_STD
    ) -> None:
        super().__init__(config, shape)
        width = shape.heads * shape.head_dim
        self.embedding = nn.Embedding(config.total, width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, shape.layers * 2 * width))
        self.dropout = nn.Dropout(dropout)
        init_normal(self, std)

    @classmethod
    def from_recipe(cls, recipe: Recipe, backbone: PreTrainedModel) -> Self:
        config = PrefixConfig(view_count(recipe), recipe.views.length)
        return cls(config, attention_shape(backbone), recipe.views.dropout, initializer_range(backbone))

    @property
    def dropout_rate(self) -> float:
        return self.dropout.p if self.training else 0.0

    def keys_and_values(self) -> Tensor:
        flat = self.mlp(self.embedding.weight)  # (views * length, layers * 2 * width)
        return flat.view(
            self.config.views,
            self.config.length,
            self.shape.layers,
            2,
            self.shape.heads,
            self.shape.head_dim,
        ).permute(2, 3, 0, 4, 1, 5)

    @torch.no_grad()
    def fold(self) -> FoldedPrefix:
        """The same prefix as plain keys and values, without the MLP and the dropout."""
        folded = FoldedPrefix(self.config, self.shape)
        folded.blocks.data = self.keys_and_values().detach().clone().contiguous()
        return folded.train(self.training)


class FoldedPrefix(Prefix):
    """Plain keys and values."""

    def __init__(self, config: PrefixConfig, shape: AttentionShape) -> None:
        super().__init__(config, shape)
        self.blocks = nn.Parameter(
            torch.zeros(shape.layers, 2, config.views, shape.heads, config.length, shape.head_dim)
        )

    def keys_and_values(self) -> Tensor:
        return self.blocks
