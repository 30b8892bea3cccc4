"""Which questions teach a linear head most: a greedy experimental design, before there is any answer.

A question is a point in the space of the head's gradients. Chosen is, one after the other, what reduces the uncertainty
about all candidates most; so questions are typical of many others, and differ from those that were chosen before.

Yu, Bi and Tresp, Active Learning via Transductive Experimental Design (ICML 2006).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

_NOISE = 1.0  # variance of an answer, in units of the mean variance of a candidate
_WIDTH = 0.5  # distance at which the similarity of sentences is 1 / e, in units of their mean distance


def sentence_kernel(vectors: Array) -> Array:
    """(n, n): a similarity of sentences that falls quickly with their distance, as classes are small in their space.

    Args:
        vectors: (n, width), of length 1.
    """
    distances = 1 - vectors @ vectors.T
    # Models differ in how far apart unrelated sentences are.
    kernel: Array = np.exp(-distances / (_WIDTH * max(float(distances.mean()), 1e-6)))
    return kernel


def choose(kernel: Array, count: int, asked: Sequence[int] = (), noise: float = _NOISE) -> list[int]:
    """The indices of up to ``count`` candidates, the most useful first.

    Each is the one whose answer reduces the sum of the candidates' variances, given all answers before, most.

    Args:
        kernel: (n, n), the covariance of the candidates.
        count: how many.
        asked: indices of what was asked before; they are not chosen again.
        noise: the variance of an answer, in units of the mean of the kernel's diagonal.
    """
    n = len(kernel)
    steps = min(count + len(asked), n)
    variances = kernel.diagonal().astype(np.float64)
    noise = noise * float(variances.mean()) or 1.0
    squares = np.einsum("ij,ij->i", kernel, kernel).astype(np.float64)  # of the rows of the remaining covariance
    removed = np.zeros((steps, n), np.float32)  # its rows: the covariance that each answer explains is an outer product
    free = np.ones(n, bool)
    chosen: list[int] = []
    for step in range(steps):
        best = (
            asked[step] if step < len(asked) else int(np.where(free, squares / (variances + noise), -np.inf).argmax())
        )
        chosen.append(best)
        free[best] = False
        before = removed[:step]
        row = kernel[best] - before[:, best] @ before
        total = max(float(row[best]), 0.0) + noise
        product = kernel @ row - (before @ row) @ before
        squares += row * (row * (float(row @ row) / total**2) - 2 * product / total)
        variances -= row * row / total
        removed[step] = row / np.sqrt(total)
    return chosen[len(asked) :]
