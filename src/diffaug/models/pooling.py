"""Pooling: from the hidden states of a sequence's tokens to one vector per sequence."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from diffaug.models.batch import PackedBatch, PaddedBatch, TokenBatch
from diffaug.models.config import Pooling

# The layers that are averaged before the tokens are. 0 is the output of the embedding layer, 1 that of the first
# layer, -1 that of the last, as in transformers' `hidden_states`.
_LAYERS: dict[str, tuple[int, ...]] = {
    "mean": (-1,),
    "first_last": (1, -1),
    "static_last": (0, -1),
    "last2": (-2, -1),
}

POOLINGS: tuple[str, ...] = get_args(Pooling)


def needs_all_layers(pooling: Pooling) -> bool:
    """Whether ``pooling`` reads other layers than the last."""
    return len(_LAYERS.get(pooling, (-1,))) > 1


def pool(pooling: Pooling, batch: TokenBatch, last: Tensor, hidden: tuple[Tensor, ...] = ()) -> Tensor:
    """Pool token states.

    Args:
        pooling: ``cls``: the first token of the last layer, without BERT's pooler. ``mask``: the template's mask
            token. ``mean``, ``first_last`` (layer 1 and last), ``static_last`` (embedding layer and last), ``last2``
            (the last two): the mean over layers and over tokens, padding excluded.
        batch: the tokens.
        last: the last layer's states: (sequences, length, width) if padded, (1, tokens, width) if packed.
        hidden: the states of all layers, if the pooling needs them.

    Returns:
        (sequences, width); of a packed batch, filler sequences included.
    """
    states = last
    if needs_all_layers(pooling):
        states = torch.stack([last if layer == -1 else hidden[layer] for layer in _LAYERS[pooling]]).mean(0)
    if isinstance(batch, PackedBatch):
        return _pool_packed(pooling, batch, states.squeeze(0))
    assert isinstance(batch, PaddedBatch)
    if pooling == "cls":
        return states[:, 0]
    if pooling == "mask":
        assert batch.pool_positions is not None, "mask pooling needs a template"
        # shape[0] instead of len(): an export to ONNX keeps the batch size dynamic only that way.
        return states[torch.arange(states.shape[0], device=states.device), batch.pool_positions]
    if batch.attention_mask is None:
        return states.mean(1)
    weights = batch.attention_mask.to(states.dtype).unsqueeze(-1)  # (sequences, length, 1)
    return (states * weights).sum(1) / weights.sum(1)


def _pool_packed(pooling: Pooling, batch: PackedBatch, states: Tensor) -> Tensor:
    """The same from states (tokens, width)."""
    if pooling in ("cls", "mask"):
        return states.index_select(0, batch.pool_positions)
    sums = states.new_zeros(len(batch.starts), states.shape[1], dtype=torch.float32)
    return sums.index_add(0, batch.sequence_ids, states.float()) / batch.lengths[:, None]
