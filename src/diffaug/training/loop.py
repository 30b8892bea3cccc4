"""The training loop: one for all methods and settings."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Collection
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from diffaug.config import Recipe
from diffaug.data.sampling import Stream
from diffaug.distributed import any_process, average_gradients
from diffaug.errors import DiffaugError
from diffaug.methods.base import Inputs, Method, Stage
from diffaug.models.io.saved import model_weights
from diffaug.training.checkpoint import Checkpoint, Progress, save_checkpoint
from diffaug.training.execution.select import Passes, passes_for
from diffaug.training.optimizer import build_optimizer, set_learning_rates, trainable
from diffaug.training.precision import Precision
from diffaug.training.prefetch import Ahead
from diffaug.training.scoring import Scorer, Scores
from diffaug.training.signals import StopRequest
from diffaug.training.stage_cache import Beginning, Ending
from diffaug.training.stopping import Readiness
from diffaug.training.tracking import Tracker

# Steps between looks at the loss: reading it makes a GPU wait.
_LOG_EVERY = 10


class TrainingInterrupted(DiffaugError):  # noqa: N818 - nothing went wrong
    """The run was asked to stop; its state is saved."""

    def __init__(self, number: int) -> None:
        super().__init__("the run was interrupted and its state saved; go on with --resume")
        self.signal = number


class Loop:
    """Runs the stages of a method, evaluates, keeps the best, and saves its state.

    Args:
        recipe: the run's settings.
        method: what learns.
        stages: as the method planned them.
        scorer: evaluates.
        tracker: records.
        accelerator: device and processes.
        precision: in how many bits.
        folder: of the run.
        save_best: writes the best model's weights and scores.
        stop: becomes true when the run should end.
        beginning: where runs that begin the same find the end of stage 1, and leave it; None if each trains its own.
    """

    def __init__(
        self,
        recipe: Recipe,
        method: Method,
        stages: list[Stage],
        scorer: Scorer,
        tracker: Tracker,
        accelerator: Accelerator,
        precision: Precision,
        folder: Path,
        save_best: Callable[[dict[str, Tensor], dict[str, float]], None],
        stop: StopRequest,
        beginning: Beginning | None = None,
    ) -> None:
        self._recipe = recipe
        self._method = method
        self._stages = stages
        self._scorer = scorer
        self._tracker = tracker
        self._accelerator = accelerator
        self._folder = folder
        self._save_best = save_best
        self._stop = stop
        self._precision = precision
        self._beginning = beginning
        self._best_weights: dict[str, Tensor] | None = None
        self._measured: dict[str, float] = {}
        self._saved_at = time.monotonic()
        self.progress = Progress()

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """All stages, from the beginning or from a checkpoint."""
        if checkpoint is not None:
            self.progress = checkpoint.progress
            checkpoint.restore_model(self._method)
        self._tracker.rewind(self.progress.metrics_bytes)
        if checkpoint is None:
            self._take_over_stage1()
        for stage in self._stages:
            if stage.number >= self.progress.stage:
                self.progress.stage = stage.number
                self._run_stage(stage, checkpoint)
                checkpoint = None
                self.progress.stage, self.progress.step = stage.number + 1, 0
        if not self._stages:
            self._score_untrained()
        self._write_best()

    def _take_over_stage1(self) -> None:
        """Go straight to stage 2 if another run has left the end of this one's stage 1."""
        ending = None if self._beginning is None else self._beginning.take_over(self._method)
        if ending is None:
            return
        self._precision.restore(ending.scaler)
        self.progress.stage, self.progress.curves, self.progress.stage1_end = 2, ending.curves, ending.words
        for entry in ending.metrics:
            self._tracker.log(entry.pop("stage"), entry.pop("step"), entry)
        self._tracker.say(f"stage 1 is that of another run that began the same; it ended {ending.words}")

    def _leave_stage1(self, learned: Collection[str]) -> None:
        """For runs that begin the same."""
        if self._beginning is not None:
            lines = (self._folder / "metrics.jsonl").read_text("utf-8").splitlines()
            metrics = [json.loads(line) for line in lines]
            progress, scaler = self.progress, self._precision.state()
            self._beginning.keep(self._method, learned, Ending(progress.stage1_end, progress.curves, scaler, metrics))

    def _score_untrained(self) -> None:
        """A method without stages: the model as it is, is the result."""
        scores = self._scorer(alarm=False)
        self._tracker.log(0, 0, scores.values)
        self._keep_if_best(0, scores)

    def _run_stage(self, stage: Stage, checkpoint: Checkpoint | None) -> None:
        progress, accelerator = self.progress, self._accelerator
        names = trainable(self._method, stage)
        optimizer = build_optimizer(self._method, stage)
        streams = stage_streams(self._recipe, stage, accelerator)
        if checkpoint is None:
            torch.manual_seed(self._recipe.seed * 100 + stage.number * 10 + accelerator.process_index)
        else:
            checkpoint.restore_optimizer(optimizer, names)
            self._precision.restore(progress.scaler)
            checkpoint.restore_random_state(accelerator.device)
        self._announce(stage, names, streams)
        readiness = Readiness(**progress.curves) if progress.curves else Readiness()
        if progress.step == 0 and stage.number == 1:
            self._measure(stage, readiness)

        self._method.begin(stage)
        device, accumulate = accelerator.device, self._recipe.loop.accumulate
        clipped = {name: p for name, p in self._method.named_parameters() if p.requires_grad}
        passes = passes_for(self._method, stage, self._precision, device, clipped, self._recipe.loop.fast)

        def prepare(index: int) -> Inputs:
            batches = {name: stream.batch(index) for name, stream in streams.items()}
            return passes.prepare(self._method.collate(stage, batches))

        ahead = Ahead(prepare, stage.steps * accumulate) if device.type == "cuda" else None
        with (
            closing(ahead) if ahead else nullcontext(),
            self._tracker.bar(f"stage {stage.number}", stage.steps, progress.step) as show,
        ):
            while progress.step < stage.steps:
                factor = set_learning_rates(optimizer, stage, progress.step)
                losses = self._step(stage, ahead or prepare, passes, optimizer, list(clipped.values()))
                progress.step += 1
                last = progress.step == stage.steps
                evaluate = last or progress.step % self._recipe.loop.eval_every == 0
                stop = any_process(bool(self._stop), accelerator.device)
                save = stop or any_process(self._due(), accelerator.device)
                if evaluate or save or progress.step % _LOG_EVERY == 0:
                    self._log_losses(stage, losses, factor)
                if show.due() and not last:  # whose evaluation speaks for itself
                    show(progress.step, float(losses["loss"]))
                done = evaluate and self._evaluate(stage, readiness, last)
                if done or last:
                    break  # asked to stop now, the next stage does so after its first step; after the last, we are done
                if save:
                    self._save(optimizer, names)
                if stop:
                    # Together: when one leaves, who launched them ends the others, of which one still writes.
                    accelerator.wait_for_everyone()
                    raise TrainingInterrupted(self._stop.signal or signal.SIGTERM)
        if stage.number == 1:
            self._leave_stage1(names)

    def _step(
        self,
        stage: Stage,
        inputs_of: Callable[[int], Inputs],
        passes: Passes,
        optimizer: Optimizer,
        parameters: list[nn.Parameter],
    ) -> dict[str, Tensor]:
        """One optimiser step; returns its losses, still on the device."""
        accumulate = self._recipe.loop.accumulate
        sums: dict[str, Tensor] = {}
        for part in range(accumulate):
            inputs = inputs_of(self.progress.step * accumulate + part).to(self._accelerator.device)
            with self._precision.autocast():
                losses = self._method.losses(stage, inputs, passes)
            self._precision.backward(losses["loss"] / accumulate)
            passes.backward()
            for name, value in losses.items():
                sums[name] = sums.get(name, 0) + value.detach() / accumulate
        average_gradients(parameters)
        self._precision.step(optimizer, parameters, self._recipe.loop.clip)
        return sums

    def _log_losses(self, stage: Stage, losses: dict[str, Tensor], factor: float) -> None:
        """Log the losses of this step, which must be numbers."""
        values = {name: float(value) for name, value in losses.items()}
        if any_process(not math.isfinite(values["loss"]), self._accelerator.device):
            self._write_best()
            self._accelerator.wait_for_everyone()
            raise DiffaugError(
                f"the loss is not a finite number any more (stage {stage.number}, by step {self.progress.step}); "
                "lower the learning rate or set loop.precision=fp32. The best model so far, if any, is in best/"
            )
        rates = {f"lr_{role}": rate * factor for role, rate in stage.learning_rates.items()}
        self._tracker.log(stage.number, self.progress.step, {**values, **rates})

    def _evaluate(self, stage: Stage, readiness: Readiness, last: bool) -> bool:
        """Measure and score now; whether the stage is done."""
        self._measure(stage, readiness)
        selects = stage.number == self._stages[-1].number or self._recipe.released.best_from_stage1
        try:
            scores = self._scorer(selects)
        except DiffaugError:
            self._write_best()
            raise
        self._tracker.log(stage.number, self.progress.step, scores.values)
        better = selects and self._keep_if_best(stage.number, scores)
        shown = {**scores.values, **(self._measured if stage.number == 1 else {})}
        self._tracker.say(_line(stage, self.progress.step, shown, better))
        reason = readiness.reason_to_stop() if stage.automatic else None
        if stage.number == 1 and (reason or last):
            given = "the most it may take (stage1.max_steps)" if stage.automatic else "the number of steps asked for"
            self.progress.stage1_end = f"after {self.progress.step} steps: {reason or given}"
            self._tracker.say(f"stage 1 ends {self.progress.stage1_end}")
        if reason:
            return True
        patience = self._recipe.loop.patience
        if selects and patience is not None and self.progress.stale >= patience:
            self._tracker.say(f"no better score in {patience} evaluations: stage {stage.number} ends")
            return True
        return False

    def _measure(self, stage: Stage, readiness: Readiness) -> None:
        """delta and kappa, where the model has learned views."""
        measured = self._scorer.compatibility()
        if measured is None:
            return
        if stage.number == 1 and measured.kappa is not None:
            readiness.add(self.progress.step, measured.delta, measured.kappa)
            self.progress.curves = asdict(readiness)
        self._tracker.log(stage.number, self.progress.step, measured.values())
        self._measured = measured.values()

    def _keep_if_best(self, stage: int, scores: Scores) -> bool:
        best = self.progress.best
        if best is not None and scores.selection <= best["selection"]:
            self.progress.stale += 1
            return False
        self.progress.stale = 0
        self.progress.best = {"stage": stage, "step": self.progress.step, **asdict(scores)}
        if self._accelerator.is_main_process:
            self._best_weights = model_weights(self._method.encoder)
        return True

    def _due(self) -> bool:
        return time.monotonic() - self._saved_at >= 60 * self._recipe.loop.save_minutes

    def _save(self, optimizer: Optimizer, names: dict[str, nn.Parameter]) -> None:
        """The best model first, then the state: a state never speaks of a best model that is not there."""
        self._write_best()
        self.progress.scaler = self._precision.state()
        self.progress.metrics_bytes = self._tracker.tell()
        device, main = self._accelerator.device, self._accelerator.is_main_process
        save_checkpoint(self._folder / "checkpoints", self.progress, self._method, optimizer, names, device, main)
        self._saved_at = time.monotonic()

    def _write_best(self) -> None:
        if self._best_weights is not None and self.progress.best is not None:
            self._save_best(self._best_weights, self.progress.best["values"])
            self._best_weights = None

    def _announce(self, stage: Stage, names: dict[str, nn.Parameter], streams: dict[str, Stream]) -> None:
        learns = sum(p.numel() for p in names.values())
        parts = [f"stage {stage.number}: {learns:,} parameters learn ({', '.join(stage.learning_rates)})"]
        parts += [f"{name} {len(s.examples):,} in batches of {s.batch_size}" for name, s in streams.items()]
        negatives = self._method.negatives_per_anchor(stage)
        if negatives is not None:
            parts.append(f"{negatives} negatives an anchor")
        if negatives is not None and self.progress.step == 0:
            self._tracker.log(stage.number, self.progress.step, {"negatives_per_anchor": negatives})
        self._tracker.say("; ".join(parts))
        settings = self._recipe.stage1 if stage.number == 1 else self._recipe.stage2
        if settings is not None and settings.steps is None and stage.steps < self._recipe.loop.eval_every:
            # Epochs are meant for more: a few hundred labels are a handful of batches.
            self._tracker.say(
                f"stage {stage.number} has {stage.steps} steps, over before the first evaluation was due: with so few "
                f"examples, set their number, as in stage{stage.number}.steps=200"
            )


def stage_streams(recipe: Recipe, stage: Stage, accelerator: Accelerator) -> dict[str, Stream]:
    """The data of a stage in the order of the recipe's seed, this process's share of it.

    Raises:
        DiffaugError: too few examples for a batch.
    """
    rank, world = accelerator.process_index, accelerator.num_processes
    streams = {}
    for number, (name, (examples, size)) in enumerate(stage.streams.items()):
        try:
            streams[name] = Stream(examples, size, recipe.seed + number, rank, world)
        except DiffaugError as error:
            unlabelled = name != "nli" and recipe.stage2 is not None and recipe.stage2.objective == "unlabelled"
            source = "data.unlabelled" if unlabelled else "data.nli"
            raise DiffaugError(f"stage {stage.number} cannot run with what is left of {source}: {error}") from error
    return streams


def _line(stage: Stage, step: int, values: dict[str, float], better: bool) -> str:
    """One evaluation for people."""
    shown = "  ".join(
        f"{name} {value:.2f}" if name == "dev" else f"{name} {value:.3f}" for name, value in values.items()
    )
    return f"stage {stage.number}  step {step:>5}  {shown}{'  best' if better else ''}"
