"""When is stage 1 done? A rule on the curves of delta and kappa.

The paper starts stage 2 once the views differ and the prefix's keys and values have grown to the length of the
model's own. Both curves change fast at first and then level off: delta rises to a plateau or a peak, kappa falls. So
stage 1 ends when both are slow, and no later than the recipe's cap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Measurements over which a speed is taken. Single steps of both curves are noise: a rule on two neighbouring values
# ends stage 1 at the first lull.
_SPAN = 6
# Measurements that are averaged into one point of a curve.
_WINDOW = 3
# A curve has levelled off when its speed is at most this part of the fastest speed it has had. On a BERT of 6 layers
# this ends stage 1 after 1,050 to 1,800 steps, where stage 2 scores as after 2,000.
_LEVEL = 0.05


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
        if len(self.steps) < _WINDOW + _SPAN:
            return None
        rise = self._speed([-value for value in self.delta])
        fall = self._speed(self.kappa)
        if max(rise, fall) > _LEVEL:
            return None
        return (
            f"delta, now {self.delta[-1]:.2f}, rises at {max(rise, 0.0):.0%} and kappa, now {self.kappa[-1]:.2f}, "
            f"falls at {max(fall, 0.0):.0%} of its fastest speed"
        )

    def _speed(self, values: list[float]) -> float:
        """How fast a curve falls now, as a part of the fastest it has fallen; 0 if it never fell."""
        curve = [sum(values[i - _WINDOW + 1 : i + 1]) / _WINDOW for i in range(_WINDOW - 1, len(values))]
        steps = self.steps[_WINDOW - 1 :]
        speeds = [(curve[i] - curve[i + _SPAN]) / (steps[i + _SPAN] - steps[i]) for i in range(len(curve) - _SPAN)]
        fastest = max(speeds)
        return speeds[-1] / fastest if fastest > 0 else 0.0
