"""From token states to one vector a sentence. Each name says which layers it reads."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from diffaug.models.config import Pooling
from diffaug.models.rows import Rows

# The layers whose states are averaged before the tokens are, counted as transformers counts hidden states:
# 0 is the embedding layer's output, 1 the first layer's, -1 the last layer's.
_LAYERS: dict[str, tuple[int, ...]] = {
    "mean": (-1,),
    "first_last": (1, -1),
    "static_last": (0, -1),
    "last2": (-2, -1),
}

POOLINGS: tuple[str, ...] = get_args(Pooling)


def needs_all_layers(pooling: Pooling) -> bool:
    """Whether ``pooling`` reads more than the last layer."""
    return len(_LAYERS.get(pooling, (-1,))) > 1


def mix_layers(pooling: Pooling, last: Tensor, hidden: tuple[Tensor, ...] | None = None) -> Tensor:
    """The mean of the layers a pooling reads, of the shape of ``last``."""
    states = [last if layer == -1 else hidden[layer] for layer in _LAYERS.get(pooling, (-1,))]  # type: ignore[index]
    return states[0] if len(states) == 1 else torch.stack(states).mean(0)


def pool(pooling: Pooling, rows: Rows, last: Tensor, hidden: tuple[Tensor, ...] | None = None) -> Tensor:
    """Pool token states.

    Args:
        pooling: ``cls``: the first token of the last layer, no pooler. ``mask``: the template's mask token.
            ``mean``, ``first_last`` (layer 1 and last), ``static_last`` (embedding layer and last), ``last2``: the
            mean over the tokens of a row, padding left out.
        rows: the token rows the states belong to.
        last: (rows, length, width), the last layer's states.
        hidden: all layers' states, for the poolings that need them.

    Returns:
        (rows, width)
    """
    if pooling == "cls":
        return last[:, 0]
    if pooling == "mask":
        assert rows.pool_at is not None, "mask pooling reads the template's mask token"
        # shape[0], not len(): an export to ONNX keeps the number of rows open only that way.
        return last[torch.arange(last.shape[0], device=last.device), rows.pool_at]
    mixed = mix_layers(pooling, last, hidden)
    if rows.attention_mask is None:
        return mixed.mean(1)
    weights = rows.attention_mask.to(mixed.dtype).unsqueeze(-1)  # (rows, length, 1)
    return (mixed * weights).sum(1) / weights.sum(1)
