"""A linear map of frozen vectors, learned from pairs or triplets in seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from diffaug.data.records import Labelled, LabelledPairs, PositivePairs, ScoredPairs
from diffaug.embedder import Embedder
from diffaug.losses.contrastive import info_nce
from diffaug.losses.pairs import cosent
from diffaug.models.config import DenseConfig, ModelConfig
from diffaug.models.heads import build_head

Array = NDArray[np.float32]

_STEPS, _RATE, _PENALTY, _BATCH = 100, 3e-3, 0.1, 1024


def fits_linear(config: ModelConfig) -> bool:
    """Whether a linear layer can follow the model's vectors: not where a template's vector is subtracted last."""
    return config.denoise is None or not config.denoise.behind_head


def fit_linear(
    encode: Callable[[Sequence[str]], Array], labelled: Labelled, seed: int, device: torch.device | None = None
) -> Array:
    """Learn a linear map that brings sentences together that belong together.

    It starts as the identity, and what differs from it is penalised: few labels then change little. The loss is that of
    training: CoSENT for pairs with scores or labels, InfoNCE for triplets and pairs that all belong together.

    Args:
        encode: sentences to vectors of length 1.
        labelled: pairs or triplets.
        seed: of the order of the rows.
        device: where to compute; default: the CPU.

    Returns:
        (width, width): a vector x becomes ``weight @ x``.
    """
    columns = [torch.from_numpy(encode(column)).to(device) for column in labelled.texts()]
    loss = _loss(labelled, columns)
    identity = torch.eye(columns[0].shape[1], device=device)
    weight = identity.clone().requires_grad_()
    optimiser = torch.optim.Adam([weight], lr=_RATE)
    generator = torch.Generator().manual_seed(seed)
    for step in range(_STEPS):
        rows = torch.randperm(len(labelled), generator=generator)[:_BATCH].to(device)
        optimiser.param_groups[0]["lr"] = _RATE * (1 - step / _STEPS)
        optimiser.zero_grad()
        (loss(weight, rows) + _PENALTY * (weight - identity).pow(2).sum()).backward()
        optimiser.step()
    found: Array = weight.detach().cpu().numpy()
    return found


def _loss(labelled: Labelled, columns: Sequence[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    if isinstance(labelled, (ScoredPairs, LabelledPairs)):
        values = labelled.scores if isinstance(labelled, ScoredPairs) else labelled.binary()
        scores = torch.tensor(values, dtype=torch.float32, device=columns[0].device)
        return lambda weight, rows: cosent(columns[0][rows] @ weight.T, columns[1][rows] @ weight.T, scores[rows])
    assert isinstance(labelled, PositivePairs)
    anchors, positives, *negatives = columns

    def contrast(weight: Tensor, rows: Tensor) -> Tensor:
        hard = negatives[0][rows] @ weight.T if negatives else None
        return info_nce(anchors[rows] @ weight.T, positives[rows] @ weight.T, hard)

    return contrast


def apply_linear(weight: Array, vectors: Array) -> Array:
    """The mapped vectors, of length 1."""
    mapped: Array = F.normalize(torch.from_numpy(vectors @ weight.T), dim=-1).numpy()
    return mapped


def with_linear(embedder: Embedder, weight: Array) -> Embedder:
    """Add the map to a model as its last dense layer; the model itself is changed."""
    encoder = embedder.encoder
    layer = DenseConfig(weight.shape[1], weight.shape[0], bias=False, activation="identity")
    dense = build_head([layer])[0]
    assert isinstance(dense, nn.Sequential)
    linear = dense[0]
    assert isinstance(linear, nn.Linear)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weight))
    encoder.head.append(dense.to(embedder.device))
    encoder.config = replace(encoder.config, head=(*encoder.config.head, layer))
    return embedder
