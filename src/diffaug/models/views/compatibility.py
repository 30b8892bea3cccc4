"""The paper's delta and kappa, which measure how well the prefixes fit the model.

delta, the representation divergence, is the mean distance between the two views of a sentence. kappa, the weight
convergence, is the mean norm of the model's own keys and values minus that of the prefix. During stage 1, delta rises
to a peak and falls slowly, and kappa falls; together they say when stage 2 may begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffaug.losses.metrics import divergence
from diffaug.models.attention import PrefixAttention
from diffaug.models.batch import PaddedBatch, TokenBatch
from diffaug.models.encoder import Encoder
from diffaug.models.eval_mode import evaluating
from diffaug.models.views.base import Views
from diffaug.models.views.prefix import Prefix


@dataclass(frozen=True)
class Compatibility:
    """delta and kappa at one step; kappa is None for views other than prefixes."""

    delta: float
    kappa: float | None

    def values(self) -> dict[str, float]:
        """The measured values by name."""
        return {"delta": self.delta} | ({} if self.kappa is None else {"kappa": self.kappa})


@torch.no_grad()
def measure_compatibility(encoder: Encoder, batch: PaddedBatch) -> Compatibility | None:
    """delta and kappa over a batch, without dropout; None if the model does not have two learned views."""
    if encoder.config.views is None or encoder.config.views.views < 2:
        return None
    with evaluating(encoder):
        first, second = (
            encoder.represent(replace(batch, view_ids=torch.full((len(batch),), view, device=batch.input_ids.device)))
            for view in (0, 1)
        )
        delta = float(divergence(first.float(), second.float()))
        return Compatibility(delta, _kappa(encoder, batch) if isinstance(encoder.views, Prefix) else None)


class _NormRecorder(PrefixAttention):
    """Applies the prefix, and records the norms of the model's own keys and values."""

    def __init__(self, prefix: PrefixAttention, tokens: Tensor | None) -> None:
        super().__init__(prefix.blocks, prefix.view_ids, prefix.dropout)
        self.tokens = tokens
        self.own: list[Tensor] = []

    def extend(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        for states in (key, value):  # (sequences, heads, length, head_dim); a key or value spans all heads
            norms = states.float().transpose(1, 2).flatten(2).norm(dim=-1)  # (sequences, length)
            self.own.append(norms.mean() if self.tokens is None else norms[self.tokens].mean())
        return super().extend(key, value, mask)


class _Recording(Views):
    """Stands in for a prefix during one forward."""

    def __init__(self, recorder: _NormRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    @contextmanager
    def applied(self, batch: TokenBatch) -> Iterator[dict[str, Any]]:
        yield {"prefix": self.recorder}
        self.recorder.finish()


def _kappa(encoder: Encoder, batch: PaddedBatch) -> float:
    """Mean over layers, keys and values: the mean norm of the model's own, minus that of the prefix."""
    assert isinstance(encoder.views, Prefix)
    tokens = None if batch.attention_mask is None else batch.attention_mask.bool()
    recorder = _NormRecorder(encoder.views.attention(None), tokens)
    encoder.represent(replace(batch, view_ids=None), views=_Recording(recorder))
    # (layers, 2, 1, heads, length, head_dim) -> (layers, 2, length)
    prefix = recorder.blocks.float().squeeze(2).transpose(2, 3).flatten(3).norm(dim=-1)
    return float(torch.stack(recorder.own).mean() - prefix.mean())
