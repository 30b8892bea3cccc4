"""Views by prefix: each view reads a sentence behind learned keys and values of its own.

In training the keys and values come out of a small matrix through an MLP, which makes learning stable
(`ReparametrisedPrefix`); a trained prefix is folded to plain keys and values (`FoldedPrefix`), which is what is saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffaug.models.attention import AttentionShape, PrefixStates
from diffaug.models.config import PrefixConfig
from diffaug.models.initialise import DEFAULT_STD, init_normal
from diffaug.models.packed import Packed
from diffaug.models.rows import Rows
from diffaug.models.views.base import Views


class Prefix(Views):
    """What both forms share: `states` gives a forward its prefix."""

    config: PrefixConfig
    packs = True

    def __init__(self, config: PrefixConfig, shape: AttentionShape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape
        self._states: PrefixStates | None = None

    def begin(self, rows: Rows | Packed) -> dict[str, Any]:
        self._states = self.states(rows.views)
        return {"prefix": self._states}

    def end(self) -> None:
        assert self._states is not None, "begin comes first"
        states, self._states = self._states, None
        states.finish()

    def keys_and_values(self) -> Tensor:
        """(layers, 2, views, heads, length, head_dim)"""
        raise NotImplementedError

    @property
    def dropout_rate(self) -> float:
        """Dropout on the keys and values in this mode. Each row of a batch draws its own mask."""
        return 0.0

    def states(self, views: Tensor | None) -> PrefixStates:
        """The prefix for one forward.

        Args:
            views: (rows,), the view of each row: a row sees the vectors of its own view only. None: every row sees
                the vectors of all views, as at inference.
        """
        blocks = self.keys_and_values()
        if views is None:
            # (layers, 2, views, heads, length, d) -> (layers, 2, 1, heads, views * length, d), view 1 first
            blocks = blocks.transpose(2, 3).flatten(3, 4).unsqueeze(2)
        return PrefixStates(blocks, views, self.dropout_rate)


class ReparametrisedPrefix(Prefix):
    """P' (views * length, width) -> Linear -> Tanh -> Linear -> a key and a value for each layer, with dropout.

    Weights start as N(0, ``std``) and biases at zero, as transformers initialises new layers. The prefix then starts
    far shorter than the model's own keys and values, which the paper's kappa measures. torch's defaults would make it
    forty times as long.

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
