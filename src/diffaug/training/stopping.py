"""The automatic end of stage 1: a rule on the curves of delta and kappa.

The paper starts stage 2 once the views differ and the norms of the prefix's keys and values approach those of the
model's own. Both curves change fast at first and then level off: delta rises to a plateau or a peak, kappa falls. So
stage 1 ends when both change slowly, and after the recipe's maximum number of steps at the latest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# The number of measurements over which a slope is computed. Neighbouring values are noisy: a rule on two of them would
# end stage 1 too early.
_SPAN = 6
# The window of the moving average over measurements.
_WINDOW = 3
# A curve has levelled off when its slope is at most this fraction of its steepest one. On a BERT of 6 layers this ends
# stage 1 after 1,050 to 1,800 steps, and stage 2 then scores as after 2,000.
_LEVEL = 0.05


@dataclass
class CompatibilityCurves:
    """The curves of delta and kappa, and whether they have levelled off."""

    steps: list[int] = field(default_factory=list)
    delta: list[float] = field(default_factory=list)
    kappa: list[float] = field(default_factory=list)

    def add(self, step: int, delta: float, kappa: float) -> None:
        """Add a measurement."""
        self.steps.append(step)
        self.delta.append(delta)
        self.kappa.append(kappa)

    def stop_reason(self) -> str | None:
        """Why stage 1 ends, in words; None if it does not."""
        if len(self.steps) < _WINDOW + _SPAN:
            return None
        rise = self._relative_slope([-value for value in self.delta])
        fall = self._relative_slope(self.kappa)
        if max(rise, fall) > _LEVEL:
            return None
        return (
            f"delta, now {self.delta[-1]:.2f}, rises at {max(rise, 0.0):.0%} and kappa, now {self.kappa[-1]:.2f}, "
            f"falls at {max(fall, 0.0):.0%} of its steepest slope"
        )

    def _relative_slope(self, values: list[float]) -> float:
        """How fast a curve falls now, relative to the fastest it has fallen; 0 if it never fell."""
        curve = [sum(values[i - _WINDOW + 1 : i + 1]) / _WINDOW for i in range(_WINDOW - 1, len(values))]
        steps = self.steps[_WINDOW - 1 :]
        slopes = [(curve[i] - curve[i + _SPAN]) / (steps[i + _SPAN] - steps[i]) for i in range(len(curve) - _SPAN)]
        steepest = max(slopes)
        return slopes[-1] / steepest if steepest > 0 else 0.0
