"""Exact search: the most similar vectors of a corpus, which may be read in blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffaug.data.documents import Documents
from diffaug.errors import DiffaugError
from diffaug.inference.manifest import VectorSet
from diffaug.inference.runner import Vectors

# Similarities in memory at a time.
_BLOCK = 1 << 24


@dataclass(frozen=True)
class Hit:
    """A search result.

    Attributes:
        index: the index in the corpus, starting at 0.
        score: the cosine similarity to the query, or the score of a hybrid search.
        sentence: the text, if the corpus is an index or a stored file of vectors.
        columns: the other columns of the row, likewise.
    """

    index: int
    score: float
    sentence: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


class VectorStore(ABC):
    """Vectors on disk, with their texts.

    Attributes:
        name: for messages.
        vectors: the model and settings they were computed with.
        rows: their number.
    """

    name: str
    vectors: VectorSet
    rows: int

    @abstractmethod
    def search(self, queries: Vectors, k: int) -> list[list[Hit]]:
        """The ``k`` documents most similar to each query, best first."""


def exact_search(documents: Vectors, queries: Vectors, k: int) -> list[list[Hit]]:
    """The ``k`` documents with the largest dot product with each query, best first; ties are in corpus order.

    Raises:
        DiffaugError: ``k`` is below 1, or a vector is not finite.
    """
    if k < 1:
        raise DiffaugError(f"k must be at least 1, got {k}")
    found: list[list[Hit]] = []
    step = max(1, _BLOCK // max(1, len(documents)))
    for start in range(0, len(queries), step):
        block = queries[start : start + step]
        for query, scores in zip(block, block @ documents.T, strict=True):
            if len(bad := np.flatnonzero(~np.isfinite(scores))):
                raise DiffaugError(
                    f"{len(bad):,} of {len(documents):,} similarities to the query are NaN or infinite, the first "
                    f"to entry {bad[0]} of the corpus; the vectors are damaged, or their model has diverged"
                )
            candidates = np.arange(len(documents))
            if k < len(documents):
                # Rounding in a matrix product depends on the position, so equal documents may differ slightly.
                near = np.partition(scores, -k)[-k] - 1e-6 * max(1.0, np.abs(scores).max())
                candidates = np.flatnonzero(scores >= near)
            # In double precision equal documents have equal scores, so that ties are in corpus order.
            exact = np.einsum("ij,j->i", documents[candidates], query, dtype=np.float64).astype(np.float32)
            best = np.argsort(-exact, kind="stable")[:k]
            found.append([Hit(int(candidates[i]), float(exact[i])) for i in best])
    return found


def search_blocks(blocks: Iterable[tuple[Documents, Vectors]], queries: Vectors, k: int) -> list[list[Hit]]:
    """`exact_search` in a corpus of consecutive blocks, of which one is in memory at a time."""
    best: list[list[Hit]] = [[] for _ in queries]
    start = 0
    for documents, vectors in blocks:
        for hits, new in zip(best, exact_search(vectors, queries, k), strict=True):
            worst = hits[-1].score if len(hits) >= k else -np.inf
            for hit in new:
                if hit.score > worst:
                    others = {name: values[hit.index] for name, values in documents.columns.items()}
                    hits.append(Hit(start + hit.index, hit.score, documents.sentences[hit.index], others))
            hits.sort(key=lambda hit: (-hit.score, hit.index))
            del hits[k:]
        start += len(documents)
    return best


def search_unique(search: Callable[[int], list[list[Hit]]], k: int, size: int) -> list[list[Hit]]:
    """The ``k`` best hits with different sentences: each sentence once, with its first row.

    Args:
        search: returns the given number of hits for each query.
        k: number of results.
        size: number of documents.
    """
    wanted = k
    while True:
        found = []
        for hits in search(wanted):
            first: dict[str | None, Hit] = {}
            for hit in hits:
                first.setdefault(hit.sentence, hit)
            found.append(list(first.values())[:k])
        if wanted >= size or all(len(hits) == k for hits in found):
            return found
        wanted = min(size, 4 * wanted)
