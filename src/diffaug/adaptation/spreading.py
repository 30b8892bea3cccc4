"""Label spreading: classes of unlabelled sentences, from labelled ones through a graph of nearest neighbours.

Unlabelled text shows where a domain's sentences lie close together. A classifier that learns from the labelled vectors
and from the spread labels of the unlabelled ones draws its boundaries between these groups, not through them.

Zhou et al., Learning with Local and Global Consistency (NIPS 2003).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

from diffaug.errors import DiffaugError

Array = NDArray[np.float32]

_BLOCK = 2048


def spread_labels(
    labelled: Array,
    targets: NDArray[np.int64],
    unlabelled: Array,
    classes: int,
    neighbours: int = 10,
    alpha: float = 0.9,
    steps: int = 30,
) -> Array:
    """Estimate the classes of unlabelled vectors.

    Args:
        labelled: (n, width), vectors of length 1.
        targets: (n,), the class of each, from 0.
        unlabelled: (m, width), vectors of length 1.
        classes: number of classes.
        neighbours: per vector in the graph.
        alpha: how much of a vector's label comes from its neighbours in each step; the rest is its own.
        steps: number of propagation steps.

    Returns:
        (m, classes): rows sum to 1; a vector that no label reaches has equal shares.
    """
    if not 0 < alpha < 1:
        raise DiffaugError(f"alpha must be between 0 and 1, got {alpha}")
    graph = _neighbour_graph(np.concatenate([labelled, unlabelled]), neighbours)
    own = np.zeros((graph.shape[0], classes), np.float32)
    own[np.arange(len(targets)), targets] = 1
    found = own.copy()
    for _ in range(steps):
        found = alpha * (graph @ found) + (1 - alpha) * own
    found = found[len(targets) :]
    total = found.sum(1, keepdims=True)
    shares: Array = np.where(total > 0, found / np.maximum(total, 1e-12), 1 / classes).astype(np.float32)
    return shares


def _neighbour_graph(vectors: Array, neighbours: int) -> csr_array:
    """The symmetric graph of nearest neighbours with normalised weights: D^-1/2 W D^-1/2."""
    count = len(vectors)
    k = min(neighbours, count - 1)
    matrix = torch.from_numpy(vectors)
    columns = np.empty((count, k), np.int64)
    weights = np.empty((count, k), np.float32)
    for start in range(0, count, _BLOCK):
        cosines = matrix[start : start + _BLOCK] @ matrix.T
        rows = torch.arange(len(cosines))
        cosines[rows, start + rows] = -1
        values, indices = cosines.topk(k, dim=1)
        columns[start : start + _BLOCK] = indices.numpy()
        # The fourth power makes near neighbours count more than far ones.
        weights[start : start + _BLOCK] = values.clamp(min=0).pow(4).numpy()
    graph = csr_array((weights.ravel(), columns.ravel(), np.arange(0, count * k + 1, k)), shape=(count, count))
    graph = graph.maximum(graph.T)
    scale = diags_array(1 / np.sqrt(np.maximum(graph.sum(axis=1), 1e-12)))
    return csr_array(scale @ graph @ scale, dtype=np.float32)
