"""A map of sentences: a model's vectors, projected to two dimensions."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from diffaug.errors import DiffaugError

Floats = NDArray[np.float64]
Projection = Literal["pca", "tsne"]

NEIGHBOURS = 10


def project(vectors: NDArray[np.float32], how: Projection) -> tuple[Floats, float | None]:
    """Project to (sentences, 2) with mean 0 and mean square 1; for PCA also return the explained variance ratio.

    Raises:
        DiffaugError: t-SNE was chosen and scikit-learn is not installed.
    """
    centred = vectors.astype(np.float64) - vectors.mean(0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    flat = left[:, :2] * scale[:2]
    if flat.shape[1] < 2:
        flat = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    # The sign of a component is arbitrary; make the coordinate with the largest magnitude positive.
    farthest = np.abs(flat).argmax(0)
    flat = flat * np.where(flat[farthest, [0, 1]] < 0, -1, 1)
    shown: float | None = float((scale[:2] ** 2).sum() / max((scale**2).sum(), 1e-12))
    if how == "tsne" and len(vectors) > 4:
        flat, shown = _tsne(vectors, flat), None
    return _scaled(flat), shown


def align(flat: Floats, reference: Floats) -> Floats:
    """Rotate and mirror a map so that its points are as close as possible to those of another (Procrustes)."""
    left, _, right = np.linalg.svd(flat.T @ reference)
    return flat @ (left @ right)


def neighbours(vectors: NDArray[np.float32], count: int = NEIGHBOURS) -> list[list[tuple[int, float]]]:
    """For each sentence its nearest neighbours and their cosines, nearest first; ``vectors`` have length 1."""
    cosines = (vectors @ vectors.T).astype(np.float64)
    np.fill_diagonal(cosines, -np.inf)
    count = min(count, len(vectors) - 1)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return [[(int(j), float(cosines[i, j])) for j in row] for i, row in enumerate(nearest)]


def _tsne(vectors: NDArray[np.float32], start: Floats) -> Floats:
    try:
        manifold: Any = import_module("sklearn.manifold")
    except ImportError as error:
        raise DiffaugError("a t-SNE map needs scikit-learn: pip install 'diffaug[report]', or use --map pca") from error
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    # Initialised with a small PCA map, which makes the result deterministic.
    init = 1e-4 * start / max(float(start[:, 0].std()), 1e-12)
    method = manifold.TSNE(2, init=init.astype(np.float32), perplexity=perplexity, metric="cosine", random_state=0)
    flat: Floats = method.fit_transform(vectors).astype(np.float64)
    return flat


def _scaled(flat: Floats) -> Floats:
    centred: Floats = flat - flat.mean(0)
    return centred / max(float(np.sqrt((centred**2).mean())), 1e-12)
