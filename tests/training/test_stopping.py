"""The end of stage 1, on curves of known shape."""

from __future__ import annotations

import math

import pytest

from diffaug.training.stopping import CompatibilityCurves


def first_stop(delta: list[float], kappa: list[float], every: int = 50) -> tuple[int, str] | None:
    readiness = CompatibilityCurves()
    for i, values in enumerate(zip(delta, kappa, strict=True)):
        readiness.add(i * every, *values)
        reason = readiness.stop_reason()
        if reason is not None:
            return i * every, reason
    return None


def rise_and_fall(peak: int, count: int) -> list[float]:
    return [10 * (i / peak) * math.exp(1 - i / peak) for i in range(count)]


def plateau(rise: int, count: int) -> list[float]:
    return [10 * (1 - math.exp(-i / rise)) for i in range(count)]


@pytest.mark.parametrize("delta", [rise_and_fall(10, 60), plateau(6, 60)], ids=["peak", "plateau"])
def test_stops_once_both_curves_have_levelled_off(delta: list[float]) -> None:
    kappa = [20 * math.exp(-i / 6) for i in range(60)]
    step, reason = first_stop(delta, kappa) or (0, "")
    # A fall of exp(-i / 6) has a twentieth of its first speed after 6 ln 20 = 18 measurements; windows add some.
    assert 18 * 50 < step <= 30 * 50
    assert "delta, now" in reason
    assert "kappa, now" in reason


def test_waits_for_kappa_after_the_peak() -> None:
    delta = rise_and_fall(5, 60)
    straight = [20 - 0.3 * i for i in range(60)]
    assert first_stop(delta, straight) is None
    bent = [20 - 0.3 * min(i, 30) for i in range(60)]
    step, _ = first_stop(delta, bent) or (0, "")
    assert step > 30 * 50


def test_waits_for_delta() -> None:
    assert first_stop([0.1 * i for i in range(60)], [20 * math.exp(-i / 5) for i in range(60)]) is None


def test_a_lull_is_not_the_end() -> None:
    # kappa rests for three measurements and goes on, as real curves do.
    kappa, value = [], 20.0
    for i in range(40):
        value -= 0.0 if i in (10, 11, 12) else 0.5
        kappa.append(value)
    assert first_stop(rise_and_fall(4, 40), kappa) is None


def test_too_few_measurements_say_nothing() -> None:
    assert first_stop(rise_and_fall(1, 6), [0.0] * 6) is None
