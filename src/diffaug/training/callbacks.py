"""Callbacks of the training loop: what only some stages or runs need."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict

from diffaug.methods.base import Stage
from diffaug.training.context import TrainingContext
from diffaug.training.stage_cache import CachedStage, StageResult
from diffaug.training.stopping import CompatibilityCurves


class Callback:
    """The events of a run. Every method may be overridden."""

    def on_train_begin(self, context: TrainingContext) -> None:
        """Before the first stage of a new run, not of a resumed one."""

    def on_stage_begin(self, context: TrainingContext, stage: Stage) -> None:
        """Before the first step of a stage, or the first step after a resume."""

    def on_evaluate_begin(self, context: TrainingContext, stage: Stage) -> dict[str, float]:
        """Before the model is scored. Returns further values to show with the scores."""
        return {}

    def on_evaluate_end(self, context: TrainingContext, stage: Stage, last: bool) -> bool:
        """After the model was scored; ``last``: after the stage's last step. Returns whether the stage ends now."""
        return False

    def on_stage_end(self, context: TrainingContext, stage: Stage, learned: Collection[str]) -> None:
        """After a stage, with the names of the parameters that it trained."""


class ViewCompatibility(Callback):
    """Measures delta and kappa, and ends a stage that waits for them (`Stage.automatic`)."""

    def on_stage_begin(self, context: TrainingContext, stage: Stage) -> None:
        self._curves = CompatibilityCurves(**context.progress.curves)
        if stage.measures_views and context.progress.step == 0:
            self._measure(context, stage)

    def on_evaluate_begin(self, context: TrainingContext, stage: Stage) -> dict[str, float]:
        measured = self._measure(context, stage)
        return measured if stage.measures_views else {}

    def on_evaluate_end(self, context: TrainingContext, stage: Stage, last: bool) -> bool:
        reason = self._curves.stop_reason() if stage.automatic else None
        if stage.measures_views and (reason or last):
            limit = "the maximum (stage1.max_steps)" if stage.automatic else "the number of steps asked for"
            context.progress.stage1_end = f"after {context.progress.step} steps: {reason or limit}"
            context.tracker.say(f"stage {stage.number} ends {context.progress.stage1_end}")
        return reason is not None

    def _measure(self, context: TrainingContext, stage: Stage) -> dict[str, float]:
        measured, progress = context.scorer.compatibility(), context.progress
        if measured is None:
            return {}
        if stage.measures_views and measured.kappa is not None:
            self._curves.add(progress.step, measured.delta, measured.kappa)
            progress.curves = asdict(self._curves)
        context.tracker.log(stage.number, progress.step, measured.values())
        return measured.values()


class FirstStageCache(Callback):
    """Loads the result of the first stage if another run has trained the same one, and saves it otherwise.

    Args:
        cached: the file that these runs share.
    """

    def __init__(self, cached: CachedStage) -> None:
        self._cached = cached

    def on_train_begin(self, context: TrainingContext) -> None:
        result = self._cached.load(context.method)
        if result is None:
            return
        first, second, *_ = context.stages
        context.precision.restore(result.scaler)
        progress = context.progress
        progress.stage, progress.curves, progress.stage1_end = second.number, result.curves, result.end
        for entry in result.metrics:
            context.tracker.log(entry.pop("stage"), entry.pop("step"), entry)
        context.tracker.say(f"stage {first.number} is loaded from another run with the same one; it ended {result.end}")

    def on_stage_end(self, context: TrainingContext, stage: Stage, learned: Collection[str]) -> None:
        if stage is not context.stages[0]:
            return
        lines = (context.folder / "metrics.jsonl").read_text("utf-8").splitlines()
        progress, scaler = context.progress, context.precision.state()
        result = StageResult(progress.stage1_end, progress.curves, scaler, [json.loads(line) for line in lines])
        self._cached.save(context.method, learned, result)
