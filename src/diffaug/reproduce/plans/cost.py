"""What training costs: time and memory."""

from __future__ import annotations

from dataclasses import replace

from diffaug.reproduce.plans.base import Column, Plan, PlanSettings, build_plan, no_columns
from diffaug.reproduce.plans.methods import SUPERVISED_METHODS

# As the paper compares them, and with as many looks at the dev set, which take time as well.
_ALIKE = ("stage2.batch_size=128", "stage2.epochs=3", "stage2.steps=null", "loop.accumulate=1", "loop.eval_every=125")
_STAGE_1 = {"diffaug-sup": ("stage1.steps=1250", "stage1.batch_size=128")}
ROWS = tuple(replace(row, changes=(*_ALIKE, *_STAGE_1.get(row.recipe, ()))) for row in SUPERVISED_METHODS)


def plan(settings: PlanSettings) -> Plan:
    """The paper's table of training time and GPU memory: supervised, the same batches and epochs."""
    no_columns("cost", settings)
    return build_plan(
        "cost",
        "What training costs",
        [(row, [Column()]) for row in ROWS],
        settings,
        notes=(
            "Batches of 128, three epochs of the triplets, STS-B dev scored every 125 steps; one run at a time",
            "DiffAug's time includes the 1,250 steps of its stage 1",
        ),
        tuned=False,
        one_at_a_time=True,
    )
