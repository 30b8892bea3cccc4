"""delta and kappa through stage 1."""

from __future__ import annotations

from diffaug.reproduce.dropout import record_dropout_divergence
from diffaug.reproduce.plans.base import Column, Plan, PlanSettings, Row, build_plan, own_columns
from diffaug.reproduce.plans.methods import SEMI
from diffaug.reproduce.plans.prefix_length import length

ROW = Row(
    "DiffAug, stage 1",
    "diffaug-semi",
    SEMI,
    baseline=False,
    changes=(
        "stage1.steps=3000",
        "stage1.batch_size=128",
        # The rule of `auto` is made for measurements that are so far apart, and the figure marks where it would end.
        "loop.eval_every=50",
        # What comes after stage 1 is one step that changes nothing, so that the run ends as any other, with a model and
        # its scores. A recipe without stage 2 would score the dev set at every measurement.
        "stage2.steps=1",
        "stage2.learning_rate=0",
    ),
)


def plan(settings: PlanSettings) -> Plan:
    """The paper's figure of representation divergence and weight convergence; columns may be prefix lengths."""
    return build_plan(
        "divergence",
        "delta and kappa through stage 1",
        [(ROW, own_columns(settings, (), length) if settings.columns else [Column()])],
        settings,
        columns_are="prefix vectors a view" if settings.columns else "",
        notes=(
            "The learning rate of stage 1 is that of the first setting of the budget",
            "Dropout: the same sentences, twice through the language model without prefixes",
        ),
        tuned=False,
        record=record_dropout_divergence,
    )
