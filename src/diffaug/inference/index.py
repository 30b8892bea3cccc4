"""`Index`: vectors with their texts and columns in an embedded database (LanceDB), on disk.

Below `EXACT_LIMIT` rows a search is exact. Above, the table has an approximate index (IVF-SQ: partitions, 8 bits per
component). After every build its recall is measured against exact search, and the search looks at more of the index
until the recall is good enough. If it never is, the index is removed, and the search stays exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.data.documents import Documents
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, atomic_folder, exclusive_lock, write_text
from diffaug.inference.encode import unit
from diffaug.inference.manifest import VectorSet
from diffaug.inference.parquet import EMBEDDING, SENTENCE, pyarrow_modules
from diffaug.inference.runner import Vectors
from diffaug.inference.search import Hit, VectorStore, search_blocks
from diffaug.inference.stored import StoredVectors

EXACT_LIMIT = 100_000
RECALL_GOAL = 0.95
_TABLE = "documents"
_DESCRIPTION = "diffaug-index.json"
_FORMAT = "diffaug index 2"
# Holds the version of the table before documents that are being added.
_ADDING = ".adding"
_VECTOR, _ROW = "vector", "row_number"
# Partitions to search, and how many times k candidates are compared with their exact vectors. A partition has some
# thousand rows.
_EFFORTS = ((10, 5), (20, 5), (40, 10), (80, 20), (160, 40), (320, 80), (1000, 200))
# Of unit vectors the same order as the cosine. With "dot", LanceDB's partitions and its search are worse.
_DISTANCE = "l2"
_SAMPLED = 100
_K = 10
_BLOCK = 8_192


@dataclass(frozen=True)
class Recall:
    """The measured quality of an approximate index.

    Attributes:
        recall: recall@10 against exact search, for sampled documents as queries, which are not counted themselves.
        queries: how many.
        nprobes: partitions that a search looks at.
        refine_factor: a search compares this many times ``k`` candidates with their exact vectors.
    """

    recall: float
    queries: int
    nprobes: int
    refine_factor: int

    def __str__(self) -> str:
        return (
            f"recall@{_K} {self.recall:.3f} against exact search on {self.queries} sampled queries "
            f"(nprobes {self.nprobes}, refine factor {self.refine_factor})"
        )


class Index(VectorStore):
    """Documents in a folder, for `Embedder.search`. Create one with `Index.build` or `Index.open`.

    Attributes:
        name: the folder.
        vectors: the model and settings of the vectors.
        recall: of the approximate index; None if the search is exact.
        missed: the recall of an approximate index that was removed, because it was too low; None if there was none.
    """

    def __init__(
        self, folder: Path, table: Any, vectors: VectorSet, recall: Recall | None = None, missed: Recall | None = None
    ) -> None:
        self.folder, self.name = folder, str(folder)
        self.vectors = vectors
        self.recall, self.missed = recall, missed
        self._table = table

    @property
    def rows(self) -> int:  # type: ignore[override]
        """The number of documents."""
        return int(self._table.count_rows())

    @property
    def quality(self) -> str:
        """How good a search is, in words."""
        if self.recall is not None:
            return str(self.recall)
        if self.missed is not None:
            return f"search is exact, because an approximate index missed the goal of {RECALL_GOAL}: {self.missed}"
        return "search is exact"

    @classmethod
    def build(
        cls, folder: str | Path, source: str | Path | Sequence[str | Path] | StoredVectors, *, overwrite: bool = False
    ) -> Index:
        """Create an index; it appears when it is complete.

        Args:
            folder: of the index.
            source: vectors that `Embedder.encode_files` wrote to a folder or to .parquet files.
            overwrite: replace an index in that folder.

        Raises:
            DiffaugError: the folder exists and ``overwrite`` is off, it cannot be written, or the vectors cannot be
                read.
        """
        folder, rows = Path(folder), _stored(source)
        reserved = {SENTENCE, _VECTOR, _ROW} & set(rows.vectors.columns)
        if reserved:
            raise DiffaugError(f"the index itself has a column {reserved.pop()!r}; rename that of the documents")
        lancedb = _lancedb()
        if overwrite and folder.exists() and not (folder / _DESCRIPTION).is_file():
            raise DiffaugError(f"{folder} is not an index and is not overwritten; choose another folder")
        with atomic_folder(folder, overwrite=overwrite) as temporary:
            schema = _schema(rows)
            table = lancedb.connect(str(temporary)).create_table(_TABLE, schema=schema)
            index = cls(temporary, table, rows.vectors)
            index._append(rows, schema)
            index._update()
            if index.missed is not None:  # nobody reads the files of the removed index here
                table.optimize(cleanup_older_than=timedelta(milliseconds=1))
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Index:
        """Open an index.

        Raises:
            DiffaugError: the folder is not an index.
        """
        lancedb = _lancedb()
        folder = Path(folder)
        path = folder / _DESCRIPTION
        try:
            values = json.loads(path.read_text("utf-8"))
            if values["format"] != _FORMAT:
                raise DiffaugError(
                    f"{path} was written by another version of diffaug ({values['format']}); build the index again"
                )
            vectors = VectorSet.from_dict(values["vectors"], str(path))
            recall, missed = (None if (found := values[n]) is None else Recall(**found) for n in ("recall", "missed"))
            table = lancedb.connect(str(folder)).open_table(_TABLE)
        except FileNotFoundError as error:
            raise DiffaugError(f"{folder} is not an index of diffaug; create one with diffaug index build") from error
        except DiffaugError:
            raise
        except Exception as error:  # LanceDB raises errors of several kinds for damaged files
            reason = " ".join(str(error).split())[:200]
            raise DiffaugError(
                f"the index {folder} is damaged ({type(error).__name__}: {reason}); build it again"
            ) from error
        return cls(folder, table, vectors, recall, missed)

    def add(self, source: str | Path | Sequence[str | Path] | StoredVectors) -> int:
        """Add documents without building the index again; return their number.

        All of them are added, or, after an error, none. What a process that was killed has added is removed by the next
        call.

        Raises:
            DiffaugError: they have vectors of another model or other columns, or another process is adding documents.
        """
        rows = _stored(source)
        self.vectors.require_model(rows.vectors.fingerprint, rows.vectors.model, self.name)
        if rows.vectors.width != self.vectors.width:
            raise DiffaugError(
                f"the index {self.folder} has vectors of width {self.vectors.width}, but {rows.name} of "
                f"{rows.vectors.width}; encode it with --truncate-dim {self.vectors.width}"
            )
        self.require_columns(rows.vectors.columns, rows.name)
        with exclusive_lock(self.folder / ".lock", f"the index {self.folder} is in use by another process"):
            self._table.checkout_latest()
            self._undo_unfinished()
            before, qualities = self.rows, (self.recall, self.missed)
            write_text(self.folder / _ADDING, str(self._table.version))
            try:
                self._append(rows, self._table.schema)
                self._update()
                (self.folder / _ADDING).unlink()
            except BaseException:
                self.recall, self.missed = qualities
                with suppress(Exception):  # for example if the disk is full; then the next call does it
                    self._undo_unfinished()
                raise
            return self.rows - before

    def require_columns(self, columns: Sequence[str], name: str) -> None:
        """Raise an error if documents with these columns, in ``name``, cannot be added."""
        for column in {*self.vectors.columns, *columns}:
            for there, what in ((self.vectors.columns, f"the index {self.folder}"), (columns, name)):
                if column not in there:
                    raise DiffaugError(
                        f"{what} has no column {column!r}; the documents must have the columns of the index"
                    )

    def search(
        self, queries: Vectors, k: int, *, where: str | None = None, texts: Sequence[str] | None = None
    ) -> list[list[Hit]]:
        """The ``k`` documents most similar to each query, best first.

        Args:
            queries: the vectors of the queries.
            k: number of results.
            where: a condition in SQL on the columns, such as ``year > 2020``; only rows that meet it are searched.
            texts: the queries as text, for a hybrid search: the ranks in a full-text search and in the vector search
                are combined (reciprocal rank fusion), and the scores are those of the combination.

        Raises:
            DiffaugError: the condition cannot be used.
        """
        if k < 1:
            raise DiffaugError(f"k must be at least 1, got {k}")
        return [
            self._search(query, k, self.recall, where, None if texts is None else texts[i])
            for i, query in enumerate(queries)
        ]

    def _search(
        self, query: Vectors, k: int, recall: Recall | None, where: str | None = None, text: str | None = None
    ) -> list[Hit]:
        columns = [_ROW, SENTENCE, *self.vectors.columns]
        if text is None:
            search = self._table.search(query, vector_column_name=_VECTOR).select([*columns, "_distance"])
        else:
            search = self._table.search(query_type="hybrid", vector_column_name=_VECTOR, fts_columns=SENTENCE)
            search = search.vector(query).text(text or " ")  # LanceDB refuses an empty text, not one without words
        search = search.distance_type(_DISTANCE).limit(k)
        if recall is None:
            search = search.bypass_vector_index()
        else:
            search = search.nprobes(recall.nprobes).refine_factor(recall.refine_factor)
        if where is not None:
            search = search.where(where, prefilter=True)
            if recall is not None:
                search = search.maximum_nprobes(0)  # no limit: the first partitions may have too few of these rows
        try:
            found = search.to_arrow().to_pylist()
        except Exception as error:  # LanceDB raises errors of several kinds
            reason = " ".join(str(error).split())[:300]
            condition = "" if where is None else f" with the filter {where!r}"
            raise DiffaugError(f"the index {self.folder} cannot be searched{condition}: {reason}") from error
        hits, square = [], float(np.dot(query, query))
        for row in found:
            # Documents have length 1, and LanceDB returns the square of the Euclidean distance.
            score = (1 + square - row["_distance"]) / 2 if text is None else row["_relevance_score"]
            others = {name: row[name] for name in self.vectors.columns}
            hits.append(Hit(row[_ROW], float(score), row[SENTENCE], others))
        return sorted(hits, key=lambda hit: (-hit.score, hit.index))

    def _append(self, rows: StoredVectors, schema: Any) -> None:
        pyarrow, _ = pyarrow_modules()

        def batches(start: int) -> Iterator[Any]:
            for batch, vectors in rows.batches():
                if not np.isfinite(vectors).all():
                    raise DiffaugError(f"{rows.name} has a vector that is not finite; encode it again")
                flat = pyarrow.array(unit(vectors).astype(np.float32).ravel())
                arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
                arrays[_ROW] = pyarrow.array(np.arange(start, start + len(vectors)))
                arrays[_VECTOR] = pyarrow.FixedSizeListArray.from_arrays(flat, rows.vectors.width)
                start += len(vectors)
                yield pyarrow.record_batch(
                    [arrays[name].cast(schema.field(name).type) for name in schema.names], schema
                )

        # LanceDB would wrap errors of the generator in its own.
        failures: list[DiffaugError] = []

        def guarded() -> Iterator[Any]:
            try:
                yield from batches(self.rows)
            except DiffaugError as error:
                failures.append(error)
                raise

        try:
            self._table.add(pyarrow.RecordBatchReader.from_batches(schema, guarded()))
        except Exception as error:
            if failures:
                raise failures[0] from error
            reason = " ".join(str(error).split())[:300]
            raise DiffaugError(f"the documents cannot be added to the index {self.folder}: {reason}") from error

    def _undo_unfinished(self) -> None:
        """Remove documents whose adding has not ended."""
        adding = self.folder / _ADDING
        if adding.is_file():
            self._table.restore(int(adding.read_text()))
            adding.unlink()

    def _update(self) -> None:
        """Bring the indexes up to date, measure the recall and write the description."""
        from lancedb.index import FTS

        present = self._indexed()
        if SENTENCE not in present and self.rows:
            self._table.create_index(SENTENCE, config=FTS())
        self._table.optimize()
        self.recall = self.missed = None
        if self.rows >= EXACT_LIMIT:
            self._approximate(present)
        recalls = {"recall": self.recall, "missed": self.missed}
        values = {
            "format": _FORMAT,
            "vectors": replace(self.vectors, shard_size=0).to_dict(),
            **{name: None if recall is None else vars(recall) for name, recall in recalls.items()},
        }
        with atomic_file(self.folder / _DESCRIPTION) as temporary:
            temporary.write_text(json.dumps(values, indent=2) + "\n", "utf-8")

    def _indexed(self) -> dict[str, str]:
        """The columns that have an index, with its name."""
        return {index.columns[0]: index.name for index in self._table.list_indices()}

    def _approximate(self, present: Mapping[str, str]) -> None:
        """Have an approximate index that reaches the goal, or none."""
        from lancedb.index import IvfSq

        if _VECTOR in present:
            self.recall = self._measure()
        if self.recall is None or self.recall.recall < RECALL_GOAL:  # what was added may need other partitions
            self._table.create_index(_VECTOR, config=IvfSq(distance_type=_DISTANCE))
            self.recall = self._measure()
        if self.recall.recall < RECALL_GOAL:
            self.recall, self.missed = None, self.recall
            self._table.drop_index(self._indexed()[_VECTOR])

    def _measure(self) -> Recall:
        """The recall with the least effort that reaches the goal."""
        rng = np.random.default_rng(0)
        sampled = sorted(rng.choice(self.rows, size=_SAMPLED, replace=False).tolist())
        condition = f"{_ROW} IN ({', '.join(map(str, sampled))})"
        found = self._table.search().where(condition).select([_ROW, _VECTOR]).limit(_SAMPLED).to_arrow()
        queries = _matrix(found[_VECTOR].combine_chunks())
        own = found[_ROW].to_pylist()
        scan = self._table.search().select([_ROW, _VECTOR]).to_batches(_BLOCK)
        blocks = ((Documents(batch[_ROW].to_pylist()), _matrix(batch[_VECTOR])) for batch in scan)
        exact = search_blocks(blocks, queries, _K + 1)
        for nprobes, refine_factor in _EFFORTS:
            recall = Recall(0.0, len(own), nprobes, refine_factor)
            shares = []
            for query, row, best in zip(queries, own, exact, strict=True):
                # The sentence of a hit is here its row. Equally similar documents count as found.
                others = [hit for hit in best if hit.sentence != row][:_K]
                near = [hit for hit in self._search(query, _K + 1, recall) if hit.index != row][:_K]
                shares.append(sum(hit.score >= others[-1].score - 1e-5 for hit in near) / len(others))
            recall = replace(recall, recall=float(np.mean(shares)))
            if recall.recall >= RECALL_GOAL:
                break
        return recall


def _stored(source: str | Path | Sequence[str | Path] | StoredVectors) -> StoredVectors:
    found = source if isinstance(source, StoredVectors) else StoredVectors.open(source, verify=True)
    if found is None:
        raise DiffaugError(f"{source} holds no vectors; write them first with diffaug encode --out FOLDER")
    return found


def _schema(rows: StoredVectors) -> Any:
    pyarrow, _ = pyarrow_modules()
    fields = [field for field in rows.schema() if field.name != EMBEDDING]
    fields += [
        pyarrow.field(_ROW, pyarrow.int64()),
        pyarrow.field(_VECTOR, pyarrow.list_(pyarrow.float32(), rows.vectors.width)),
    ]
    return pyarrow.schema(fields)


def _matrix(lists: Any) -> Vectors:
    vectors: Vectors = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1)
    return vectors


def _lancedb() -> Any:
    try:
        import lancedb
    except ImportError as error:
        raise DiffaugError("an index needs LanceDB: pip install 'diffaug[index]'") from error
    return lancedb
