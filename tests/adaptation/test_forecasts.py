"""Forecasts: known curves, their intervals, and the command's result for every kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from adaptation.adapt_data import KINDS, classes, unlabelled

from diffaug import DiffaugError, Forecast, forecast
from diffaug.adaptation import forecasts
from diffaug.adaptation.forecasts import fit_gain

SIZES = np.array([50.0, 100, 150, 200])


def curves(noise: float, exponent: float = 0.5, draws: int = 5, seed: int = 0) -> np.ndarray:
    """Scores of a power law with noise of draws; the error of the held-out rows is common to all numbers of labels."""
    rng = np.random.default_rng(seed)
    exact = 100 - 200 * SIZES**-exponent
    values = exact[None, :, None] + noise * rng.normal(size=(draws, len(SIZES), 1))
    found: np.ndarray = values + noise * rng.normal(size=(1, 1, 401)) + noise / 4 * rng.normal(size=(1, 4, 401))
    return found


@pytest.mark.parametrize("exponent", [0.3, 0.5, 0.8])
def test_the_gain_of_an_exact_power_law(exponent: float) -> None:
    gain, low, high, _ = fit_gain(SIZES, curves(0.001, exponent), 250, 250, seed=0)
    assert gain == pytest.approx(200 * (250.0**-exponent - 500.0**-exponent), rel=0.01)
    assert low <= gain <= high


def test_intervals_cover_the_true_gain() -> None:
    true = 200 * (250**-0.5 - 500**-0.5)
    inside = []
    for seed in range(60):
        _, low, high, _ = fit_gain(SIZES, curves(0.5, seed=seed), 250, 250, seed)
        inside.append(low <= true <= high)
    assert np.mean(inside) >= 0.7


def test_a_gain_is_never_negative_nor_above_what_is_possible() -> None:
    falling = curves(0.01)[:, ::-1]
    assert fit_gain(SIZES, falling, 250, 1000, seed=0)[0] == 0
    gain, *_ = fit_gain(SIZES, curves(0.001), 200, 10**9, seed=0)
    assert 0 < gain <= 100 - curves(0.001)[0, -1, 0] + 0.1
    assert fit_gain(SIZES, np.full((5, 4, 401), 100.0), 250, 250, seed=0)[0] == 0


def test_resamples_without_a_score_are_left_out() -> None:
    """As of average precision, where a small resample has no pair that is the same."""
    values = curves(0.5)
    expected = fit_gain(SIZES, values, 250, 250, seed=0)
    values[:, :, 1:100] = np.nan
    found = fit_gain(SIZES, values, 250, 250, seed=0)
    assert found[0] == expected[0]
    np.testing.assert_allclose(found, expected, atol=1.0)
    with pytest.raises(DiffaugError, match="too few"):
        fit_gain(SIZES, np.where(np.arange(401) > 0, np.nan, values), 250, 250, seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str, tiny_bert: Path) -> None:
    found = forecast(tiny_bert, KINDS[kind](), 100)
    assert found.candidate == ("as it is" if kind == "classes" else "linear map")
    assert found.labels == len(KINDS[kind]())
    assert found.sizes == sorted(found.sizes)
    assert found.gain >= 0
    assert found.low <= found.high
    assert "100 more labels would bring +" in found.words()
    assert Forecast.from_dict(found.to_dict()) == found


@pytest.mark.parametrize("helps", [True, False])
def test_text_is_used_where_it_helps(helps: bool, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "text_helps", lambda *args: helps)
    found = forecast(tiny_bert, classes(), 100, text=unlabelled())
    assert found.candidate == ("label spreading" if helps else "as it is")


def test_a_candidate_that_trains(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "_TRAINED_FOLDS", 2)
    lines: list[str] = []
    found = forecast(tiny_bert, KINDS["same"](), 100, candidate="SimCSE", report=lines.append)
    assert found.candidate == "SimCSE"
    assert len(found.sizes) == 3
    assert lines[0] == "SimCSE is trained 6 times"
    assert len(lines) == 7
    with pytest.raises(DiffaugError, match="needs two classes with 12 sentences each"):
        forecast(tiny_bert, classes(), candidate="SimCSE")
