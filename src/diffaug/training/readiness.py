"""When is stage 1 done? A rule on the curves of delta and kappa.

The paper finds that stage 2 goes best from about the peak of delta, or somewhat later: the views should differ, and the
prefix's keys and values should have come close to the model's own in length. So stage 1 may end when the peak of delta
lies behind and kappa's fall has lost most of its speed, and no later than the recipe's cap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Measurements over which a speed is taken, and for which delta must not have risen above its peak. Single steps of
# both curves are noise: a rule on two neighbouring values ends stage 1 at the first lull.
_SPAN = 6
# Measurements that are averaged into one point of a curve.
_WINDOW = 3
# kappa has levelled off when it falls at less than this part of the fastest speed it has had.
_LEVEL = 0.25


@dataclass
class Readiness:
    """Collects the curves and says when the module-compatible state is reached."""

    steps: list[int] = field(default_factory=list)
    delta: list[float] = field(default_factory=list)
    kappa: list[float] = field(default_factory=list)

    def add(self, step: int, delta: float, kappa: float) -> None:
        """Note a measurement."""
        self.steps.append(step)
        self.delta.append(delta)
        self.kappa.append(kappa)

    def reason_to_stop(self) -> str | None:
        """Why stage 1 is done, in words; None if it is not."""
        delta, kappa, steps = _smoothed(self.delta), _smoothed(self.kappa), self.steps[_WINDOW - 1 :]
        if len(delta) <= _SPAN:
            return None
        peak = max(range(len(delta)), key=delta.__getitem__)
        if len(delta) - 1 - peak < _SPAN:
            return None
        speeds = [(kappa[i] - kappa[i + _SPAN]) / (steps[i + _SPAN] - steps[i]) for i in range(len(kappa) - _SPAN)]
        fastest, now = max(speeds), speeds[-1]
        if fastest > 0 and now > _LEVEL * fastest:
            return None
        fall = f"falls at {max(now, 0.0) / fastest:.0%} of its fastest speed" if fastest > 0 else "does not fall"
        return (
            f"delta peaked at step {steps[peak]} ({delta[peak]:.2f}, now {delta[-1]:.2f}) and kappa, now "
            f"{kappa[-1]:.2f}, {fall}"
        )


def _smoothed(values: list[float]) -> list[float]:
    return [sum(values[i - _WINDOW + 1 : i + 1]) / _WINDOW for i in range(_WINDOW - 1, len(values))]
