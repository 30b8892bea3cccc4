"""What more labels would bring: a power law through scores with fewer labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffaug.errors import DiffaugError

_EXPONENTS = np.linspace(0.1, 1.5, 29)
_RESAMPLES = 500
_CONFIDENCE = 0.8


@dataclass(frozen=True)
class Forecast:
    """The expected gain from more labels.

    Attributes:
        labels: the number there are.
        more: the number to be added.
        gain: the expected difference of the score, in points.
        low, high: its 80 % interval.
        visible: the smallest difference that the held-out labels can show with 95 % confidence.
    """

    labels: int
    more: int
    gain: float
    low: float
    high: float
    visible: float

    def words(self) -> str:
        """The forecast in one sentence."""
        seen = "could" if self.gain >= self.visible else "could not"
        return (
            f"{self.more:,} more labels would bring {self.gain:+.1f} points (80 % interval {self.low:+.1f} to "
            f"{self.high:+.1f}); {self.labels:,} held-out labels {seen} show such a difference (they show "
            f"{self.visible:.1f} or more)."
        )

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Forecast:
        return cls(**values)


def fit_forecast(
    sizes: Sequence[int], scores: NDArray[np.float64], more: int, deviation: float, seed: int = 0
) -> Forecast:
    """Fit ``limit - a * n ** -b`` to scores over numbers of labels.

    Args:
        sizes: numbers of labels, at least three, increasing; the last is the number there are.
        scores: (draws, sizes), in points up to 100, each row from nested subsets of one draw.
        more: labels to be added.
        deviation: the standard error of the score with all labels, over resamples of the held-out rows.
        seed: of the resampling of draws.
    """
    if len(sizes) < 3:
        raise DiffaugError(f"a forecast needs scores with at least three numbers of labels, got {len(sizes)}")
    numbers = np.asarray(sizes, np.float64)
    draws = np.asarray(scores, np.float64)
    rng = np.random.default_rng(seed)
    noise = np.std(draws - draws.mean(0), axis=0, ddof=1) if len(draws) > 1 else np.full(len(numbers), deviation)
    gains = []
    for _ in range(_RESAMPLES):
        # Draws overlap, so their spread understates the error of a point; the held-out rows add theirs.
        drawn = draws[rng.integers(len(draws), size=len(draws))].mean(0)
        drawn = drawn + rng.normal(0, 1, len(numbers)) * noise / np.sqrt(len(draws))
        gains.append(_gain(numbers, drawn, more))
    low, high = np.quantile(gains, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    visible = 1.96 * deviation  # a paired difference varies about as much as a score
    gain = _gain(numbers, draws.mean(0), more)
    return Forecast(int(numbers[-1]), more, gain, float(low), float(high), float(visible))


def _gain(numbers: NDArray[np.float64], scores: NDArray[np.float64], more: int) -> float:
    """The difference of the fitted curve between the last number of labels and ``more`` beyond it."""
    best: tuple[float, float] | None = None
    weights = np.sqrt(numbers / numbers.sum())
    for exponent in _EXPONENTS:
        powers = numbers**-exponent
        design = np.stack([np.ones_like(powers), -powers], 1)
        (limit, slope), *_ = np.linalg.lstsq(design * weights[:, None], scores * weights, rcond=None)
        if slope < 0 or limit > 100:
            # No decreasing curve, and none above 100 points: the nearest one that is allowed.
            limit = min(max(limit, float(scores.max())), 100.0)
            slope = max(0.0, float(((limit - scores) * powers * weights**2).sum() / (powers**2 * weights**2).sum()))
        error = float(((design @ np.array([limit, slope]) - scores) ** 2 * weights**2).sum())
        gain = slope * (numbers[-1] ** -exponent - (numbers[-1] + more) ** -exponent)
        if best is None or error < best[0]:
            best = error, float(gain)
    assert best is not None
    return best[1]
