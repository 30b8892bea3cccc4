"""Runs the trials of a search in one process; several processes may work on the same folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from optuna import TrialPruned
from optuna.trial import Trial, TrialState

from diffaug.config import Recipe, change_recipe
from diffaug.config.registry import load_plugins
from diffaug.data.table import InMemoryRows
from diffaug.errors import DiffaugError
from diffaug.experiments.executor import end_with_parent
from diffaug.files import exclusive_lock, write_errors
from diffaug.methods.base import Stage
from diffaug.progress import duration
from diffaug.training.callbacks import Callback
from diffaug.training.context import TrainingContext
from diffaug.training.loop import TrainingInterrupted
from diffaug.training.run import train
from diffaug.training.run_cache import RunCache
from diffaug.training.signals import be_patient
from diffaug.tuning.space import Space, as_changes
from diffaug.tuning.study import SAME_AS, SECONDS, Trials

CACHE = "cache"
SUMMARY = "summary.json"
# Seconds between lines about a running trial, and between looks for a trial that another process has left.
SAY_EVERY = 60.0
_LOOK_EVERY = 1.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """What all processes of a search need.

    Attributes:
        folder: of the search.
        recipe: the default settings, without test pairs.
        space: what is searched.
        trials: how many trials.
        prune: whether trials may end early.
        data: rows that replace sources of the recipe; the dev pairs that choose are among them.
        workers: how many trials run at the same time.
    """

    folder: Path
    recipe: Recipe
    space: Space
    trials: int
    prune: bool
    data: Mapping[str, InMemoryRows]
    workers: int

    @property
    def default_folder(self) -> Path:
        """The folder of the default settings."""
        return self.folder / "default"

    def run_folder(self, number: int) -> Path:
        """The folder of a trial."""
        return self.folder / "trials" / f"{number:03d}"


@dataclass(frozen=True)
class Ended:
    """How a trial has ended: with a score, pruned, or failed.

    Attributes:
        seconds: since it was begun or, after an interruption, continued.
        score: on the pairs that choose.
        pruned: at which point and with which score, in words.
        failure: the reason.
    """

    seconds: float
    score: float | None = None
    pruned: str | None = None
    failure: str | None = None


class Worker:
    """One process of a search.

    Args:
        task: what to do.
        say: called with lines on the progress.
    """

    def __init__(self, task: Task, say: Say) -> None:
        self.trials = Trials(task.folder, task.space, task.trials, task.recipe.seed, task.prune)
        self._task, self._say = task, say
        # Trials that differ in stage 2 alone have the same first stage. Others would only fill the disk.
        shared = task.folder / CACHE if all(key.startswith("stage2.") for key in task.space) else None
        self._cache = RunCache(shared)

    def run_default(self) -> float:
        """Train the recipe as it is, unless that was done before; its dev score."""
        folder = self._task.default_folder
        with exclusive_lock(self._task.folder / ".default.lock"):
            new = not (folder / SUMMARY).exists()
            score = self._train(self._task.recipe, folder, _Progress(self._say, "default settings"))
        if new:
            self._say(f"default settings: {score:.2f}")
        return score

    def run_trials(self) -> None:
        """Run trials until none is left; wait for those of other processes, and continue what they leave."""
        while len(self.trials.finished()) < self.trials.count:
            claimed = self.trials.claim()
            if claimed is None:
                time.sleep(_LOOK_EVERY)
                continue
            with claimed.held:
                try:
                    if not self.repeated(claimed.trial):
                        self.end(claimed.trial, self.train(claimed.trial))
                except BaseException:  # it was not killed
                    claimed.interrupted()
                    raise

    def train(self, trial: Trial) -> Ended:
        """Train a trial, or continue it."""
        start = time.monotonic()
        score = pruned = failure = None
        with write_errors(self._task.folder):
            try:
                recipe = change_recipe(self._task.recipe, as_changes(trial.params))
                callback = _Pruning(self._say, self.place(trial), trial)
                score = self._train(recipe, self._task.run_folder(trial.number), callback)
            except TrialPruned as error:
                pruned = str(error)
            except (DiffaugError, RuntimeError, MemoryError) as error:  # a RuntimeError: no memory left on a GPU
                if isinstance(error, TrainingInterrupted) or isinstance(error.__cause__, OSError):
                    raise  # with a full disk all other trials would fail too
                failure = str(error)
        return Ended(round(time.monotonic() - start, 1), score, pruned, failure)

    def end(self, trial: Trial, ended: Ended) -> None:
        """Note in the study how a trial has ended, remove what is not needed any more, and say so."""
        with write_errors(self._task.folder):
            if ended.score is not None:
                words = f"{ended.score:.2f}"
                trial.set_user_attr(SECONDS, ended.seconds)
                self.trials.study.tell(trial, ended.score)
                self._remove_models()
            elif ended.failure is not None:
                words = f"failed: {ended.failure}"
                self.trials.fail(trial, ended.failure)
            else:
                words = str(ended.pruned)
                trial.set_user_attr(SECONDS, ended.seconds)
                self.trials.study.tell(trial, state=TrialState.PRUNED)
            if ended.score is None:
                shutil.rmtree(self._task.run_folder(trial.number), ignore_errors=True)
        self._say(f"{self.place(trial)}: {words} ({' '.join(as_changes(trial.params))}){self._outlook()}")

    def repeated(self, trial: Trial) -> bool:
        """End a trial as an earlier one of the same values has ended; False if there is none."""
        if (twin := self.trials.twin(trial)) is None:
            return False
        with write_errors(self._task.folder):
            trial.set_user_attr(SAME_AS, twin.number)
            for step, value in twin.intermediate_values.items():
                trial.report(value, step)
            self.trials.study.tell(trial, twin.value if twin.state == TrialState.COMPLETE else None, twin.state)
        shown = " ".join(as_changes(trial.params))
        self._say(f"{self.place(trial)}: {shown}, the same as trial {twin.number + 1}")
        return True

    def place(self, trial: Trial) -> str:
        """The trial in words, as it is numbered for people."""
        return f"trial {trial.number + 1} of {self.trials.count}"

    def _train(self, recipe: Recipe, folder: Path, callback: Callback) -> float:
        """Train or continue a run; its score on the pairs that choose."""
        summary = folder / SUMMARY
        if not summary.exists():
            data: dict[str, Any] = dict(self._task.data)
            train(recipe, folder, **data, resume=True, quiet=True, cache=self._cache, callbacks=[callback])
        return float(json.loads(summary.read_text("utf-8"))["scores"]["dev"])

    def _remove_models(self) -> None:
        """Remove the models of all complete trials but the best."""
        best = self.trials.best()
        for trial in self.trials.finished():
            if best is not None and trial.number != best.number:
                shutil.rmtree(self._task.run_folder(trial.number) / "best", ignore_errors=True)

    def _outlook(self) -> str:
        """The best trial so far and the time left."""
        best, finished = self.trials.best(), self.trials.finished()
        left = self.trials.count - len(finished)
        seconds = [trial.user_attrs[SECONDS] for trial in finished if SECONDS in trial.user_attrs]
        text = "" if best is None else f"; best {best.value:.2f}, trial {best.number + 1}"
        if left and seconds:
            text += f"; about {duration(sum(seconds) / len(seconds) * left / self._task.workers)} left"
        return text


class _Progress(Callback):
    """Says once a minute how far a run is."""

    def __init__(self, say: Say, name: str) -> None:
        self._say, self._name, self._said = say, name, time.monotonic()

    def on_evaluate_end(self, context: TrainingContext, stage: Stage, last: bool) -> bool:
        if time.monotonic() - self._said >= SAY_EVERY:
            self._said = time.monotonic()
            share = f"{100 * context.progress.step // stage.steps} % of stage {stage.number}"
            best = context.progress.best
            self._say(f"{self._name}: {share}" + (f", {best['selection']:.2f}" if best else ""))
        return False


class _Pruning(_Progress):
    """Also reports the dev scores of a run to its trial, and ends it if it is pruned.

    A score counts for the tenth of the last stage that it was measured in, so that runs with different numbers of steps
    or evaluations can be compared.
    """

    def __init__(self, say: Say, name: str, trial: Trial) -> None:
        super().__init__(say, name)
        self._trial, self._tenths = trial, 0

    def on_evaluate_end(self, context: TrainingContext, stage: Stage, last: bool) -> bool:
        best, step = context.progress.best, context.progress.step
        if stage is context.stages[-1] and best is not None:
            tenths = 10 * step // stage.steps
            if tenths > self._tenths:
                known = self._trial.study.trials[self._trial.number].intermediate_values
                for tenth in range(self._tenths + 1, tenths + 1):
                    if tenth not in known:  # a continued run evaluates some steps again
                        self._trial.report(best["selection"], tenth)
                self._tenths = tenths
            if not last and self._trial.should_prune():
                raise TrialPruned(f"pruned at {100 * step // stage.steps} % of training with {best['selection']:.2f}")
        return super().on_evaluate_end(context, stage, last)


def work(task: Task, gpu: str | None, quiet: bool) -> None:
    """The main function of a further process on this machine."""
    # Ctrl-C only reaches the main process, which then asks the others to stop, perhaps twice.
    be_patient()
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    threading.Thread(target=end_with_parent, daemon=True).start()
    load_plugins(task.recipe.plugins)
    limit_threads(task.workers)
    try:
        Worker(task, (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr))).run_trials()
    except TrainingInterrupted:
        return


def limit_threads(workers: int) -> None:
    """Divide the cores of this machine among several processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, min(torch.get_num_threads(), cores // workers)))
