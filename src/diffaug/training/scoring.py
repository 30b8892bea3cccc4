"""Scores during training: the dev set, or alignment and uniformity where there is none; delta, kappa, collapse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr

from diffaug.data.records import ScoredPairs
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.inference.runner import Vectors
from diffaug.losses.metrics import alignment, anisotropy, uniformity
from diffaug.methods.base import Method
from diffaug.models.eval_mode import evaluating
from diffaug.models.views.compatibility import Compatibility, measure_compatibility
from diffaug.training.precision import Precision

# Vectors of unrelated sentences whose mean cosine is above this carry no information any more.
_COLLAPSED = 0.999
# Of fewer, a high cosine may be their own: data of a few sentences that all say nearly the same.
_ENOUGH_TO_JUDGE = 8


@dataclass(frozen=True)
class Scores:
    """One evaluation. `selection` is what chooses the best checkpoint; higher is better."""

    selection: float
    values: dict[str, float]


def spearman(embedder: Embedder, pairs: ScoredPairs) -> float:
    """Spearman's correlation, times 100, of the cosines of the pairs with their scores; NaN if either are all equal."""
    return _correlation(embedder.encode([*pairs.first, *pairs.second], show_progress=False), pairs)


def final_scores(embedder: Embedder, scored: Mapping[str, ScoredPairs]) -> dict[str, float]:
    """`spearman` of each set of pairs by name; those for which it is undefined are left out."""
    found = {name: spearman(embedder, pairs) for name, pairs in scored.items()}
    return {name: score for name, score in found.items() if not np.isnan(score)}


def _correlation(vectors: Vectors, pairs: ScoredPairs) -> float:
    """The same, of unit vectors: those of all first sentences, then those of all second ones."""
    count = len(pairs.scores)
    cosines = np.einsum("ij,ij->i", vectors[:count], vectors[count:])
    if np.ptp(cosines) == 0 or np.ptp(pairs.scores) == 0:
        return float("nan")
    return 100.0 * float(spearmanr(cosines, pairs.scores).statistic)


class _Sentences:
    """Sentences that are embedded again and again while the model changes: read, sorted and sent to it once.

    Args:
        embedder: the model.
        sentences: equal ones are computed once.
        precision: of the run; the same for its evaluations.
    """

    def __init__(self, embedder: Embedder, sentences: Sequence[str], precision: Precision) -> None:
        place: dict[str, int] = {}
        where = [place.setdefault(sentence, len(place)) for sentence in sentences]
        ids, _ = embedder.collator.ids(list(place))
        batches = list(embedder.batches([len(row) for row in ids]))
        self._rows = [embedder.collator.rows([ids[i] for i in batch]).to(embedder.device) for batch in batches]
        computed = {i: n for n, i in enumerate(i for batch in batches for i in batch)}
        self._order = torch.tensor([computed[i] for i in where])
        self._encoder, self._precision = embedder.encoder, precision

    @torch.inference_mode()
    def vectors(self) -> Vectors:
        """(sentences, width), of length one.

        Raises:
            DiffaugError: they are not finite.
        """
        with self._precision.autocast():
            parts = [self._encoder(rows).float() for rows in self._rows]
        found: Vectors = F.normalize(torch.cat(parts), dim=-1).cpu()[self._order].numpy()
        if not np.isfinite(found).all():
            raise DiffaugError(
                "the model's vectors are not finite; lower the learning rate or set loop.precision=fp32. The best "
                "model so far, if there is one, is in best/"
            )
        return found


class Scorer:
    """Evaluates a method while it trains, in the precision that it trains in.

    Args:
        method: what is trained.
        embedder: the same encoder, as a user would meet it.
        dev: scored pairs, or None.
        positives: pairs that mean the same, for alignment; without a dev set they choose the checkpoint.
        precision: of the run.
    """

    def __init__(
        self,
        method: Method,
        embedder: Embedder,
        dev: ScoredPairs | None,
        positives: Sequence[tuple[str, str]],
        precision: Precision,
    ) -> None:
        self._method = method
        self._dev = dev
        self._precision = precision
        self._pairs = len(positives)
        first, second = ([pair[side] for pair in positives] for side in (0, 1))
        if dev is not None:
            self._dev_sentences = _Sentences(embedder, [*dev.first, *dev.second], precision)
        if positives:
            self._positives = _Sentences(embedder, [*first, *second], precision)
            ids = embedder.collator.ids(first)[0]
            self._probe = embedder.collator.rows(ids).to(embedder.device)
            # A sentence that comes again, as premises do, is no unrelated one. Equal is what the model reads as equal.
            place: dict[tuple[int, ...], int] = {}
            for number, row in enumerate(ids):
                place.setdefault(tuple(row), number)
            self._distinct = list(place.values())

    def compatibility(self) -> Compatibility | None:
        """delta and kappa, on the probe sentences; None for a model without learned views."""
        if not self._pairs:
            return None
        with self._precision.autocast():
            return measure_compatibility(self._method.encoder, self._probe)

    def __call__(self, selects: bool = True, alarm: bool = True) -> Scores:
        """Evaluate now.

        Args:
            selects: whether the score chooses a checkpoint. Where it does not (stage 1 of two), the dev set is left
                out, and vectors that point the same way are no alarm: stage 2 will spread them.
            alarm: raise if the vectors of different sentences have become alike, unless there are too few to tell.

        Raises:
            DiffaugError: they have, or vectors are not finite.
        """
        with evaluating(self._method):
            self._method.refresh()
            values = self._geometry(alarm and selects)
            if self._dev is None or not selects:
                return Scores(-values.get("alignment", 0.0) - values.get("uniformity", 0.0), values)
            values["dev"] = _correlation(self._dev_sentences.vectors(), self._dev)
            return Scores(values["dev"], values)

    def _geometry(self, alarm: bool) -> dict[str, float]:
        """Alignment of the probe pairs, uniformity of the distinct sentences on their first side; what there is."""
        if not self._pairs:
            return {}
        first, second = torch.from_numpy(self._positives.vectors()).split(self._pairs)
        distinct = first[self._distinct]
        if alarm and len(distinct) >= _ENOUGH_TO_JUDGE and float(anisotropy(distinct)) > _COLLAPSED:
            raise DiffaugError(
                "the embeddings have collapsed: unrelated sentences have a mean cosine above "
                f"{_COLLAPSED}; lower the learning rate, or use more varied data"
            )
        values = {"alignment": float(alignment(first, second))}
        if len(distinct) > 1:
            values["uniformity"] = float(uniformity(distinct))
        return values
