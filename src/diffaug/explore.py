"""Look at sentences by their vectors: near-duplicates, outliers, and a table for Embedding Atlas."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from diffaug.data.columns import Columns
from diffaug.data.documents import DocumentReader, Documents, read_documents
from diffaug.data.problems import OnBad
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file
from diffaug.inference.encode import unit
from diffaug.inference.manifest import Manifest, VectorSet
from diffaug.inference.parquet import pyarrow_modules
from diffaug.inference.quantize import dequantize
from diffaug.inference.runner import Vectors
from diffaug.inference.stored import StoredVectors

Integers = NDArray[np.int64]

# Similarities in memory at a time.
_BLOCK = 1 << 24
# Pairs of near-duplicates in memory; beyond this, they are reduced to one per sentence.
_MAX_PAIRS = 5_000_000
_NEIGHBOURS = 15  # of the projection
_FEWEST = 4  # sentences that can be projected
_EXACT = 10_000  # sentences whose neighbours are found exactly
_CLUSTERS_AT_MOST = 50


@dataclass(frozen=True)
class Collection:
    """Sentences with the other columns of their rows, and their vectors of length 1.

    Attributes:
        documents: the rows.
        vectors: (rows, width).
        model: the model that computed them; None if it is unknown.
    """

    documents: Documents
    vectors: Vectors
    model: str | None = None

    def __len__(self) -> int:
        return len(self.documents)


def load_collection(
    source: str | os.PathLike[str],
    vectors: str | os.PathLike[str] | None = None,
    *,
    model: Embedder | str | None = None,
    columns: Columns | None = None,
    on_bad: OnBad = "error",
) -> Collection:
    """Read sentences and their vectors, or compute the vectors.

    Args:
        source: what `encode_files` wrote to Parquet, or files with sentences.
        vectors: the .npy file that `encode_files` wrote for these files.
        model: for files without vectors.
        columns: names of the columns, where they are not the usual ones.
        on_bad: what to do with rows that cannot be used.

    Raises:
        DiffaugError: they cannot be read, or do not belong together.
    """
    if vectors is not None:
        return _with_array(source, Path(vectors), columns)
    stored = StoredVectors.open(os.fspath(source))
    if stored is not None:
        documents, found = stored.load()
        return Collection(documents, unit(found), stored.vectors.model)
    documents = read_documents(os.fspath(source), columns, on_bad=on_bad)
    embedder = model if isinstance(model, Embedder) else Embedder.from_pretrained(model)
    return Collection(documents, embedder.encode(documents.sentences), embedder.name)


def _with_array(source: str | os.PathLike[str], path: Path, columns: Columns | None) -> Collection:
    reader = DocumentReader(os.fspath(source), columns)
    rows = list(reader)
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DiffaugError(f"{path} cannot be read as a NumPy array: {error}") from error
    manifest = Path(f"{path}.manifest")
    known: VectorSet | None = Manifest.load(manifest).vectors if manifest.is_file() else None
    if array.ndim != 2 or not rows or len(array) != len(rows):
        shape = " x ".join(map(str, array.shape))
        raise DiffaugError(f"{path} holds {shape} numbers, but {source} has {len(rows):,} rows; encode it again")
    found = array.astype(np.float32) if known is None else dequantize(array, known.precision, known.width)
    sentences, *others = (list(values) for values in zip(*rows, strict=True))
    documents = Documents(sentences, dict(zip(reader.columns, others, strict=True)))
    return Collection(documents, unit(found), None if known is None else known.model)


@dataclass(frozen=True)
class Duplicate:
    """A sentence of a group of near-duplicates.

    Attributes:
        group: the number of the group, from 1.
        row: the sentence's row, from 0.
        similarity: its cosine with the first sentence of the group.
        sentence: the text.
    """

    group: int
    row: int
    similarity: float
    sentence: str


def near_duplicates(collection: Collection, threshold: float = 0.95) -> list[Duplicate]:
    """Groups of sentences that are nearly the same.

    Each sentence has a cosine of at least ``threshold`` with another one of its group. The largest groups come first,
    and the sentences of a group in their order. All pairs are compared, in blocks.
    """
    if not 0 < threshold <= 1:
        raise DiffaugError(f"the threshold must be above 0 and at most 1, got {threshold}")
    # Equal sentences are one: their pairs could be very many.
    place: dict[str, int] = {}
    of = np.array([place.setdefault(text, len(place)) for text in collection.documents.sentences], np.int64)
    first = np.unique(of, return_index=True)[1]
    groups = _connected(collection.vectors[first], threshold)[of]
    order = np.argsort(groups, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(order) else []
    found = sorted((part for part in parts if len(part) > 1), key=lambda part: (-len(part), part[0]))
    vectors, sentences = collection.vectors, collection.documents.sentences
    return [
        Duplicate(number, int(row), round(float(vectors[row] @ vectors[part[0]]), 4), sentences[row])
        for number, part in enumerate(found, start=1)
        for row in part
    ]


def _connected(vectors: Vectors, threshold: float) -> Integers:
    """The number of each vector's connected component in the graph of pairs above the threshold."""
    count = len(vectors)
    labels: Integers = np.arange(count)
    pairs: list[tuple[Integers, Integers]] = []
    held = 0

    def merge() -> None:
        nonlocal labels, held
        start, end = (np.concatenate([pair[side] for pair in pairs] or [labels[:0]]) for side in (0, 1))
        start, end = np.concatenate([start, np.arange(count)]), np.concatenate([end, labels])
        # The components so far are named by their first row.
        graph = coo_array((np.ones(len(start), bool), (start, end)), shape=(count, count))
        component = connected_components(graph, directed=False)[1]
        labels = np.unique(component, return_index=True)[1][component]
        pairs.clear()
        held = 0

    # Rounding may put equal vectors a little below a threshold of 1.
    for begin, cosines in _blocks(vectors):
        rows, others = np.nonzero(cosines >= threshold - 1e-6)
        above = others > rows + begin
        pairs.append((rows[above] + begin, others[above]))
        held += int(above.sum())
        if held > _MAX_PAIRS:
            merge()
    merge()
    return labels


@dataclass(frozen=True)
class Outlier:
    """A sentence that has no similar ones.

    Attributes:
        row: the sentence's row, from 0.
        similarity: the mean cosine with its nearest neighbours.
        sentence: the text.
    """

    row: int
    similarity: float
    sentence: str


def outliers(collection: Collection, limit: int = 100, neighbours: int = 10) -> list[Outlier]:
    """The sentences whose nearest neighbours are least similar to them, the most isolated first.

    All pairs are compared, in blocks.
    """
    if limit < 1 or neighbours < 1:
        raise DiffaugError(f"limit and neighbours must be at least 1, got {limit} and {neighbours}")
    count = min(neighbours, len(collection) - 1)
    if count < 1:
        raise DiffaugError("a single sentence has no neighbours; give more sentences")
    parts = []
    for begin, cosines in _blocks(collection.vectors):
        rows = np.arange(len(cosines))
        cosines[rows, rows + begin] = -np.inf
        parts.append(np.partition(cosines, -count, axis=1)[:, -count:].mean(1))
    means = np.concatenate(parts)
    chosen = np.argsort(means, kind="stable")[:limit]
    return [Outlier(int(i), round(float(means[i]), 4), collection.documents.sentences[i]) for i in chosen]


def _blocks(vectors: Vectors) -> Iterator[tuple[int, Vectors]]:
    """The cosines of some rows with all rows, and the number of the first of them."""
    step = max(1, _BLOCK // max(1, len(vectors)))
    for begin in range(0, len(vectors), step):
        yield begin, vectors[begin : begin + step] @ vectors.T


def require_atlas() -> None:
    """Raise an error if Embedding Atlas is not installed."""
    if find_spec("embedding_atlas") is None or find_spec("umap") is None:
        raise DiffaugError(
            "exploring needs Embedding Atlas: pip install 'diffaug[explore]' (Python 3.11 or newer), or write only the "
            "lists of diffaug duplicates and diffaug outliers"
        )


def atlas_table(
    path: Path, collection: Collection, versus: Embedder | None = None, clusters: int | None = None, seed: int = 0
) -> list[str]:
    """Write the Parquet file that Embedding Atlas opens, and return the names of its columns.

    It has the sentences and their other columns, `cluster` (k-means on the vectors), the projection `x`, `y` (UMAP),
    `neighbors`, and for a second model `versus_x`, `versus_y` and `new_neighbors`: the share of nearest neighbours that
    differ between the two.

    Args:
        path: the file.
        collection: what to show.
        versus: a second model, which encodes the sentences.
        clusters: their number; default: grows with the number of sentences, up to 50; 0: none.
        seed: of clusters and projections.

    Raises:
        DiffaugError: there are too few sentences, a column has the name of one of these, or a package is missing.
    """
    count = len(collection)
    if count < _FEWEST:
        raise DiffaugError(f"a projection needs at least {_FEWEST} sentences, got {count}")
    clusters = min(_CLUSTERS_AT_MOST, max(2, round((count / 2) ** 0.5))) if clusters is None else clusters
    near, distances = _nearest(collection.vectors, seed)
    x, y = _project(collection.vectors, near, distances, seed)
    added: dict[str, Any] = {"x": x, "y": y}
    if clusters:
        added["cluster"] = [str(label) for label in _cluster(collection.vectors, min(clusters, count), seed)]
    if versus is not None:
        other = versus.encode(collection.documents.sentences)
        others, far = _nearest(other, seed)
        x2, y2 = _project(other, others, far, seed)
        both = zip(near[:, 1:].tolist(), others[:, 1:].tolist(), strict=True)  # without the sentence itself
        new = [1 - len(set(a) & set(b)) / len(a) for a, b in both]
        added |= {"versus_x": x2, "versus_y": y2, "new_neighbors": new}
    added["neighbors"] = [
        {"ids": ids, "distances": away} for ids, away in zip(near.tolist(), distances.tolist(), strict=True)
    ]
    given = {"sentence": collection.documents.sentences, **collection.documents.columns}
    if clash := sorted(given.keys() & added.keys()):
        raise DiffaugError(f"the column {clash[0]!r} has the name of a column of the projection; rename it")
    pyarrow, parquet = pyarrow_modules()
    with atomic_file(path) as temporary:
        parquet.write_table(pyarrow.table({**given, **added}), temporary)
    return [*given, *added]


def _nearest(vectors: Vectors, seed: int) -> tuple[Integers, NDArray[np.float32]]:
    """Nearest neighbours, the sentence itself first, and their cosine distances; approximate if there are many."""
    count = min(_NEIGHBOURS + 1, len(vectors))
    if len(vectors) > _EXACT:
        umap: Any = import_module("umap.umap_")
        near, distances, _ = umap.nearest_neighbors(vectors, count, "cosine", {}, True, np.random.RandomState(seed))
        return near, distances
    parts = []
    for begin, cosines in _blocks(vectors):
        rows = np.arange(len(cosines))
        cosines[rows, rows + begin] = np.inf
        parts.append(np.argsort(-cosines, axis=1, kind="stable")[:, :count])
    near = np.concatenate(parts)
    distances = 1 - np.einsum("ik,ijk->ij", vectors, vectors[near])
    return near, np.clip(distances, 0, None).astype(np.float32)


def _project(vectors: Vectors, near: Integers, distances: NDArray[np.float32], seed: int) -> tuple[Vectors, Vectors]:
    umap: Any = import_module("umap")
    method = umap.UMAP(
        n_neighbors=near.shape[1],
        metric="cosine",
        init="pca",
        random_state=seed,
        precomputed_knn=(near, distances),
        force_approximation_algorithm=True,  # otherwise neighbours of few sentences are computed again
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a seed means one thread, and that new points cannot be added
        flat = method.fit_transform(vectors).astype(np.float32)
    return flat[:, 0], flat[:, 1]


def _cluster(vectors: Vectors, count: int, seed: int) -> Sequence[int]:
    try:
        cluster: Any = import_module("sklearn.cluster")
    except ImportError as error:
        raise DiffaugError("clusters need scikit-learn: pip install 'diffaug[explore]', or use --clusters 0") from error
    labels: Sequence[int] = cluster.MiniBatchKMeans(count, random_state=seed, n_init=3).fit_predict(vectors).tolist()
    return labels
