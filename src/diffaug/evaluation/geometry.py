"""How a model's vectors lie in space: alignment, uniformity, anisotropy, and the distance of two views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from diffaug.data.records import ScoredPairs, Triplets
from diffaug.embedder import Embedder
from diffaug.evaluation.tasks import Embeddings
from diffaug.inference.runner import TorchRunner
from diffaug.losses.metrics import alignment, anisotropy, divergence, uniformity

# Pairs above four fifths of the scale mean the same: on STS-B's scale from 0 to 5 those above 4, as SimCSE takes them.
_POSITIVE = 0.8
_BATCH = 64


@dataclass(frozen=True)
class Geometry:
    """Measures of a model's vectors on one set of sentences; see `diffaug.losses.metrics` for the formulas.

    Attributes:
        data: where the sentences come from.
        sentences, positives: how many distinct sentences, and pairs that mean the same, were measured.
        alignment: mean squared distance of those pairs; lower is better.
        uniformity: how evenly the sentences are spread; lower is better.
        anisotropy: the mean cosine of two different sentences.
        delta: for a model with two views of a sentence, their mean distance; else None.
    """

    data: str
    sentences: int
    positives: int
    alignment: float
    uniformity: float
    anisotropy: float
    delta: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


@dataclass
class GeometryTask:
    """Sentences to measure, and the pairs among them that mean the same."""

    data: str
    first: list[str]
    second: list[str]
    others: list[str]

    @classmethod
    def from_pairs(cls, data: str, pairs: ScoredPairs, lowest: float, highest: float) -> GeometryTask:
        """Positive are the pairs above four fifths of the scale."""
        bar = lowest + _POSITIVE * (highest - lowest)
        near = [i for i, score in enumerate(pairs.scores) if score > bar]
        chosen = pairs.take(near)
        return cls(data, chosen.first, chosen.second, [*pairs.first, *pairs.second])

    @classmethod
    def from_triplets(cls, data: str, triplets: Triplets) -> GeometryTask:
        """Positive are anchor and positive."""
        return cls(data, triplets.anchors, triplets.positives, triplets.negatives)

    def sentences(self) -> Iterable[str]:
        return [*self.first, *self.second, *self.others]

    def measure(self, embeddings: Embeddings, embedder: Embedder | None) -> Geometry:
        distinct = list(dict.fromkeys(self.sentences()))
        vectors = torch.from_numpy(embeddings.unit(distinct))
        first, second = (torch.from_numpy(embeddings.unit(side)) for side in (self.first, self.second))
        return Geometry(
            self.data,
            len(distinct),
            len(first),
            float(alignment(first, second)),
            float(uniformity(vectors)),
            float(anisotropy(vectors)),
            None if embedder is None else delta(embedder, distinct),
        )


@torch.inference_mode()
def delta(embedder: Embedder, sentences: Sequence[str]) -> float | None:
    """The mean distance of the two views of a sentence, before any head; None for a model without views.

    An export to ONNX has its views folded together, and counts as a model without.
    """
    if not isinstance(embedder.runner, TorchRunner):
        return None
    encoder = embedder.encoder
    if encoder.config.views is None or encoder.config.views.views != 2:
        return None
    ids, _ = embedder.collator.ids(sentences)
    order = np.argsort([len(row) for row in ids], kind="stable")
    total = 0.0
    for start in range(0, len(order), _BATCH):
        batch = [ids[i] for i in order[start : start + _BATCH]]
        first, second = (
            encoder.represent(embedder.collator.rows(batch, [view] * len(batch)).to(embedder.device)).float()
            for view in (0, 1)
        )
        total += float(divergence(first, second)) * len(batch)
    return total / len(ids)
