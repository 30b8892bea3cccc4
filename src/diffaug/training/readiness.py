"""When is stage 1 done? A rule on the curves of delta and kappa.

The paper finds that stage 2 goes best from about the peak of delta, or a little later: the views should differ as
much as they can, and the prefix's keys and values should have come close to the model's own. So stage 1 may end when
delta's peak lies behind and kappa's fall has lost most of its speed, and no later than the recipe's cap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from diffaug.augment.compatibility import Compatibility

# delta has peaked when the highest smoothed value is this many measurements old.
_PATIENCE = 3
# kappa has levelled off when it falls at less than this part of the fastest speed it has had.
_LEVEL = 0.25
# Measurements that are averaged, so that one noisy value neither makes nor hides a peak.
_WINDOW = 3


@dataclass
class Readiness:
    """Collects the curves and says when the module-compatible state is reached."""

    steps: list[int] = field(default_factory=list)
    delta: list[float] = field(default_factory=list)
    kappa: list[float] = field(default_factory=list)

    def add(self, step: int, measured: Compatibility) -> None:
        """Note a measurement."""
        self.steps.append(step)
        self.delta.append(measured.delta)
        self.kappa.append(measured.kappa)

    def reason_to_stop(self) -> str | None:
        """Why stage 1 is done, in words; None if it is not."""
        if len(self.steps) < _WINDOW + _PATIENCE:
            return None
        delta, kappa = _smoothed(self.delta), _smoothed(self.kappa)
        steps = self.steps[_WINDOW - 1 :]
        peak = max(range(len(delta)), key=delta.__getitem__)
        if len(delta) - 1 - peak < _PATIENCE:
            return None
        speeds = [
            (kappa[i] - kappa[i + 1]) / (steps[i + 1] - steps[i]) for i in range(len(steps) - 1)
        ]  # how fast kappa falls
        fastest, now = max(speeds), speeds[-1]
        if now > _LEVEL * fastest:
            return None
        return (
            f"delta peaked at step {steps[peak]} ({delta[peak]:.3f}, now {delta[-1]:.3f}) and kappa "
            f"({kappa[-1]:.3f}) falls at {max(now, 0) / fastest:.0%} of its fastest"
            if fastest > 0
            else f"delta peaked at step {steps[peak]} ({delta[peak]:.3f}, now {delta[-1]:.3f}) and kappa does not fall"
        )


def _smoothed(values: list[float]) -> list[float]:
    return [sum(values[i - _WINDOW + 1 : i + 1]) / _WINDOW for i in range(_WINDOW - 1, len(values))]
