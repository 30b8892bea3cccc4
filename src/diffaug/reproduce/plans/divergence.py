"""delta and kappa through stage 1."""

from __future__ import annotations

from diffaug.reproduce.plans.base import Column, Plan, PlanSettings, Row, build_plan, own_columns
from diffaug.reproduce.plans.prefix_length import length

_GROUP = "stage 1"
_MOST = 3000
# What comes after stage 1 is one step that changes nothing: the run ends as any other, with its model and scores. A run
# of stage 1 alone would score the dev set at every measurement.
_NO_STAGE_2 = ("stage2.steps=1", "stage2.learning_rate=0")
THROUGHOUT = Row(
    "DiffAug, stage 1",
    "diffaug-semi",
    _GROUP,
    baseline=False,
    changes=(f"stage1.steps={_MOST}", "stage1.batch_size=128", "loop.eval_every=25", *_NO_STAGE_2),
)
# The same run, since both rates decay over as many steps, until the rule ends it. The rule was made for measurements
# that are 50 steps apart.
UNTIL_AUTO = Row(
    "DiffAug, stage 1 until auto",
    "diffaug-semi",
    _GROUP,
    baseline=False,
    changes=(
        "stage1.steps=auto",
        f"stage1.max_steps={_MOST}",
        "stage1.batch_size=128",
        "loop.eval_every=50",
        *_NO_STAGE_2,
    ),
)
DROPOUT = Row("Dropout", "untrained-template", _GROUP)


def plan(settings: PlanSettings) -> Plan:
    """The paper's figure of representation divergence and weight convergence; columns may be prefix lengths."""
    columns = own_columns(settings, (), length) if settings.columns else [Column()]
    return build_plan(
        "divergence",
        "delta and kappa through stage 1",
        [(THROUGHOUT, columns), (UNTIL_AUTO, columns), (DROPOUT, [Column()])],
        settings,
        columns_are="prefix vectors a view" if settings.columns else "",
        notes=("The learning rate of stage 1 is that of the first setting of the budget",),
        tuned=False,
    )
