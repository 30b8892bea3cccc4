"""The rule by which adapt chooses, and its sentence."""

from __future__ import annotations

import numpy as np
import pytest

from diffaug.adaptation.result import AdaptResult, choose, compare_all, verdict
from diffaug.data.records import Classes, PositivePairs

CLASSES, PAIRS = Classes([], []), PositivePairs([], [])


def outcomes(**right: list[int]) -> dict[str, tuple[list[dict[str, np.ndarray]], float]]:
    """Two folds of right and wrong answers for each candidate."""
    return {
        name.replace("_", " "): ([{"outcome": np.array(part, float)} for part in np.array_split(values, 2)], 1.0)
        for name, values in right.items()
    }


def test_a_clear_gain_is_chosen_and_the_highest_of_several() -> None:
    rows = compare_all(
        CLASSES, outcomes(as_it_is=[1, 0] * 50, good=[1, 1, 1, 0] * 25, best=[1] * 95 + [0] * 5, worse=[0] * 100)
    )
    assert [row.score for row in rows] == [50, 75, 95, 0]
    chosen = choose(rows)
    assert chosen.name == "best"
    assert verdict(chosen, rows, CLASSES).startswith("Use best: +45.00 points over the model as it is (80 % interval +")


@pytest.mark.parametrize("other", [[1, 0] * 49 + [1, 1], [0] * 100])
def test_no_gain_or_an_uncertain_one_is_not_chosen(other: list[int]) -> None:
    rows = compare_all(CLASSES, outcomes(as_it_is=[1, 0] * 50, other=other))
    chosen = choose(rows)
    assert chosen.name == "as it is"
    assert verdict(chosen, rows, CLASSES).endswith("; a classifier on its vectors is saved.")
    assert verdict(chosen, rows, PAIRS).startswith(
        "Do not train: no candidate is shown with 90 % confidence to be better"
    )
    assert verdict(chosen, rows, PAIRS).endswith("; nothing is saved.")


def test_random_candidates_are_seldom_chosen() -> None:
    """A candidate that is no better is chosen in about 10 % of the cases."""
    chosen = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = compare_all(CLASSES, outcomes(as_it_is=rng.integers(0, 2, 200), other=rng.integers(0, 2, 200)))
        chosen += choose(rows).name == "other"
    assert chosen <= 16


def test_less_confidence_accepts_smaller_gains() -> None:
    right = [1, 0] * 50
    mixed, more = [1] * 4 + right[4:-2] + [0, 0], [1, 1, *right[2:]]
    rows = compare_all(CLASSES, outcomes(as_it_is=right, mixed=mixed, more=more))
    assert [row.score for row in rows] == [50, 51, 51]
    assert choose(rows, 0.95).name == "as it is"
    assert choose(rows, 0.6).name == "more"  # every difference is a gain
    assert choose(rows, 0.5).name == "mixed"
    assert " with 80 % confidence to be better " in verdict(rows[0], rows, CLASSES, 0.8)


def test_an_undefined_score_is_not_chosen() -> None:
    """A fold of same and different pairs in which no pair is the same."""
    values = {"found": np.arange(6.0), "gold": np.zeros(6)}
    rows = compare_all(PAIRS, {"as it is": ([values], 1.0), "other": ([values], 1.0)})
    assert choose(rows).name == "as it is"


def test_a_result_is_read_back() -> None:
    rows = compare_all(CLASSES, outcomes(as_it_is=[1, 0] * 50, good=[1, 1, 1, 0] * 25))
    result = AdaptResult("100 sentences", "accuracy", "2 held-out folds", rows, "good", "Use it.", None, None, 3.0)
    again = AdaptResult.from_dict(result.to_dict())
    assert again.to_dict() == result.to_dict()
    assert again.rows[1].difference is not None
    assert again.rows[1].difference.difference == 25
    assert [row[0] for row in again.table().rows] == ["as it is", "good"]
