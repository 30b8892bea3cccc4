"""Tasks on the user's own data: scored pairs, triplets, retrieval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diffaug.data.records import ScoredPairs, Triplets
from diffaug.evaluation.retrieval_data import RetrievalData
from diffaug.evaluation.statistics import Floats, Mean, Spearman, pearson
from diffaug.evaluation.tasks import Embeddings, TaskResult

RECALL_AT = (1, 5, 10, 100)
NDCG_AT = 10
# Similarities in memory at a time.
_BLOCK = 1 << 24
# Equal vectors have cosines that differ by this much in 32 bits, depending on their place in the matrix.
_ROUNDING = 5e-7


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
    relevant documents among the first k. nDCG@10 also uses the grades of the documents. All equal mteb's.

    Attributes:
        ignore_identical_ids: leave out the document with the query's own id, for data whose queries are documents of
            the corpus.
    """

    name: str
    data: RetrievalData
    ignore_identical_ids: bool = False

    def sentences(self) -> Iterable[str]:
        return [*self.data.queries, *self.data.corpus]

    def score(self, embeddings: Embeddings) -> TaskResult:
        ranks = self._ranks(embeddings)
        reciprocal = Mean([1 / found.min() for found in ranks])
        gains = [_ndcg(found, list(grades.values())) for found, grades in zip(ranks, self.data.relevant, strict=True)]
        details = {"mrr": reciprocal.value(), f"ndcg@{NDCG_AT}": Mean(gains).value()}
        for k in RECALL_AT:
            if k < len(self.data.corpus):
                details[f"recall@{k}"] = Mean([(found <= k).mean() for found in ranks]).value()
        details |= {"queries": len(ranks), "documents": len(self.data.corpus)}
        return TaskResult(self.name, "own", "retrieval_mrr", reciprocal.value(), len(ranks), reciprocal, details)

    def _ranks(self, embeddings: Embeddings) -> list[Floats]:
        """For each query the ranks of its relevant documents, from 1; infinity for one that is left out."""
        # In 32 bits and some queries at a time: a corpus may have millions of documents.
        queries, corpus = (embeddings.unit(texts, np.float32) for texts in (self.data.queries, self.data.corpus))
        step, ranks = max(1, _BLOCK // len(corpus)), []
        for start in range(0, len(queries), step):
            for row, cosines in enumerate(queries[start : start + step] @ corpus.T, start):
                ignored = self.data.same_id[row] if self.ignore_identical_ids else None
                if ignored is not None:
                    cosines[ignored] = -np.inf
                found = [_rank(cosines, i) if i != ignored else np.inf for i in self.data.relevant[row]]
                ranks.append(np.array(found))
        return ranks


def _rank(cosines: NDArray[np.float32], document: int) -> float:
    """From 1; of documents with the same cosine, the first of the corpus comes first."""
    ahead = cosines - cosines[document]
    return float(1 + (ahead > _ROUNDING).sum() + (abs(ahead[:document]) <= _ROUNDING).sum())


def _ndcg(ranks: Floats, grades: Sequence[int]) -> float:
    """The discounted grades among the first documents, as a share of those of the best order."""
    best = np.sort(grades)[::-1][:NDCG_AT]
    gains = np.where(ranks <= NDCG_AT, np.array(grades) / np.log2(ranks + 1), 0.0)
    return float(gains.sum() / (best / np.log2(np.arange(len(best)) + 2)).sum())
