"""The encoder: backbone, prefix, pooling and head as one module that turns `Rows` into vectors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffaug.augment.prefix import Prefix
from diffaug.models.attention import PrefixStates
from diffaug.models.backbone import first_position
from diffaug.models.config import ModelConfig
from diffaug.models.heads import build_head
from diffaug.models.pooling import needs_all_layers, pool
from diffaug.models.rows import Rows


class Encoder(nn.Module):
    """Token rows in, one vector a row out.

    Args:
        backbone: any transformers encoder; with a prefix, one that `diffaug.models.attention` accepts.
        config: how its states become a vector.
        prefix: the views' prefix, present exactly if ``config.prefix`` is.
    """

    def __init__(self, backbone: PreTrainedModel, config: ModelConfig, prefix: Prefix | None = None) -> None:
        super().__init__()
        if (prefix is None) != (config.prefix is None) or (prefix is not None and prefix.config != config.prefix):
            raise ValueError("the prefix module and the prefix settings do not belong to each other")
        self.backbone = backbone
        self.prefix = prefix
        self.head = build_head(config.head)
        self.config = config
        self._first_position = first_position(backbone)

    @property
    def width(self) -> int:
        """The length of a vector."""
        return self.config.head[-1].outputs if self.config.head else int(self.backbone.config.hidden_size)

    def forward(self, rows: Rows) -> Tensor:
        """(rows, width): pooled, through the head, and scaled to length one if the model does so."""
        vectors = self.head(self.represent(rows))
        return F.normalize(vectors, dim=-1) if self.config.normalize else vectors

    def represent(self, rows: Rows, states: PrefixStates | None = None) -> Tensor:
        """(rows, hidden size): the pooled states, before any head.

        Args:
            rows: the tokens.
            states: what the attention layers are given as prefix, if not the encoder's own for these rows.
        """
        extra: dict[str, Any] = {}
        if states is None and self.prefix is not None:
            states = self.prefix.states(rows.views)
        if states is not None:
            extra["prefix"] = states
        if self.prefix is not None or rows.gap is not None:
            extra["position_ids"] = self._positions(rows)
        if needs_all_layers(self.config.pooling):
            extra["output_hidden_states"] = True
        out = self.backbone(input_ids=rows.input_ids, attention_mask=rows.attention_mask, **extra)
        if states is not None:
            states.finish()
        return pool(self.config.pooling, rows, out.last_hidden_state, out.get("hidden_states"))

    def _positions(self, rows: Rows) -> Tensor:
        """(rows or 1, length): tokens stand behind all vectors of all views, whichever of them a row sees."""
        offset = self._first_position + (self.config.prefix.total if self.config.prefix else 0)
        positions = torch.arange(rows.input_ids.shape[1], device=rows.input_ids.device).unsqueeze(0)
        if rows.gap is not None:
            positions = positions + (positions >= rows.slot) * rows.gap.unsqueeze(1)
            if rows.attention_mask is not None:
                # A bare template padded to a long batch would move its padding beyond the last position.
                positions = positions * rows.attention_mask
        return positions + offset
