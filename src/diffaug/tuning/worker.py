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

DEFAULT_RUN, CACHE = "default", "cache"
# Seconds between lines about a running trial, and between looks for a trial that another process has left.
_SAY_EVERY = 60.0
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
        workers: processes on this machine.
    """

    folder: Path
    recipe: Recipe
    space: Space
    trials: int
    prune: bool
    data: Mapping[str, InMemoryRows]
    workers: int

    def run_folder(self, number: int) -> Path:
        """The folder of a trial."""
        return self.folder / "trials" / f"{number:03d}"


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
        folder = self._task.folder / DEFAULT_RUN
        with exclusive_lock(self._task.folder / ".default.lock"):
            new = not (folder / "summary.json").exists()
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
                    self._run(claimed.trial)
                except BaseException:  # it was not killed
                    claimed.interrupted()
                    raise

    def _run(self, trial: Trial) -> None:
        """Run a trial and say how it ended."""
        study, folder, start = self.trials.study, self._task.run_folder(trial.number), time.monotonic()
        changes = as_changes(trial.params)
        shown = " ".join(changes)
        with write_errors(self._task.folder):
            if (twin := self.trials.twin(trial)) is not None:
                trial.set_user_attr(SAME_AS, twin.number)
                for step, value in twin.intermediate_values.items():
                    trial.report(value, step)
                study.tell(trial, twin.value if twin.state == TrialState.COMPLETE else None, twin.state)
                self._say(f"{self._place(trial)}: {shown}, the same as trial {twin.number}")
                return
            try:
                recipe = change_recipe(self._task.recipe, changes)
                score = self._train(recipe, folder, _Pruning(self._say, self._place(trial), trial))
                ended = f"{score:.2f}"
                trial.set_user_attr(SECONDS, self._seconds(trial, start))
                study.tell(trial, score)
                self._remove_models()
            except TrialPruned as pruned:
                ended = str(pruned)
                trial.set_user_attr(SECONDS, self._seconds(trial, start))
                study.tell(trial, state=TrialState.PRUNED)
                shutil.rmtree(folder, ignore_errors=True)
            except (DiffaugError, RuntimeError, MemoryError) as error:  # a RuntimeError: no memory left on a GPU
                if isinstance(error, TrainingInterrupted) or isinstance(error.__cause__, OSError):
                    raise  # with a full disk all other trials would fail too
                ended = f"failed: {error}"
                self.trials.fail(trial, str(error))
                shutil.rmtree(folder, ignore_errors=True)
        self._say(f"{self._place(trial)}: {ended} ({shown}){self._outlook()}")

    def _train(self, recipe: Recipe, folder: Path, callback: Callback) -> float:
        """Train or continue a run; its score on the pairs that choose."""
        summary = folder / "summary.json"
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

    def _place(self, trial: Trial) -> str:
        return f"trial {trial.number + 1} of {self.trials.count}"

    def _seconds(self, trial: Trial, start: float) -> float:
        return round(float(trial.user_attrs.get(SECONDS, 0.0)) + time.monotonic() - start, 1)

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
        if time.monotonic() - self._said >= _SAY_EVERY:
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
