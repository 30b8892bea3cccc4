"""How far the prefixes are on their way to fit the model: the paper's delta and kappa.

delta, the representation divergence, is the mean distance of the two views of a sentence. kappa, the weight
convergence, is how much longer the model's own keys and values are than the prefix's. While stage 1 runs, delta rises
to a peak and falls slowly, and kappa falls; both together say when stage 2 may begin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffaug.losses.metrics import divergence
from diffaug.models.attention import PrefixStates
from diffaug.models.encoder import Encoder
from diffaug.models.eval_mode import evaluating
from diffaug.models.packed import Packed
from diffaug.models.rows import Rows
from diffaug.models.views.base import Views
from diffaug.models.views.prefix import Prefix


@dataclass(frozen=True)
class Compatibility:
    """The measures at one moment; only a prefix has a kappa."""

    delta: float
    kappa: float | None

    def values(self) -> dict[str, float]:
        """Those there are, by name."""
        return {"delta": self.delta} | ({} if self.kappa is None else {"kappa": self.kappa})


@torch.no_grad()
def measure_compatibility(encoder: Encoder, rows: Rows) -> Compatibility | None:
    """delta and kappa over some sentences, without dropout; None if the model has no learned views to compare."""
    if encoder.config.views is None or encoder.config.views.views < 2:
        return None
    with evaluating(encoder):
        first, second = (
            encoder.represent(replace(rows, views=torch.full((len(rows),), view, device=rows.input_ids.device)))
            for view in (0, 1)
        )
        delta = float(divergence(first.float(), second.float()))
        return Compatibility(delta, _kappa(encoder, rows) if isinstance(encoder.views, Prefix) else None)


class _NormRecorder(PrefixStates):
    """Passes the prefix on as usual, and notes how long the model's own keys and values are."""

    def __init__(self, states: PrefixStates, tokens: Tensor | None) -> None:
        super().__init__(states.blocks, states.views, states.dropout)
        self.tokens = tokens
        self.own: list[Tensor] = []

    def extend(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        for states in (key, value):  # (rows, heads, length, head_dim); a row of K or V spans all heads
            norms = states.float().transpose(1, 2).flatten(2).norm(dim=-1)  # (rows, length)
            self.own.append(norms.mean() if self.tokens is None else norms[self.tokens].mean())
        return super().extend(key, value, mask)


class _Recording(Views):
    """Stands in for a prefix during one forward, with a recorder around its states."""

    def __init__(self, recorder: _NormRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def begin(self, rows: Rows | Packed) -> dict[str, Any]:
        return {"prefix": self.recorder}

    def end(self) -> None:
        self.recorder.finish()


def _kappa(encoder: Encoder, rows: Rows) -> float:
    """Mean over layers, keys and values of: mean row norm of the model's own, less that of the prefix's."""
    assert isinstance(encoder.views, Prefix)
    tokens = None if rows.attention_mask is None else rows.attention_mask.bool()
    recorder = _NormRecorder(encoder.views.states(None), tokens)
    encoder.represent(replace(rows, views=None), views=_Recording(recorder))
    # (layers, 2, 1, heads, length, head_dim) -> (layers, 2, length)
    prefix = recorder.blocks.float().squeeze(2).transpose(2, 3).flatten(3).norm(dim=-1)
    return float(torch.stack(recorder.own).mean() - prefix.mean())
