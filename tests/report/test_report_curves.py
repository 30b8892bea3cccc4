"""Curves keep their shape in few points."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffaug.report.curves import all_curves, describe, order, stage_lengths, thin


def test_a_thinned_curve_keeps_ends_extremes_and_shape() -> None:
    random = np.random.default_rng(0)
    x = np.arange(5000.0)
    y = np.sin(x / 400) + 0.05 * random.normal(size=5000)
    y[1234] = 9.0  # a spike of one step
    kept = thin(y, 100)
    assert len(kept) <= 102
    assert {0, 4999, 1234, int(y.argmin())} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    smooth = np.abs(np.interp(x, x[kept], y[kept]) - y)
    smooth[1180:1290] = 0  # beside the spike a line must lead up to it
    assert smooth.max() < 0.5
    assert smooth.mean() < 0.1


def test_a_short_curve_is_kept_whole() -> None:
    assert thin(np.arange(7.0) ** 2, 40).tolist() == list(range(7))


def test_a_straight_line_is_two_points_and_a_bend_a_third() -> None:
    run = [{"stage": 1, "step": i, "lr_views": 1.0 - i / 100} for i in range(101)]
    run += [{"stage": 2, "step": i, "lr_views": abs(50 - i) / 50} for i in range(101)]
    (found,) = all_curves([run])
    assert found["lr_views"] == [[1, [0, 100], [1.0, 0.0]], [2, [0, 50, 100], [1.0, 0.0, 1.0]]]


def test_a_part_that_is_the_whole_loss_is_left_out() -> None:
    first = [{"stage": 1, "step": i, "nli": 1 / i, "loss": 1 / i} for i in (1, 2, 3)]
    second = [{"stage": 2, "step": i, "nli": 1 / i, "loss": 2 / i} for i in (1, 2, 3)]
    assert set(all_curves([first])[0]) == {"loss"}
    assert set(all_curves([first + second])[0]) == {"loss", "nli"}


def test_what_is_measured_once_is_a_level_if_others_have_a_curve() -> None:
    untrained: list[dict[str, Any]] = [{"stage": 0, "step": 0, "dev": 40.0, "negatives": 5}]
    trained = [{"stage": 2, "step": i, "dev": float(i), "negatives": None} for i in (1, 2)]
    found = all_curves([untrained, trained])
    assert found[0] == {"dev": [[0, [0], [40.0]]]}
    assert set(found[1]) == {"dev"}


def test_what_is_no_number_is_a_gap() -> None:
    values = [0.0, float("nan"), float("inf"), 3.0, 1.0]
    (found,) = all_curves([[{"stage": 1, "step": i, "loss": v} for i, v in enumerate(values)]])
    assert found["loss"] == [[1, [0, 3, 4], [0.0, 3.0, 1.0]]]


def test_many_runs_share_a_budget_of_points() -> None:
    random = np.random.default_rng(0)
    runs = [[{"stage": 1, "step": i, "loss": v} for i, v in enumerate(random.normal(size=500))] for _ in range(600)]
    found = all_curves(runs)
    assert max(len(curves["loss"][0][1]) for curves in found) < 150
    assert min(len(curves["loss"][0][1]) for curves in found) > 100


def test_metrics_have_names_for_people_and_an_order() -> None:
    assert order({"lr_views", "nli", "loss", "dev", "something"}) == ["dev", "loss", "nli", "something", "lr_views"]
    assert describe("lr_word_embeddings")[0] == "Learning rate, word embeddings"
    assert describe("some_thing") == ("Some thing", "")


def test_stages_are_as_long_as_their_last_step() -> None:
    lines = [{"stage": 2, "step": 3}, {"stage": 1, "step": 9}, {"stage": 1, "step": 4}]
    assert stage_lengths(lines) == {1: 9, 2: 3}
