"""Geometry of a model's vectors: alignment, uniformity, anisotropy, and the distance between two views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from diffaug.data.records import ScoredPairs, Triplets
from diffaug.embedder import Embedder
from diffaug.evaluation.tasks import Embeddings
from diffaug.inference.runner import TorchRunner
from diffaug.losses.metrics import alignment, anisotropy, divergence, uniformity

# Pairs above 80 % of the scale are positives; on STS-B, from 0 to 5, those above 4, as in SimCSE.
_POSITIVE = 0.8
_BATCH = 64


@dataclass(frozen=True)
class Geometry:
    """Measures of a model's vectors on a set of sentences; see `diffaug.losses.metrics` for the formulas.

    Attributes:
        data: the name of the data.
        sentences, positives: number of distinct sentences and of positive pairs.
        alignment: mean squared distance of positive pairs; lower is better.
        uniformity: how evenly the vectors are spread; lower is better.
        anisotropy: mean cosine of two different sentences.
        delta: mean distance between the two views of a sentence; None for a model without views.
    """

    data: str
    sentences: int
    positives: int
    alignment: float
    uniformity: float
    anisotropy: float
    delta: float | None = None


@dataclass
class GeometryTask:
    """Sentences to measure, and the positive pairs among them."""

    data: str
    first: list[str]
    second: list[str]
    others: list[str]

    @classmethod
    def from_pairs(cls, data: str, pairs: ScoredPairs, lowest: float, highest: float) -> GeometryTask:
        """Positives are the pairs above 80 % of the scale."""
        threshold = lowest + _POSITIVE * (highest - lowest)
        positives = pairs.take([i for i, score in enumerate(pairs.scores) if score > threshold])
        return cls(data, positives.first, positives.second, [*pairs.first, *pairs.second])

    @classmethod
    def from_triplets(cls, data: str, triplets: Triplets) -> GeometryTask:
        """Positives are the pairs of anchor and positive."""
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
    """The mean distance between the two views of a sentence, before any head; None for a model without views.

    An ONNX export counts as a model without views, since its graph contains them merged.
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
