"""Tasks on the user's own data: scored pairs, triplets, retrieval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from diffaug.data.records import ScoredPairs, Triplets
from diffaug.evaluation.retrieval_data import RetrievalData
from diffaug.evaluation.statistics import Floats, Mean, Spearman, pearson
from diffaug.evaluation.tasks import Embeddings, TaskResult

RECALL_AT = (1, 5, 10, 100)
# Similarities in memory at a time.
_BLOCK = 1 << 24


@dataclass
class PairsTask:
    """Scored pairs: rank correlation of cosines and gold scores."""

    name: str
    pairs: ScoredPairs

    def sentences(self) -> Iterable[str]:
        return [*self.pairs.first, *self.pairs.second]

    def score(self, embeddings: Embeddings) -> TaskResult:
        cosines = embeddings.cosines(self.pairs.first, self.pairs.second)
        spearman = Spearman(cosines, self.pairs.scores)
        details = {"spearman": spearman.value(), "pearson": pearson(cosines, self.pairs.scores)}
        return TaskResult(self.name, "own", "pairs_spearman", details["spearman"], len(cosines), spearman, details)


@dataclass
class TripletsTask:
    """Triplets: how often the anchor is closer to the positive than to the negative; a tie counts as wrong."""

    name: str
    triplets: Triplets

    def sentences(self) -> Iterable[str]:
        return [*self.triplets.anchors, *self.triplets.positives, *self.triplets.negatives]

    def score(self, embeddings: Embeddings) -> TaskResult:
        near = embeddings.cosines(self.triplets.anchors, self.triplets.positives)
        far = embeddings.cosines(self.triplets.anchors, self.triplets.negatives)
        accuracy = Mean(near > far)
        details = {"accuracy": accuracy.value(), "mean_margin": float((near - far).mean())}
        return TaskResult(self.name, "own", "triplets_accuracy", accuracy.value(), len(near), accuracy, details)


@dataclass
class RetrievalTask:
    """Retrieval: the ranks of a query's relevant documents in the corpus, sorted by cosine.

    The score is the mean reciprocal rank (MRR) of the first relevant document. Recall at k is the share of a query's
    relevant documents among the first k. Documents with equal cosine keep the order of the corpus.
    """

    name: str
    data: RetrievalData

    def sentences(self) -> Iterable[str]:
        return [*self.data.queries, *self.data.corpus]

    def score(self, embeddings: Embeddings) -> TaskResult:
        ranks = _ranks(embeddings.unit(self.data.queries), embeddings.unit(self.data.corpus), self.data.relevant)
        reciprocal = Mean([1 / found.min() for found in ranks])
        details = {"mrr": reciprocal.value()}
        for k in RECALL_AT:
            if k < len(self.data.corpus):
                details[f"recall@{k}"] = Mean([(found <= k).mean() for found in ranks]).value()
        details |= {"queries": len(ranks), "documents": len(self.data.corpus)}
        return TaskResult(self.name, "own", "retrieval_mrr", reciprocal.value(), len(ranks), reciprocal, details)


def _ranks(queries: Floats, corpus: Floats, relevant: list[list[int]]) -> list[Floats]:
    """For each query, the ranks of its relevant documents, from 1."""
    found = []
    step = max(1, _BLOCK // len(corpus))
    for start in range(0, len(queries), step):
        for cosines, wanted in zip(
            queries[start : start + step] @ corpus.T, relevant[start : start + step], strict=True
        ):
            before = [(cosines > cosines[i]).sum() + (cosines[:i] == cosines[i]).sum() for i in wanted]
            found.append(np.array(before, np.float64) + 1)
    return found
