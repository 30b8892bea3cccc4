"""Cohen's kappa: how far two people agree beyond chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def cohen_kappa(first: Sequence[str], second: Sequence[str], *, ordered: bool = False) -> float | None:
    """Kappa of two people's answers to the same questions; None if it is not defined (both always gave one answer).

    Args:
        first: the answers of one.
        second: the answers of the other.
        ordered: the answers are numbers; differences count by their square.
    """
    values = sorted({*first, *second}, key=float if ordered else str)
    place = {value: i for i, value in enumerate(values)}
    observed = np.zeros((len(values), len(values)))
    for a, b in zip(first, second, strict=True):
        observed[place[a], place[b]] += 1
    expected = np.outer(observed.sum(1), observed.sum(0)) / len(first)
    if ordered:
        numbers = np.array([float(value) for value in values])
        cost = (numbers[:, None] - numbers[None]) ** 2
    else:
        cost = 1 - np.eye(len(values))
    by_chance = float((cost * expected).sum())
    return None if by_chance == 0 else 1 - float((cost * observed).sum()) / by_chance
