"""The main table: every method on the STS tasks."""

from __future__ import annotations

from diffaug.reproduce.plans import methods
from diffaug.reproduce.plans.base import Column, Plan, PlanSettings, build_plan, no_columns

ROWS = (
    *methods.UNTRAINED,
    *methods.UNSUPERVISED_METHODS,
    *methods.SBERT,
    *(row for rows in methods.WITH_LABELS.values() for row in rows),
    methods.DIFFAUG_SEMI,
    methods.DIFFAUG_AUX,
    *methods.TARGET,
    *methods.SUPERVISED_METHODS,
)


def plan(settings: PlanSettings) -> Plan:
    """The paper's tables of the main results and of the semi-supervised baselines, in one."""
    no_columns("main", settings)
    return build_plan(
        "main",
        "Every method on the STS tasks",
        [(row, [Column()]) for row in ROWS],
        settings,
        notes=(
            "Spearman x 100 over the joined pairs of a task; the best checkpoint on STS-B dev",
            "Target variants of the flow learn from the sentences of the tasks, without their scores",
            methods.JOINT_NOTE,
        ),
    )
