"""The encoder: backbone, view modules, pooling, flow and head as one module that turns a `TokenBatch` into vectors."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffaug.models.backbone import first_position
from diffaug.models.batch import PackedBatch, PaddedBatch, TokenBatch, pack
from diffaug.models.config import ModelConfig, Pooling
from diffaug.models.denoise import Denoise
from diffaug.models.flow import Flow
from diffaug.models.heads import build_head
from diffaug.models.layer_pruning import LastLayerPruning
from diffaug.models.packed_attention import PackedAttention
from diffaug.models.pooling import needs_all_layers, pool
from diffaug.models.views.base import Views

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Encoder(nn.Module):
    """Token batches in, one vector per sequence out.

    Args:
        backbone: any transformers encoder; with a prefix, one that `diffaug.models.attention` supports. For inference
            without views, a `PlainBert` may take its place.
        config: everything about inference.
        views: the view module: one that matches ``config.views``, or one that is used in training only.
    """

    def __init__(self, backbone: PreTrainedModel, config: ModelConfig, views: Views | None = None) -> None:
        super().__init__()
        if (None if views is None else views.config) != config.views:
            raise ValueError("the view module does not match the model's settings of views")
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
        """The number of dimensions of a vector."""
        return self.config.head[-1].outputs if self.config.head else int(self.backbone.config.hidden_size)

    def forward(self, batch: PaddedBatch) -> Tensor:
        """(sequences, width): the model's vectors: pooled, through flow and head, denoised, normalised."""
        vectors = self.represent(batch)
        if self.flow is not None and self.flow.initialised:  # in a first stage, the flow is not used yet
            vectors, _ = self.flow(vectors)
        if self.denoise is not None and not self.denoise.config.behind_head:
            vectors = self.denoise(vectors, batch)
        vectors = self.head(vectors)
        if self.denoise is not None and self.denoise.config.behind_head:
            vectors = self.denoise(vectors, batch)
        return F.normalize(vectors, dim=-1) if self.config.normalize else vectors

    def represent(self, batch: TokenBatch, *, pooling: Pooling | None = None, views: Views | None = None) -> Tensor:
        """(sequences, hidden size): the pooled states, before flow and head.

        Args:
            batch: padded or packed; filler sequences of a packed batch get a vector too.
            pooling: used instead of the model's own, as some methods do in training.
            views: used instead of the encoder's own.
        """
        pooling = pooling or self.config.pooling
        views = views or self.views
        with nullcontext({}) if views is None else views.applied(batch) as extra:
            if isinstance(batch, PackedBatch):
                prune = pooling in ("cls", "mask") and (views is None or views.supports_pruning)
                return self._packed(batch, pooling, extra, prune)
            assert isinstance(batch, PaddedBatch)
            return self._padded(batch, pooling, extra)

    def pack(self, batch: PaddedBatch, *, fill: bool = True) -> PackedBatch:
        """The batch without its padding, as `represent` takes it; ``fill``: with filler sequences."""
        prefix_length = 0 if self.views is None else self.views.prefix_length(by_view=batch.view_ids is not None)
        return pack(batch, self._first_token, prefix_length, fill=fill)

    def _padded(self, batch: PaddedBatch, pooling: Pooling, extra: dict[str, Any]) -> Tensor:
        if "position_ids" not in extra and (self.config.prefix is not None or batch.position_ids is not None):
            extra["position_ids"] = self._position_ids(batch)
        if needs_all_layers(pooling):
            extra["output_hidden_states"] = True
        out = self.backbone(input_ids=batch.input_ids, attention_mask=batch.attention_mask, **extra)
        return pool(pooling, batch, out.last_hidden_state, out.get("hidden_states") or ())

    def _packed(self, batch: PackedBatch, pooling: Pooling, extra: dict[str, Any], prune: bool) -> Tensor:
        attention = extra.get("packed") or PackedAttention(batch, self.backbone.config.num_hidden_layers)
        arguments = {
            "position_ids": batch.position_ids,
            "packed": attention,
            "output_hidden_states": needs_all_layers(pooling),
            **extra,
        }
        with LastLayerPruning(batch, attention) if prune else nullcontext():
            out = self.backbone(input_ids=batch.input_ids, **arguments)
        attention.finish()
        if prune:
            pooled: Tensor = out.last_hidden_state.squeeze(0)
            return pooled
        return pool(pooling, batch, out.last_hidden_state, out.get("hidden_states") or ())

    @property
    def _first_token(self) -> int:
        """The position id of a sequence's first token: after the prefixes of all views, whichever it attends to."""
        return self._first_position + (self.config.prefix.total if self.config.prefix else 0)

    def _position_ids(self, batch: PaddedBatch) -> Tensor:
        """(sequences or 1, length)"""
        positions = batch.position_ids
        if positions is None:
            positions = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device).unsqueeze(0)
        return positions + self._first_token
