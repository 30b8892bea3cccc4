"""The experiments of the paper: which runs stand behind each table and figure."""

from __future__ import annotations

from collections.abc import Callable

from diffaug.config.typed import nearest
from diffaug.errors import DiffaugError
from diffaug.reproduce.plans import (
    ablation,
    aux_weight,
    cost,
    divergence,
    low_label,
    main,
    prefix_length,
    stage1_steps,
)
from diffaug.reproduce.plans.base import Plan, PlanSettings
from diffaug.reproduce.plans.files import DataFiles

__all__ = ["EXPERIMENTS", "DataFiles", "Plan", "PlanSettings", "plan"]

EXPERIMENTS: dict[str, Callable[[PlanSettings], Plan]] = {
    "main": main.plan,
    "low-label": low_label.plan,
    "ablation": ablation.plan,
    "prefix-length": prefix_length.plan,
    "stage1-steps": stage1_steps.plan,
    "aux-weight": aux_weight.plan,
    "divergence": divergence.plan,
    "cost": cost.plan,
}


def plan(experiment: str, settings: PlanSettings) -> Plan:
    """The runs of an experiment.

    Args:
        experiment: one of `EXPERIMENTS`.
        settings: encoder, data, seeds, budget ...

    Raises:
        DiffaugError: there is no such experiment; nothing of it can be run with this data; a setting does not fit.
    """
    if experiment not in EXPERIMENTS:
        raise DiffaugError(f"there is no experiment {experiment!r}{nearest(experiment, EXPERIMENTS)}")
    return EXPERIMENTS[experiment](settings)
