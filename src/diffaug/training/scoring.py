"""Scores during training: the dev set, or alignment and uniformity where there is none; delta, kappa, collapse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import spearmanr

from diffaug.augment.compatibility import Compatibility, measure_compatibility
from diffaug.data.records import ScoredPairs
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.methods.base import Method
from diffaug.objectives.metrics import alignment, anisotropy, uniformity

# Vectors of unrelated sentences whose mean cosine is above this carry no information any more.
_COLLAPSED = 0.999


@dataclass(frozen=True)
class Scores:
    """One evaluation. `selection` is what chooses the best checkpoint; higher is better."""

    selection: float
    values: dict[str, float]


def spearman(embedder: Embedder, pairs: ScoredPairs) -> float:
    """Spearman's correlation, times 100, of the cosines of the pairs with their scores."""
    count = len(pairs.scores)
    vectors = embedder.encode([*pairs.first, *pairs.second], show_progress=False)
    cosines = np.einsum("ij,ij->i", vectors[:count], vectors[count:])
    correlation = spearmanr(cosines, pairs.scores).statistic
    return 100.0 * float(np.nan_to_num(correlation))


class Scorer:
    """Evaluates a method while it trains.

    Args:
        method: what is trained.
        embedder: the same encoder, as a user would meet it.
        dev: scored pairs, or None.
        positives: pairs that mean the same, for alignment; without a dev set they choose the checkpoint.
    """

    def __init__(
        self, method: Method, embedder: Embedder, dev: ScoredPairs | None, positives: Sequence[tuple[str, str]]
    ) -> None:
        self._method = method
        self._embedder = embedder
        self._dev = dev
        self._positives = positives
        self._probe = [first for first, _ in positives]

    def compatibility(self) -> Compatibility | None:
        """delta and kappa, on the probe sentences; None for a model without learned views."""
        if not self._positives:
            return None
        collator = self._embedder.collator
        rows = collator.rows(collator.ids(self._probe)[0])
        return measure_compatibility(self._method.encoder, rows.to(self._embedder.device))

    def __call__(self, selects: bool = True, alarm: bool = True) -> Scores:
        """Evaluate now.

        Args:
            selects: whether the score chooses a checkpoint. Where it does not (stage 1 of two), the dev set is left
                out, and vectors that point the same way are no alarm: stage 2 will spread them.
            alarm: raise if the vectors of all sentences have become alike.

        Raises:
            DiffaugError: they have.
        """
        was_training = self._method.training
        self._method.eval()
        try:
            values = self._geometry(alarm and selects)
            if self._dev is None or not selects:
                return Scores(-values.get("alignment", 0.0) - values.get("uniformity", 0.0), values)
            values["dev"] = spearman(self._embedder, self._dev)
            return Scores(values["dev"], values)
        finally:
            self._method.train(was_training)

    def _geometry(self, alarm: bool) -> dict[str, float]:
        """Alignment and uniformity on the probe pairs; nothing without such pairs."""
        half = len(self._positives)
        if not half:
            return {}
        sentences = [s for s, _ in self._positives] + [s for _, s in self._positives]
        vectors = torch.from_numpy(self._embedder.encode(sentences, show_progress=False))
        first, second = vectors[:half], vectors[half:]
        if alarm and float(anisotropy(first)) > _COLLAPSED:
            raise DiffaugError(
                "the embeddings have collapsed: unrelated sentences have a mean cosine above "
                f"{_COLLAPSED}; lower the learning rate, or use more varied data"
            )
        return {"alignment": float(alignment(first, second)), "uniformity": float(uniformity(first))}
