"""Draws of few labels (nested, reproducible), and the order of batches (from seed and step, split over processes)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from diffaug.data.collate import Collator
from diffaug.data.records import Triplets
from diffaug.data.sampling import BatchSampler, Examples, draw, draw_indices
from diffaug.data.tokens import TokenStore
from diffaug.errors import DiffaugError
from diffaug.models.backbone import load_tokenizer
from diffaug.models.config import ModelConfig


@pytest.mark.parametrize("seed", range(5))
def test_smaller_draws_lie_within_larger_ones(seed: int) -> None:
    draws = [set(draw_indices(5_000, seed, fraction=fraction)) for fraction in (0.001, 0.01, 0.1, 0.5, 1.0)]
    assert [len(chosen) for chosen in draws] == [5, 50, 500, 2_500, 5_000]
    assert all(small < large for small, large in pairwise(draws))
    assert draw_indices(5_000, seed, count=50) == draw_indices(5_000, seed, fraction=0.01)


def test_draws_are_in_order_and_differ_by_seed() -> None:
    draws = [draw_indices(1_000, seed, count=100) for seed in range(10)]
    assert all(chosen == sorted(set(chosen)) for chosen in draws)
    assert len({tuple(chosen) for chosen in draws}) == 10


def test_every_row_is_drawn_equally_often() -> None:
    times = [0] * 50
    for seed in range(2_000):
        for index in draw_indices(50, seed, fraction=0.2):
            times[index] += 1
    # 400 times expected; the standard deviation is 18.
    assert all(320 < count < 480 for count in times)


def test_a_draw_never_changes() -> None:
    """Published numbers name a draw by its seed: these values must stay."""
    assert draw_indices(20, seed=0, count=5) == [3, 5, 7, 12, 15]
    assert draw_indices(20, seed=1, count=5) == [0, 8, 9, 13, 19]


@pytest.mark.parametrize(("fraction", "rows"), [(0.01, 2_756), (0.1, 27_560)])
def test_the_papers_sizes(fraction: float, rows: int) -> None:
    assert len(draw_indices(275_601, seed=0, fraction=fraction)) == rows


def test_at_least_one_row() -> None:
    assert len(draw_indices(10, seed=0, fraction=0.001)) == 1


def test_draw_keeps_rows_together() -> None:
    triplets = Triplets([f"a{i}" for i in range(30)], [f"p{i}" for i in range(30)], [f"n{i}" for i in range(30)])
    chosen = draw_indices(30, seed=3, count=7)
    assert list(draw(triplets, 3, count=7)) == [(f"a{i}", f"p{i}", f"n{i}") for i in chosen]
    assert draw(triplets.anchors, 3, count=7) == [f"a{i}" for i in chosen]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either a fraction or a count"),
        ({"fraction": 0.1, "count": 3}, "either a fraction or a count"),
        ({"fraction": 0.0}, "above 0 and at most 1, got 0.0"),
        ({"fraction": 1.5}, "above 0 and at most 1, got 1.5"),
        ({"fraction": float("nan")}, "above 0 and at most 1, got nan"),
        ({"count": 0}, "cannot draw 0 rows out of 10"),
        ({"count": 11}, "cannot draw 11 rows out of 10"),
    ],
)
def test_impossible_draws(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(DiffaugError, match=message):
        draw_indices(10, seed=0, **arguments)  # type: ignore[arg-type]
    with pytest.raises(DiffaugError, match="no rows to draw from"):
        draw_indices(0, seed=0, fraction=0.5)


@pytest.fixture
def examples(tiny_bert: Path) -> Examples:
    collator = Collator(load_tokenizer(str(tiny_bert)), ModelConfig(), positions=128, max_length=5)
    words = ["a", "dog", "runs", "through", "the", "park", "today"]
    sentences = [" ".join(words[: 1 + i % 7]) + f" {i}" for i in range(23)]
    return Examples((TokenStore(collator).column(sentences),), labels=tuple(range(23)))


def test_an_epoch_has_every_example_once_and_the_next_another_order(examples: Examples) -> None:
    stream = BatchSampler(examples, batch_size=5, seed=3)
    assert stream.batches_per_epoch == 4
    epochs = [[label for i in range(4) for label in stream.batch(4 * e + i).labels or []] for e in range(3)]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch) == 20
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_depends_on_seed_and_step_alone(examples: Examples) -> None:
    first, second = BatchSampler(examples, 5, seed=3), BatchSampler(examples, 5, seed=3)
    later = second.batch(9)
    assert [first.batch(i) for i in (0, 4, 9)][2] == later
    assert BatchSampler(examples, 5, seed=4).batch(0) != first.batch(0)


def test_processes_share_a_batch(examples: Examples) -> None:
    whole = BatchSampler(examples, 6, seed=0).batch(2)
    shares = [BatchSampler(examples, 6, seed=0, rank=rank, world=3).batch(2) for rank in range(3)]
    assert [label for share in shares for label in share.labels or []] == whole.labels
    assert [example for share in shares for example in share.examples] == whole.examples


def test_small_data_makes_small_batches_and_too_small_an_error(examples: Examples) -> None:
    assert BatchSampler(examples, 1000, seed=0).batch_size == 23
    assert BatchSampler(examples, 1000, seed=0, rank=0, world=2).batch_size == 22
    with pytest.raises(DiffaugError, match="too few for a batch"):
        BatchSampler(examples, 1, seed=0)
