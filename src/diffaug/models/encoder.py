"""The encoder: backbone, view modules, pooling, flow and head as one module that turns `Rows` into vectors."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffaug.models.backbone import first_position
from diffaug.models.config import ModelConfig, Pooling
from diffaug.models.denoise import Denoise
from diffaug.models.flow import Flow
from diffaug.models.heads import build_head
from diffaug.models.layer_pruning import OnlyPooled
from diffaug.models.packed import Packed, PackedStates, pack, pool_packed
from diffaug.models.pooling import mix_layers, needs_all_layers, pool
from diffaug.models.rows import Rows
from diffaug.models.views.base import Views
from diffaug.models.views.prefix import Prefix


class Encoder(nn.Module):
    """Token rows in, one vector a row out.

    Args:
        backbone: any transformers encoder; with a prefix, one that `diffaug.models.attention` accepts.
        config: how its states become a vector.
        views: the views' module: a learned one exactly if ``config.views`` says so, or one for training alone.
    """

    def __init__(self, backbone: PreTrainedModel, config: ModelConfig, views: Views | None = None) -> None:
        super().__init__()
        if (None if views is None else views.config) != config.views:
            raise ValueError("the view module and the settings of the views do not belong to each other")
        width = int(backbone.config.hidden_size)
        self.backbone = backbone
        self.views = views
        self.flow = None if config.flow is None else Flow(width, **asdict(config.flow))
        self.head = build_head(config.head)
        self.config = config
        self.denoise = None
        if config.denoise is not None:
            self.denoise = Denoise(config.denoise, self.width if config.denoise.behind_head else width)
        self._first_position = first_position(backbone)

    @property
    def width(self) -> int:
        """The length of a vector."""
        return self.config.head[-1].outputs if self.config.head else int(self.backbone.config.hidden_size)

    def forward(self, rows: Rows) -> Tensor:
        """(rows, width): pooled, through flow and head, denoised and scaled to length one if the model does so."""
        vectors = self.represent(rows)
        if self.flow is not None and self.flow.initialised:  # in a first stage, the model is still the one without it
            vectors, _ = self.flow(vectors)
        if self.denoise is not None and not self.denoise.config.behind_head:
            vectors = self.denoise(vectors, rows)
        vectors = self.head(vectors)
        if self.denoise is not None and self.denoise.config.behind_head:
            vectors = self.denoise(vectors, rows)
        return F.normalize(vectors, dim=-1) if self.config.normalize else vectors

    def represent(self, rows: Rows | Packed, *, pooling: Pooling | None = None, views: Views | None = None) -> Tensor:
        """(rows, hidden size): the pooled states, before flow and head.

        Args:
            rows: the tokens, padded or end to end; of the latter, filler rows have a vector too.
            pooling: in place of the model's own, as some methods have for training.
            views: in place of the encoder's own.
        """
        pooling = pooling or self.config.pooling
        if isinstance(rows, Packed):
            return self._represent_packed(rows, pooling)
        views = views or self.views
        extra: dict[str, Any] = {}
        if self.config.prefix is not None or rows.gap is not None:
            extra["position_ids"] = self._positions(rows)
        if needs_all_layers(pooling):
            extra["output_hidden_states"] = True
        if views is not None:
            extra |= views.begin(rows)
        out = self.backbone(input_ids=rows.input_ids, attention_mask=rows.attention_mask, **extra)
        if views is not None:
            views.end()
        return pool(pooling, rows, out.last_hidden_state, out.get("hidden_states"))

    def pack(self, rows: Rows, *, fill: bool = True) -> Packed:
        """The rows end to end, as `represent` takes them too; with filler rows if wanted (`models.packed`)."""
        before = 0
        if isinstance(self.views, Prefix):
            before = self.views.config.total if rows.views is None else self.views.config.length
        return pack(rows, self._first_token, before, fill=fill)

    def _represent_packed(self, packed: Packed, pooling: Pooling) -> Tensor:
        views, prefix, prefix_dropout = self.views, None, 0.0
        extra: dict[str, Any] = {"position_ids": packed.positions}
        if isinstance(views, Prefix):
            prefix, prefix_dropout = views.states(packed.views).blocks, views.dropout_rate
        elif views is not None:
            assert views.packs, "these views do not go together with packed rows"
            extra |= views.begin(packed)
        layers = self.backbone.config.num_hidden_layers if prefix is None else len(prefix)
        # Views other than a prefix may be modules of the last layer's that count its tokens.
        at_one_token = pooling in ("cls", "mask") and (views is None or prefix is not None)
        states = PackedStates(packed, layers, prefix, prefix_dropout)
        needs_all = needs_all_layers(pooling)
        with OnlyPooled(packed, states) if at_one_token else nullcontext():
            out = self.backbone(input_ids=packed.input_ids, packed=states, output_hidden_states=needs_all, **extra)
        states.finish()
        if views is not None and prefix is None:
            views.end()
        if at_one_token:
            return out.last_hidden_state.squeeze(0)
        return pool_packed(pooling, packed, mix_layers(pooling, out.last_hidden_state, out.get("hidden_states")))

    @property
    def _first_token(self) -> int:
        """The position of a row's first token: behind all vectors of all views, whichever of them a row sees."""
        return self._first_position + (self.config.prefix.total if self.config.prefix else 0)

    def _positions(self, rows: Rows) -> Tensor:
        """(rows or 1, length)"""
        positions = torch.arange(rows.input_ids.shape[1], device=rows.input_ids.device).unsqueeze(0)
        if rows.gap is not None:
            assert rows.slot is not None
            positions = positions + (positions >= rows.slot.unsqueeze(1)) * rows.gap.unsqueeze(1)
            if rows.attention_mask is not None:
                # A bare template padded to a long batch would move its padding beyond the last position.
                positions = positions * rows.attention_mask
        return positions + self._first_token
