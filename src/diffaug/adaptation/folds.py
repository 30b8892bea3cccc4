"""Folds of labelled data for cross-validation: stratified, and without shared sentences between folds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from diffaug.data.records import Classes, Labelled, LabelledPairs, ScoredPairs, normal

Indices = NDArray[np.int64]

_SCORE_BANDS = 5


def split_folds(labelled: Labelled, folds: int, seed: int) -> list[Indices]:
    """Divide the rows into folds of similar size; each is held out once.

    Rows that share a sentence are in one fold, so that no held-out sentence was seen in training. Each fold has about
    the same share of every class, label or band of scores. If most rows are connected through shared sentences, only
    rows with equal sentences stay together.

    Returns:
        The indices of each fold's rows, in order.
    """
    groups = _groups([[normal(text) for text in row] for row in zip(*labelled.texts(), strict=True)])
    if max(map(len, groups)) > len(labelled) / folds:
        groups = _groups([[repr(sorted(map(normal, row)))] for row in zip(*labelled.texts(), strict=True)])
    strata = _strata(labelled)
    rng = np.random.default_rng([seed, folds])
    order = sorted(rng.permutation(len(groups)), key=lambda i: -len(groups[i]))
    sizes: list[Counter[Hashable]] = [Counter() for _ in range(folds)]
    found: list[list[int]] = [[] for _ in range(folds)]
    for i in order:
        own = Counter(strata[row] for row in groups[i])
        # The fold with the fewest rows of these strata, then with the fewest rows.
        best = min(range(folds), key=lambda fold: (sum(sizes[fold][s] * n for s, n in own.items()), len(found[fold])))
        found[best] += groups[i]
        sizes[best] += own
    return [np.sort(np.array(rows, np.int64)) for rows in found if rows]


def nested_subset(labelled: Labelled, share: float, seed: int) -> Indices:
    """A random part of the rows; smaller parts of one seed lie within larger ones.

    Each class, label or band of scores has the same share, up to one row. So a small part has no more classes than a
    small sample of the same data would have.
    """
    rng = np.random.default_rng([seed, len(labelled)])
    by_stratum: dict[Hashable, list[int]] = defaultdict(list)
    strata = _strata(labelled)
    for row in rng.permutation(len(labelled)):
        by_stratum[strata[row]].append(int(row))
    chosen: list[int] = []
    for rows in by_stratum.values():
        chosen += rows[: int(share * len(rows) + (rng.random() if share < 1 else 0))]
    return np.sort(np.array(chosen, np.int64))


def _strata(labelled: Labelled) -> Sequence[Hashable]:
    if isinstance(labelled, Classes):
        return labelled.classes
    if isinstance(labelled, LabelledPairs):
        return labelled.labels
    if isinstance(labelled, ScoredPairs):
        ranks = np.argsort(np.argsort(labelled.scores, kind="stable"), kind="stable")
        return [int(rank * _SCORE_BANDS // len(ranks)) for rank in ranks]
    return [0] * len(labelled)


def _groups(rows: Sequence[Sequence[str]]) -> list[list[int]]:
    """Rows that are connected by shared keys."""
    parent = list(range(len(rows)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    seen: dict[str, int] = {}
    for i, keys in enumerate(rows):
        for key in keys:
            parent[root(i)] = root(seen.setdefault(key, i))
    members: dict[int, list[int]] = defaultdict(list)
    for i in range(len(rows)):
        members[root(i)].append(i)
    return list(members.values())
