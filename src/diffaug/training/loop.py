"""The training loop: one for all methods and settings."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from diffaug.config import Recipe
from diffaug.data.sampling import BatchSampler, MixedBatchSampler, batch_sampler
from diffaug.distributed import any_process, average_gradients
from diffaug.errors import DiffaugError
from diffaug.methods.base import Stage, StepBatch
from diffaug.models.io.saved import model_weights
from diffaug.training.callbacks import Callback, ViewCompatibility
from diffaug.training.checkpoint import Checkpoint, Progress, save_checkpoint
from diffaug.training.context import TrainingContext
from diffaug.training.execution.check import fast_path_difference
from diffaug.training.execution.executor import Executor, fast_executor, plain_executor
from diffaug.training.optimizer import build_optimizer, set_learning_rates, trainable
from diffaug.training.prefetch import Prefetcher
from diffaug.training.scoring import Scores
from diffaug.training.signals import StopRequest

Samplers = dict[str, BatchSampler | MixedBatchSampler]
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
        if context.progress.best is None:
            raise DiffaugError(
                "there is no best model: the score of every evaluation is undefined, because all sentences got the "
                "same similarity; use other dev pairs, or lower the learning rate"
            )
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
        samplers = stage_samplers(recipe, stage, accelerator)
        if checkpoint is None:
            torch.manual_seed(recipe.seed * 100 + stage.number * 10 + accelerator.process_index)
        else:
            checkpoint.restore_optimizer(optimizer, names)
            context.precision.restore(progress.scaler)
            checkpoint.restore_random_state(accelerator.device)
        self._announce(stage, names, samplers)
        for callback in self._callbacks:
            callback.on_stage_begin(context, stage)

        method.begin(stage)
        device, accumulate = accelerator.device, recipe.loop.accumulate
        with_gradient = {name: p for name, p in method.named_parameters() if p.requires_grad}

        def collate(index: int) -> StepBatch:
            return method.collate(stage, {name: sampler.batch(index) for name, sampler in samplers.items()})

        executor = self._choose_executor(stage, with_gradient, collate)

        def prepare(index: int) -> StepBatch:
            return executor.prepare(collate(index))

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
                stop, due = any_process([bool(self._stop), self._save_is_due()], device)
                save = stop or due
                if evaluate or save or progress.step % _LOG_EVERY == 0:
                    self._log_losses(stage, losses, factor)
                if evaluate or save:
                    self._check_weights(stage, optimizer, names.values())
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

    def _choose_executor(
        self, stage: Stage, learning: dict[str, nn.Parameter], collate: Callable[[int], StepBatch]
    ) -> Executor:
        """The fast executor if there is one and, before the stage's first step, it has passed its check."""
        context, progress, loop = self.context, self.context.progress, self.context.recipe.loop
        method, precision, device = context.method, context.precision, context.accelerator.device
        make = fast_executor(method, stage, precision, device, learning) if loop.fast else None
        if progress.step == 0:  # a resumed stage goes on as it began
            progress.fast_failed = False
            difference = None
            if make is not None and loop.check_fast:
                difference = fast_path_difference(method, stage, collate(0), make, precision, learning)
            (progress.fast_failed,) = any_process([difference is not None], device)
            if progress.fast_failed:
                context.tracker.say(
                    f"stage {stage.number} runs on the plain path, because the fast path failed its check: "
                    f"{difference or 'it differs in another process'}"
                )
        return plain_executor(method, stage, precision) if make is None or progress.fast_failed else make()

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
        self._check_finite(stage, "loss", values["loss"])
        rates = {f"lr_{role}": rate * factor for role, rate in stage.learning_rates.items()}
        context.tracker.log(stage.number, context.progress.step, {**values, **rates})

    def _check_weights(self, stage: Stage, optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
        """See that the last update left finite weights and optimiser states: a loss tells of the update before it.

        Only before they are evaluated or saved, since reading a number makes the GPU wait.
        """
        tensors = [tensor for p in parameters for tensor in (p.detach(), *optimizer.state.get(p, {}).values())]
        # In 32 bits the norm is also infinite with weights above 1e19, which give no finite loss any more.
        self._check_finite(stage, "norm of the weights", float(nn.utils.get_total_norm(tensors)))

    def _check_finite(self, stage: Stage, what: str, value: float) -> None:
        """Raise, in every process, if the value is not finite in one of them; the best model so far is saved before."""
        context = self.context
        if any(any_process([not math.isfinite(value)], context.accelerator.device)):
            self._write_best()
            context.accelerator.wait_for_everyone()
            raise DiffaugError(
                f"the {what} is not finite (stage {stage.number}, step {context.progress.step}); lower the learning "
                "rate or set loop.precision=fp32. The best model so far, if there is one, is in best/"
            )

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
        """Remember the model if it is the best so far, or the last one. An undefined score is never the best."""
        progress, recipe = self.context.progress, self.context.recipe
        last = recipe.loop.select == "last" or (recipe.loop.select == "auto" and recipe.data.dev is None)
        before = None if last else progress.best
        if not math.isfinite(scores.selection) or (before and scores.selection <= before["selection"]):
            progress.stale += 1
            return False
        progress.stale = 0
        progress.best = {"stage": stage, "step": progress.step, **asdict(scores)}
        if self.context.accelerator.is_main_process:
            self._best_weights = model_weights(self.context.method.encoder)
        if before is None:
            self._write_best()  # from the first evaluation on there is a model; later ones wait for a checkpoint
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

    def _announce(self, stage: Stage, names: dict[str, nn.Parameter], samplers: Samplers) -> None:
        context, step = self.context, self.context.progress.step
        count = sum(p.numel() for p in names.values())
        parts = [f"stage {stage.number}: training {count:,} parameters ({', '.join(stage.learning_rates)})"]
        parts += [f"{name} {len(s.examples):,} in batches of {s.batch_size}" for name, s in samplers.items()]
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


def stage_samplers(recipe: Recipe, stage: Stage, accelerator: Accelerator) -> Samplers:
    """The data of a stage in the order of the recipe's seed, and this process's part of it.

    Raises:
        DiffaugError: too few examples for a batch.
    """
    rank, world = accelerator.process_index, accelerator.num_processes
    samplers: Samplers = {}
    for number, (name, (examples, size)) in enumerate(stage.streams.items()):
        try:
            samplers[name] = batch_sampler(examples, size, recipe.seed + number, rank, world)
        except DiffaugError as error:
            unlabelled = name != "nli" and recipe.stage2 is not None and recipe.stage2.objective == "unlabelled"
            source = "data.unlabelled" if unlabelled else "data.nli"
            raise DiffaugError(f"stage {stage.number} cannot run with what is left of {source}: {error}") from error
    return samplers


def _line(stage: Stage, step: int, values: dict[str, float], better: bool) -> str:
    """The message about one evaluation."""
    shown = "  ".join(
        f"{name} {value:.2f}" if name == "dev" else f"{name} {value:.3f}" for name, value in values.items()
    )
    return f"stage {stage.number}  step {step:>5}  {shown}{'  best' if better else ''}"
