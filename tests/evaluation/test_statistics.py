"""The statistics against references written from scratch: loops and definitions, no shared code."""

from __future__ import annotations

import numpy as np
import pytest

from diffaug.evaluation.statistics import (
    Mean,
    MeanSpearman,
    Spearman,
    average,
    bootstrap,
    compare,
    f1,
    interval,
    pearson,
)


def ranks_by_hand(values: list[float]) -> list[float]:
    """The mean of the places that a value and its equals take in sorted order."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def pearson_by_hand(x: list[float], y: list[float]) -> float:
    n = len(x)
    mx, my = sum(x) / n, sum(y) / n
    above = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return above / (sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y)) ** 0.5


def spearman_by_hand(x: list[float], y: list[float]) -> float:
    return pearson_by_hand(ranks_by_hand(x), ranks_by_hand(y))


def sample(seed: int, ties: bool) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 6, 80).astype(float)
    x = y + rng.normal(size=80) * 2
    return (np.round(x) if ties else x).tolist(), y.tolist()


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_correlations_follow_their_definitions(seed: int, ties: bool) -> None:
    x, y = sample(seed, ties)
    assert Spearman(x, y).value() == pytest.approx(100 * spearman_by_hand(x, y), abs=1e-10)
    assert pearson(x, y) == pytest.approx(100 * pearson_by_hand(x, y), abs=1e-10)


def test_spearman_with_ties_on_paper() -> None:
    # Ranks 1, 2.5, 2.5, 4 and 1.5, 1.5, 3, 4: centred -1.5, 0, 0, 1.5 and -1, -1, 0.5, 1.5
    # 3.75 / sqrt(4.5 * 4.5)
    assert Spearman([1, 5, 5, 9], [0, 0, 2, 7]).value() == pytest.approx(100 * 3.75 / 4.5)


@pytest.mark.parametrize("ties", [True, False])
def test_a_resample_is_what_repeating_its_rows_gives(ties: bool) -> None:
    x, y = sample(7, ties)
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, len(x), size=(20, len(x)))
    counts = np.stack([np.bincount(row, minlength=len(x)) for row in drawn])
    found = {
        "spearman": Spearman(x, y).resampled(counts),
        "mean": Mean(x).resampled(counts),
    }
    for i, row in enumerate(drawn):
        xs, ys = [x[j] for j in row], [y[j] for j in row]
        assert found["spearman"][i] == pytest.approx(100 * spearman_by_hand(xs, ys), abs=1e-9)
        assert found["mean"][i] == pytest.approx(100 * sum(xs) / len(xs))


def test_f1_follows_its_definition() -> None:
    x, y = sample(7, ties=False)
    gold, guess = [value > 2 for value in y], [value > 2 for value in x]
    hits = sum(a and b for a, b in zip(gold, guess, strict=True))
    precision, recall = hits / sum(guess), hits / sum(gold)
    assert f1(gold, guess) == pytest.approx(100 * 2 * precision * recall / (precision + recall))
    assert np.isnan(f1([0, 0], [0, 0]))


def test_a_correlation_with_a_constant_is_undefined() -> None:
    assert np.isnan(Spearman([1, 1, 1], [1, 2, 3]).value())
    assert np.isnan(pearson([1, 2, 3], [4, 4, 4]))
    assert all(np.isnan(interval(np.array([1.0, np.nan]), 0.95)))


def test_the_bootstrap_depends_on_seed_and_name_and_nothing_else() -> None:
    statistic = Mean(np.arange(50) % 2)
    first = bootstrap(statistic, "a", 300, seed=0)
    assert np.array_equal(first, bootstrap(statistic, "a", 300, seed=0))
    assert not np.array_equal(first, bootstrap(statistic, "b", 300, seed=0))
    assert not np.array_equal(first, bootstrap(statistic, "a", 300, seed=1))


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    outcomes = np.arange(2_000) % 4 == 0
    low, high = interval(bootstrap(Mean(outcomes), "a", 4_000, seed=0), 0.95)
    deviation = 100 * np.sqrt(0.25 * 0.75 / 2_000)
    assert low == pytest.approx(25 - 1.96 * deviation, abs=0.2)
    assert high == pytest.approx(25 + 1.96 * deviation, abs=0.2)


def outcomes_of_two(gap: int) -> tuple[Mean, Mean]:
    """Two models over 1000 rows that agree on most; the first is right on ``gap`` more."""
    rng = np.random.default_rng(3)
    first = rng.random(1_000) < 0.8
    second = first.copy()
    flipped = rng.permutation(1_000)[:100]
    second[flipped] = ~second[flipped]
    while first.sum() - second.sum() != gap:
        at = np.flatnonzero(second if first.sum() - second.sum() < gap else ~second)[0]
        second[at] = ~second[at]
    return Mean(first), Mean(second)


def compared(first: Mean, second: Mean) -> object:
    resampled = bootstrap(first, "t", 1_000, 0), bootstrap(second, "t", 1_000, 0)
    return compare("t", (first.value(), second.value()), resampled, 0.95)


def test_a_small_difference_is_not_shown_and_a_large_one_is() -> None:
    small, large = compared(*outcomes_of_two(2)), compared(*outcomes_of_two(60))
    assert not small.shown
    assert small.p_value > 0.5
    assert "no difference shown" in small.words("A", "B")
    assert large.shown
    assert large.p_value < 0.01
    assert large.words("A", "B").startswith("t: A is better than B by 6.00 (95 % interval")
    first, second = outcomes_of_two(60)
    turned = compared(second, first)
    assert turned.difference == pytest.approx(-6)
    assert "A is better than B by 6.00" in turned.words("B", "A")


def test_a_model_compared_with_itself_differs_in_nothing() -> None:
    first, _ = outcomes_of_two(2)
    same = compared(first, first)
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)


def test_the_comparison_is_paired() -> None:
    """What two models have in common cancels out on the same resamples, and only there."""
    first, second = outcomes_of_two(2)
    together = compared(first, second)
    apart = compare("t", (0, 0), (bootstrap(first, "t", 1_000, 0), bootstrap(second, "u", 1_000, 0)), 0.95)
    assert apart.high - apart.low > 1.5 * (together.high - together.low)


def test_an_average_of_tasks_varies_less_than_each() -> None:
    values = [bootstrap(Mean(np.arange(200) % 2), name, 2_000, 0) for name in "abcd"]
    assert np.std(average(values)) == pytest.approx(np.std(values[0]) / 2, rel=0.1)


@pytest.mark.parametrize("ties", [True, False])
def test_the_mean_over_several_rankings_is_that_of_each_by_itself(ties: bool) -> None:
    golds = sample(3, ties)[1]
    firsts = [sample(seed, ties)[0] for seed in (3, 4, 5)]
    drawn = np.random.default_rng(2).integers(0, len(golds), size=(20, len(golds)))
    counts = np.stack([np.bincount(row, minlength=len(golds)) for row in drawn])
    by_hand = [
        np.mean([100 * spearman_by_hand([first[i] for i in row], [golds[i] for i in row]) for first in firsts])
        for row in drawn
    ]
    assert MeanSpearman(firsts, golds).resampled(counts) == pytest.approx(by_hand, abs=1e-9)


def test_an_undefined_score_gives_no_p_value() -> None:
    constant = bootstrap(Spearman([1, 1, 1, 1], [1, 2, 3, 4]), "task", 10, 0)
    undefined = compare("task", (float("nan"), 1.0), (constant, np.ones(10)), 0.95)
    assert np.isnan(undefined.p_value)
