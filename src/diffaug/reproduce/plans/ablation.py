"""What makes the two views differ: prefixes and what could take their place."""

from __future__ import annotations

from diffaug.reproduce.plans.base import Column, Plan, PlanSettings, Row, build_plan, no_columns
from diffaug.reproduce.plans.methods import SEMI, UNSUPERVISED

# As long for all: only two different prefixes could end stage 1 by themselves.
_STEPS = ("stage1.steps=2000",)
ROWS = (
    Row("Synonym replacement", "simcse-synonym", UNSUPERVISED),
    Row("Dropout", "simcse-unsup", UNSUPERVISED),
    Row("Prefix, same", "diffaug-semi-same", SEMI, changes=_STEPS),
    Row("Prefix, fix", "diffaug-semi-fix", SEMI, changes=_STEPS),
    Row("Prefix, different", "diffaug-semi", SEMI, baseline=False, changes=_STEPS),
    Row("Prefix-tuning, different", "diffaug-semi-prefix-tuning", SEMI, changes=_STEPS),
    Row("Adapter, r = 4", "diffaug-semi-adapter-4", SEMI, changes=_STEPS),
    Row("Adapter, r = 64", "diffaug-semi-adapter-64", SEMI, changes=_STEPS),
    Row("LoRA, r = 4", "diffaug-semi-lora-4", SEMI, changes=_STEPS),
    Row("LoRA, r = 64", "diffaug-semi-lora-64", SEMI, changes=_STEPS),
)


def plan(settings: PlanSettings) -> Plan:
    """The paper's table of variants, which it compares on STS-B dev."""
    no_columns("ablation", settings)
    return build_plan(
        "ablation",
        "What makes the two views differ",
        [(row, [Column()]) for row in ROWS],
        settings,
        notes=("The paper compares variants on STS-B dev, which also chooses checkpoint and setting",),
    )
