"""Folds: balanced, without shared sentences; nested subsets."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from adaptation.adapt_data import KINDS

from diffaug.adaptation.folds import nested_subset, split_folds
from diffaug.data.read import read_labelled
from diffaug.data.records import Classes, PositivePairs


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_held_out_once(kind: str) -> None:
    labelled = read_labelled(KINDS[kind]())
    folds = split_folds(labelled, 3, seed=1)
    assert len(folds) == 3
    np.testing.assert_array_equal(np.sort(np.concatenate(folds)), np.arange(len(labelled)))


def test_each_class_is_in_every_fold() -> None:
    labelled = Classes([f"sentence {i}" for i in range(47)], [f"class {i % 5}" for i in range(47)])
    counts = [Counter(labelled.classes[i] for i in fold) for fold in split_folds(labelled, 3, seed=0)]
    for name, total in Counter(labelled.classes).items():
        assert {count[name] for count in counts} <= {total // 3, -(-total // 3)}


def test_rows_with_a_common_sentence_are_in_one_fold() -> None:
    # Chains of three pairs: a-b, b-c (in capitals), c-d.
    rows = [(f"{i} {a}", f"{i} {b}") for i in range(12) for a, b in (("a", "b"), ("B", "c"), ("c ", "d"))]
    labelled = PositivePairs([a for a, _ in rows], [b for _, b in rows])
    for fold in split_folds(labelled, 3, seed=0):
        assert Counter(row // 3 for row in fold) == Counter({row // 3: 3 for row in fold})
        assert len(fold) == 12


def test_one_sentence_in_all_rows_does_not_make_one_fold() -> None:
    labelled = PositivePairs(["the same question"] * 30, [f"answer {i}" for i in range(30)])
    assert [len(fold) for fold in split_folds(labelled, 3, seed=0)] == [10, 10, 10]


def test_smaller_subsets_lie_within_larger_ones() -> None:
    labelled = Classes([f"sentence {i}" for i in range(44)], [f"class {i % 4}" for i in range(44)])
    subsets = [nested_subset(labelled, share, seed=3) for share in (0.05, 0.25, 0.5, 1.0)]
    for small, large in pairwise(subsets):
        assert set(small) < set(large)
    # 11 sentences per class: a quarter is 2 or 3, a half 5 or 6.
    for rows, counts in zip(subsets, ({0, 1}, {2, 3}, {5, 6}, {11}), strict=True):
        assert {Counter(labelled.classes[i] for i in rows)[name] for name in set(labelled.classes)} <= counts
    sizes = [len(nested_subset(labelled, 0.05, seed)) for seed in range(200)]
    assert np.mean(sizes) == pytest.approx(0.05 * 44, rel=0.2)
    assert set(nested_subset(labelled, 0.5, seed=4)) != set(subsets[2])
