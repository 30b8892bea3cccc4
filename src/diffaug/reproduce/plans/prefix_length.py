"""How long the prefixes are."""

from __future__ import annotations

from diffaug.errors import DiffaugError
from diffaug.reproduce.plans.base import Column, Plan, PlanSettings, build_plan, own_columns
from diffaug.reproduce.plans.methods import DIFFAUG_SEMI

_LENGTHS = ("2", "4", "8", "16", "32")


def length(text: str) -> Column:
    """A column for a number of prefix vectors a view."""
    if not text.isdecimal() or int(text) < 1:
        raise DiffaugError(f"{text!r} is no length of a prefix; it is a whole number from 1")
    return Column(str(int(text)), (f"views.length={int(text)}",))


def plan(settings: PlanSettings) -> Plan:
    """The paper's figure of STS-B dev against the length, semi-supervised; 8 is the length of all recipes."""
    return build_plan(
        "prefix-length",
        "Length of the prefixes",
        [(DIFFAUG_SEMI, own_columns(settings, _LENGTHS, length))],
        settings,
        columns_are="prefix vectors a view",
        notes=("All else is as in the first setting of the budget",),
        tuned=False,
    )
