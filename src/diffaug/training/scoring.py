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
        probe = [first for first, _ in positives]
        self._rows = embedder.collator.rows(embedder.collator.ids(probe)[0])

    def compatibility(self) -> Compatibility:
        """delta and kappa, on the probe sentences."""
        return measure_compatibility(self._method.encoder, self._rows.to(self._embedder.device))

    def __call__(self, selects: bool = True) -> Scores:
        """Evaluate now. Where nothing is chosen by the score (stage 1), the dev set is left out, and vectors that
        point the same way are no alarm: only the prefixes have learnt, and stage 2 will spread them.

        Raises:
            DiffaugError: the vectors of all sentences have become alike.
        """
        was_training = self._method.training
        self._method.eval()
        try:
            return self._scores(selects)
        finally:
            self._method.train(was_training)

    def _scores(self, selects: bool) -> Scores:
        half = len(self._positives)
        sentences = [s for s, _ in self._positives] + [s for _, s in self._positives]
        vectors = torch.from_numpy(self._embedder.encode(sentences, show_progress=False))
        first, second = vectors[:half], vectors[half:]
        values = {"alignment": float(alignment(first, second)), "uniformity": float(uniformity(first))}
        if selects and float(anisotropy(first)) > _COLLAPSED:
            raise DiffaugError(
                "the embeddings have collapsed: unrelated sentences have a mean cosine above "
                f"{_COLLAPSED}; lower the learning rate, or use more varied data"
            )
        if self._dev is None or not selects:
            return Scores(-values["alignment"] - values["uniformity"], values)
        values["dev"] = spearman(self._embedder, self._dev)
        return Scores(values["dev"], values)
