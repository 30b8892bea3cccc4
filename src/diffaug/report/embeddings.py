"""A map of sentences: the vectors of a model, brought down to two dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from diffaug.data.records import ScoredPairs
from diffaug.errors import DiffaugError

Floats = NDArray[np.float64]
Projection = Literal["pca", "tsne"]

NEIGHBOURS = 5


def choose_pairs(pairs: ScoredPairs, count: int, wanted: Iterable[int] = ()) -> list[int]:
    """About ``count`` pairs: those ``wanted`` first, the others spread evenly over the gold scores."""
    chosen = list(dict.fromkeys(wanted))[: count // 2]
    by_score = np.argsort(pairs.scores, kind="stable")
    spread = by_score[np.unique(np.linspace(0, len(pairs) - 1, min(count - len(chosen), len(pairs))).astype(int))]
    return sorted(dict.fromkeys([*chosen, *(int(i) for i in spread)]))


def project(vectors: NDArray[np.float32], how: Projection) -> tuple[Floats, float | None]:
    """(sentences, 2), with mean zero and mean square one; for PCA also the part of the variance that it shows.

    Raises:
        DiffaugError: t-SNE without scikit-learn.
    """
    centred = vectors.astype(np.float64) - vectors.mean(0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    flat = left[:, :2] * scale[:2]
    if flat.shape[1] < 2:
        flat = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    # The sign of a component is arbitrary: the point farthest out is on the positive side.
    farthest = np.abs(flat).argmax(0)
    flat = flat * np.where(flat[farthest, [0, 1]] < 0, -1, 1)
    shown: float | None = float((scale[:2] ** 2).sum() / max((scale**2).sum(), 1e-12))
    if how == "tsne" and len(vectors) > 4:
        flat, shown = _tsne(vectors, flat), None
    return _scaled(flat), shown


def turned(flat: Floats, like: Floats) -> Floats:
    """The same map, turned and mirrored so that its points lie as near as possible to those of another."""
    left, _, right = np.linalg.svd(flat.T @ like)
    return flat @ (left @ right)


def neighbours(vectors: NDArray[np.float32], count: int = NEIGHBOURS) -> list[list[tuple[int, float]]]:
    """For each sentence the most similar others and their cosines, most similar first; ``vectors`` have length one."""
    cosines = (vectors @ vectors.T).astype(np.float64)
    np.fill_diagonal(cosines, -np.inf)
    count = min(count, len(vectors) - 1)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return [[(int(j), float(cosines[i, j])) for j in row] for i, row in enumerate(nearest)]


def _tsne(vectors: NDArray[np.float32], start: Floats) -> Floats:
    try:
        manifold: Any = import_module("sklearn.manifold")
    except ImportError as error:
        raise DiffaugError("a t-SNE map needs scikit-learn: pip install 'diffaug[eval]', or take --map pca") from error
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    # From the map of PCA, small at first, as t-SNE wants it: the same result every time.
    first = 1e-4 * start / max(float(start[:, 0].std()), 1e-12)
    method = manifold.TSNE(2, init=first.astype(np.float32), perplexity=perplexity, metric="cosine", random_state=0)
    flat: Floats = method.fit_transform(vectors).astype(np.float64)
    return flat


def _scaled(flat: Floats) -> Floats:
    centred: Floats = flat - flat.mean(0)
    return centred / max(float(np.sqrt((centred**2).mean())), 1e-12)
