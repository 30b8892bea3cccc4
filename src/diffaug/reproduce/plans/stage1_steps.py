"""How long stage 1 is."""

from __future__ import annotations

from diffaug.errors import DiffaugError
from diffaug.reproduce.plans.base import Column, Plan, PlanSettings, build_plan, own_columns
from diffaug.reproduce.plans.methods import DIFFAUG_SEMI

_STEPS = ("0", "250", "500", "1000", "1500", "2000", "2500", "3000", "auto")


def plan(settings: PlanSettings) -> Plan:
    """The paper's figure of STS-B dev and training loss against the steps of stage 1, semi-supervised."""
    return build_plan(
        "stage1-steps",
        "Steps of stage 1",
        [(DIFFAUG_SEMI, own_columns(settings, _STEPS, _steps))],
        settings,
        columns_are="steps of stage 1",
        notes=(
            "All else is as in the first setting of the budget; auto ends stage 1 by the curves of delta and kappa",
        ),
        tuned=False,
    )


def _steps(text: str) -> Column:
    if text == "auto":
        return Column(text, ("stage1.steps=auto",))
    number = text.replace(",", "")
    if not number.isdecimal():
        raise DiffaugError(f"{text!r} is no number of steps; give a whole number, or auto")
    # No stage 1 at all: prefixes and language model learn together from the beginning.
    return Column(f"{int(number):,}", ("stage1=null",) if int(number) == 0 else (f"stage1.steps={int(number)}",))
