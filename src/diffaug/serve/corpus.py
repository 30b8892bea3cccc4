"""What the server searches: an index on disk, or sentences and their vectors in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.data.documents import Documents, read_documents
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.inference.encode import unit
from diffaug.inference.index import Index
from diffaug.inference.runner import Vectors
from diffaug.inference.search import Hit, exact_search
from diffaug.inference.stored import StoredVectors
from diffaug.serve.web import ApiError


@dataclass(frozen=True)
class Query:
    """A search.

    Attributes:
        text: what is searched for.
        k: number of results.
        filters: columns and the values that they must have, as text.
        where: a condition in SQL; only for an index.
        hybrid: combine vectors with full-text search; only for an index.
    """

    text: str
    k: int
    filters: Mapping[str, str]
    where: str | None = None
    hybrid: bool = False


class Corpus(ABC):
    """Documents that can be searched from several threads.

    Attributes:
        name: the name of the file or folder, without its path.
        rows: the number of documents.
        columns: names of the columns beside the sentence.
        is_index: whether `Query.where` and `Query.hybrid` can be used.
    """

    name: str
    rows: int
    columns: tuple[str, ...]
    is_index: bool

    @abstractmethod
    def search(self, query: Query, vector: Vectors) -> list[Hit]:
        """The documents that are most similar to a query, best first.

        Raises:
            ApiError: the filter cannot be used.
        """


class IndexCorpus(Corpus):
    """An index of `diffaug index build`."""

    is_index = True

    def __init__(self, index: Index) -> None:
        self.name, self.columns = index.folder.resolve().name, tuple(index.vectors.columns)
        self._index = index

    @property
    def rows(self) -> int:  # type: ignore[override]
        """The number of documents."""
        return self._index.rows

    def search(self, query: Query, vector: Vectors) -> list[Hit]:
        conditions = [f"CAST(`{name}` AS STRING) = {_quoted(value)}" for name, value in query.filters.items()]
        if query.where is not None:
            conditions.append(f"({query.where})")
        where = " AND ".join(conditions) or None
        try:
            texts = [query.text] if query.hybrid else None
            queries = unit(vector[None, : self._index.vectors.width])  # the index may be of truncated vectors
            return self._index.search(queries, query.k, where=where, texts=texts)[0]
        except DiffaugError as error:  # its message names the folder
            if where is None:
                raise
            raise ApiError(
                400, "the filter cannot be used; write it in SQL, such as year > 2020", param="filter"
            ) from error


class MemoryCorpus(Corpus):
    """Documents in memory, searched exactly."""

    is_index = False

    def __init__(self, name: str, documents: Documents, vectors: Vectors) -> None:
        self.name, self.rows, self.columns = name, len(documents), tuple(documents.columns)
        self.documents = documents
        self._vectors = vectors

    def search(self, query: Query, vector: Vectors) -> list[Hit]:
        if query.where is not None or query.hybrid:
            raise ApiError(400, "filter and hybrid need an index; build one with diffaug index build", param="filter")
        rows: Any = None
        for name, value in query.filters.items():
            match = np.array([str(cell) == value for cell in self.documents.columns[name]], dtype=bool)
            rows = match if rows is None else rows & match
        places = np.arange(self.rows) if rows is None else np.flatnonzero(rows)
        if not len(places):
            return []
        vectors = self._vectors if rows is None else self._vectors[places]
        queries = unit(vector[None, : vectors.shape[1]])  # they may be truncated
        return [self._hit(int(places[hit.index]), hit.score) for hit in exact_search(vectors, queries, query.k)[0]]

    def _hit(self, row: int, score: float) -> Hit:
        others = {name: values[row] for name, values in self.documents.columns.items()}
        return Hit(row, score, self.documents.sentences[row], others)


def open_corpus(
    source: str | Path,
    embedder: Embedder,
    columns: Mapping[str, str | int] | None = None,
    keep: Sequence[str] | None = None,
) -> Corpus:
    """Open an index, vectors that `encode` wrote, or files of sentences, which are encoded now.

    Raises:
        DiffaugError: it cannot be read, is empty, or belongs to another model.
    """
    name = Path(source).resolve().name
    if (Path(source) / "diffaug-index.json").is_file():
        index = Index.open(source)
        index.vectors.require_model(embedder.fingerprint(), embedder.name, index.name)
        return IndexCorpus(index)
    stored = StoredVectors.open(source)
    if stored is not None:
        stored.vectors.require_model(embedder.fingerprint(), embedder.name, stored.name)
        return MemoryCorpus(name, *stored.load())
    documents = read_documents(source, columns, keep)
    return MemoryCorpus(name, documents, embedder.encode(documents.sentences))


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
