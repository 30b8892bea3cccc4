"""The training loop: one for all methods and settings."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from diffaug.config import Recipe
from diffaug.data.sampling import MixedStream, Stream, stream
from diffaug.distributed import any_process, average_gradients
from diffaug.errors import DiffaugError
from diffaug.methods.base import Stage, StepBatch
from diffaug.models.io.saved import model_weights
from diffaug.training.callbacks import Callback, ViewCompatibility
from diffaug.training.checkpoint import Checkpoint, Progress, save_checkpoint
from diffaug.training.context import TrainingContext
from diffaug.training.execution.executor import Executor, choose_executor
from diffaug.training.optimizer import build_optimizer, set_learning_rates, trainable
from diffaug.training.prefetch import Prefetcher
from diffaug.training.scoring import Scores
from diffaug.training.signals import StopRequest

Streams = dict[str, Stream | MixedStream]
# Steps between logged losses: reading a loss makes the GPU wait.
_LOG_EVERY = 10


class TrainingInterrupted(DiffaugError):  # noqa: N818 - not an error of the user
    """The run was asked to stop; its state is saved."""

    def __init__(self, number: int) -> None:
        super().__init__("the run was interrupted and its state saved; continue it with --resume")
        self.signal = number


class Loop:
    """Runs the stages of a method, evaluates, keeps the best model, and saves checkpoints.

    Args:
        context: the run.
        save_best: writes the best model, given its weights and scores.
        stop: becomes true when the run should stop.
        callbacks: called in this order, after the built-in `ViewCompatibility`.
    """

    def __init__(
        self,
        context: TrainingContext,
        save_best: Callable[[dict[str, Tensor], dict[str, float]], None],
        stop: StopRequest,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.context = context
        self._save_best = save_best
        self._stop = stop
        self._callbacks = [ViewCompatibility(), *callbacks]
        self._best_weights: dict[str, Tensor] | None = None
        self._saved_at = time.monotonic()

    @property
    def progress(self) -> Progress:
        """Where the run stands."""
        return self.context.progress

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """Run all stages, from the start or from a checkpoint."""
        context = self.context
        if checkpoint is not None:
            context.progress = checkpoint.progress
            checkpoint.restore_model(context.method)
        context.tracker.rewind(context.progress.metrics_bytes)
        if checkpoint is None:
            for callback in self._callbacks:
                callback.on_train_begin(context)
        for stage in context.stages:
            if stage.number >= context.progress.stage:
                context.progress.stage = stage.number
                self._run_stage(stage, checkpoint)
                checkpoint = None
                context.progress.stage, context.progress.step = stage.number + 1, 0
        if not context.stages:
            self._score_untrained()
        self._write_best()

    def _score_untrained(self) -> None:
        """A method without stages: the untrained model is the result."""
        scores = self.context.scorer(alarm=False)
        self.context.tracker.log(0, 0, scores.values)
        self._keep_if_best(0, scores)

    def _run_stage(self, stage: Stage, checkpoint: Checkpoint | None) -> None:
        context, recipe, method = self.context, self.context.recipe, self.context.method
        progress, accelerator = context.progress, context.accelerator
        names = trainable(method, stage)
        optimizer = build_optimizer(method, stage)
        streams = stage_streams(recipe, stage, accelerator)
        if checkpoint is None:
            torch.manual_seed(recipe.seed * 100 + stage.number * 10 + accelerator.process_index)
        else:
            checkpoint.restore_optimizer(optimizer, names)
            context.precision.restore(progress.scaler)
            checkpoint.restore_random_state(accelerator.device)
        self._announce(stage, names, streams)
        for callback in self._callbacks:
            callback.on_stage_begin(context, stage)

        method.begin(stage)
        device, accumulate = accelerator.device, recipe.loop.accumulate
        with_gradient = {name: p for name, p in method.named_parameters() if p.requires_grad}
        executor = choose_executor(method, stage, context.precision, device, with_gradient, recipe.loop.fast)

        def prepare(index: int) -> StepBatch:
            batches = {name: stream.batch(index) for name, stream in streams.items()}
            return executor.prepare(method.collate(stage, batches))

        prefetcher = Prefetcher(prepare, stage.steps * accumulate) if device.type == "cuda" else None
        with (
            closing(prefetcher) if prefetcher else nullcontext(),
            context.tracker.bar(f"stage {stage.number}", stage.steps, progress.step) as show,
        ):
            while progress.step < stage.steps:
                factor = set_learning_rates(optimizer, stage, progress.step)
                losses = self._step(stage, prefetcher or prepare, executor, optimizer, list(with_gradient.values()))
                progress.step += 1
                last = progress.step == stage.steps
                evaluate = last or progress.step % recipe.loop.eval_every == 0
                stop = any_process(bool(self._stop), device)
                save = stop or any_process(self._save_is_due(), device)
                if evaluate or save or progress.step % _LOG_EVERY == 0:
                    self._log_losses(stage, losses, factor)
                if show.due() and not last:  # the last step is followed by the line of its evaluation
                    show(progress.step, float(losses["loss"]))
                done = evaluate and self._evaluate(stage, last)
                if done or last:
                    break  # a stop request is then handled after the next stage's first step, if there is one
                if save:
                    self._save(optimizer, names)
                if stop:
                    # All together: when one process exits, the launcher ends the others, one of which still writes.
                    accelerator.wait_for_everyone()
                    raise TrainingInterrupted(self._stop.signal or signal.SIGTERM)
        for callback in self._callbacks:
            callback.on_stage_end(context, stage, names)

    def _step(
        self,
        stage: Stage,
        batch_at: Callable[[int], StepBatch],
        executor: Executor,
        optimizer: Optimizer,
        parameters: list[nn.Parameter],
    ) -> dict[str, Tensor]:
        """One optimiser step; returns its losses, on the device."""
        context, accumulate = self.context, self.context.recipe.loop.accumulate
        sums: dict[str, Tensor] = {}
        for part in range(accumulate):
            batch = batch_at(context.progress.step * accumulate + part).to(context.accelerator.device)
            with context.precision.autocast():
                losses = context.method.losses(stage, batch, executor)
            context.precision.backward(losses["loss"] / accumulate)
            executor.backward()
            for name, value in losses.items():
                sums[name] = sums.get(name, 0) + value.detach() / accumulate
        average_gradients(parameters)
        context.precision.step(optimizer, parameters, context.recipe.loop.clip)
        return sums

    def _log_losses(self, stage: Stage, losses: dict[str, Tensor], factor: float) -> None:
        """Log the losses of this step, which must be finite."""
        context = self.context
        values = {name: float(value) for name, value in losses.items()}
        if any_process(not math.isfinite(values["loss"]), context.accelerator.device):
            self._write_best()
            context.accelerator.wait_for_everyone()
            raise DiffaugError(
                f"the loss is not finite (stage {stage.number}, step {context.progress.step}); lower the learning "
                "rate or set loop.precision=fp32. The best model so far, if there is one, is in best/"
            )
        rates = {f"lr_{role}": rate * factor for role, rate in stage.learning_rates.items()}
        context.tracker.log(stage.number, context.progress.step, {**values, **rates})

    def _evaluate(self, stage: Stage, last: bool) -> bool:
        """Score the model now; whether the stage ends."""
        context, progress = self.context, self.context.progress
        shown: dict[str, float] = {}
        for callback in self._callbacks:
            shown |= callback.on_evaluate_begin(context, stage)
        selects = stage.selects or stage is context.stages[-1]
        try:
            scores = context.scorer(selects)
        except DiffaugError:
            self._write_best()
            raise
        context.tracker.log(stage.number, progress.step, scores.values)
        better = selects and self._keep_if_best(stage.number, scores)
        context.tracker.say(_line(stage, progress.step, {**scores.values, **shown}, better))
        ends = [callback.on_evaluate_end(context, stage, last) for callback in self._callbacks]
        if any(ends):
            return True
        patience = context.recipe.loop.patience
        if selects and patience is not None and progress.stale >= patience:
            context.tracker.say(f"no better score in {patience} evaluations: stage {stage.number} ends")
            return True
        return False

    def _keep_if_best(self, stage: int, scores: Scores) -> bool:
        progress, recipe = self.context.progress, self.context.recipe
        last = recipe.loop.select == "last" or (recipe.loop.select == "auto" and recipe.data.dev is None)
        if not last and progress.best is not None and scores.selection <= progress.best["selection"]:
            progress.stale += 1
            return False
        progress.stale = 0
        progress.best = {"stage": stage, "step": progress.step, **asdict(scores)}
        if self.context.accelerator.is_main_process:
            self._best_weights = model_weights(self.context.method.encoder)
        return True

    def _save_is_due(self) -> bool:
        return time.monotonic() - self._saved_at >= 60 * self.context.recipe.loop.save_minutes

    def _save(self, optimizer: Optimizer, names: dict[str, nn.Parameter]) -> None:
        """Write the best model first, then the checkpoint, which refers to it."""
        self._write_best()
        context, progress = self.context, self.context.progress
        progress.scaler = context.precision.state()
        progress.metrics_bytes = context.tracker.tell()
        device, main = context.accelerator.device, context.accelerator.is_main_process
        save_checkpoint(context.folder / "checkpoints", progress, context.method, optimizer, names, device, main)
        self._saved_at = time.monotonic()

    def _write_best(self) -> None:
        if self._best_weights is not None and self.context.progress.best is not None:
            self._save_best(self._best_weights, self.context.progress.best["values"])
            self._best_weights = None

    def _announce(self, stage: Stage, names: dict[str, nn.Parameter], streams: Streams) -> None:
        context, step = self.context, self.context.progress.step
        count = sum(p.numel() for p in names.values())
        parts = [f"stage {stage.number}: training {count:,} parameters ({', '.join(stage.learning_rates)})"]
        parts += [f"{name} {len(s.examples):,} in batches of {s.batch_size}" for name, s in streams.items()]
        negatives = context.method.negatives_per_anchor(stage)
        if negatives is not None:
            parts.append(f"{negatives} negatives per anchor")
        if negatives is not None and step == 0:
            context.tracker.log(stage.number, step, {"negatives_per_anchor": negatives})
        context.tracker.say("; ".join(parts))
        if stage.from_epochs and stage.steps < context.recipe.loop.eval_every:
            # Epochs are meant for more data: a few hundred labels are a handful of batches.
            context.tracker.say(
                f"stage {stage.number} has only {stage.steps} steps, fewer than loop.eval_every; with so few examples, "
                f"set the number of steps, as in stage{stage.number}.steps=200"
            )


def stage_streams(recipe: Recipe, stage: Stage, accelerator: Accelerator) -> Streams:
    """The data of a stage in the order of the recipe's seed, and this process's part of it.

    Raises:
        DiffaugError: too few examples for a batch.
    """
    rank, world = accelerator.process_index, accelerator.num_processes
    streams: Streams = {}
    for number, (name, (examples, size)) in enumerate(stage.streams.items()):
        try:
            streams[name] = stream(examples, size, recipe.seed + number, rank, world)
        except DiffaugError as error:
            unlabelled = name != "nli" and recipe.stage2 is not None and recipe.stage2.objective == "unlabelled"
            source = "data.unlabelled" if unlabelled else "data.nli"
            raise DiffaugError(f"stage {stage.number} cannot run with what is left of {source}: {error}") from error
    return streams


def _line(stage: Stage, step: int, values: dict[str, float], better: bool) -> str:
    """The message about one evaluation."""
    shown = "  ".join(
        f"{name} {value:.2f}" if name == "dev" else f"{name} {value:.3f}" for name, value in values.items()
    )
    return f"stage {stage.number}  step {step:>5}  {shown}{'  best' if better else ''}"
