"""How much the labels weigh in stage 2."""

from __future__ import annotations

from diffaug.errors import DiffaugError
from diffaug.reproduce.plans.base import Column, Plan, PlanSettings, build_plan, own_columns
from diffaug.reproduce.plans.methods import DIFFAUG_AUX

_WEIGHTS = ("0", "0.0001", "0.001", "0.01", "0.1")


def plan(settings: PlanSettings) -> Plan:
    """The paper's table of STS-B dev against the weight of the auxiliary loss; 0 is without it."""
    return build_plan(
        "aux-weight",
        "Weight of the auxiliary loss",
        [(DIFFAUG_AUX, own_columns(settings, _WEIGHTS, _weight))],
        settings,
        columns_are="weight of the NLI cross entropy in stage 2",
        notes=("All else is as in the first setting of the budget",),
        tuned=False,
    )


def _weight(text: str) -> Column:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < float("inf"):
        raise DiffaugError(f"{text!r} is no weight of a loss; it is a number from 0")
    # Written out, so that 1e-3 and 0.001 are one column, the paper's.
    name = f"{weight:.10f}".rstrip("0").rstrip(".")
    return Column(name, (f"stage2.aux_weight={name}",))
