"""Runs the trials of a search on the workers of a Ray cluster, which share its folder.

This process proposes settings and notes how trials end. A worker trains a trial and reports its scores to the Optuna
journal in the folder, from which it also learns whether the trial is pruned.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from diffaug.cluster import WorkerLost, WorkerPool
from diffaug.config.registry import load_plugins
from diffaug.files import exclusive_lock
from diffaug.progress import run_progress
from diffaug.training.loop import TrainingInterrupted
from diffaug.training.signals import StopRequest, be_patient, stop_on_signals
from diffaug.tuning.study import Claimed
from diffaug.tuning.worker import SAY_EVERY, SUMMARY, Ended, Say, Task, Worker

# Seconds until a request to stop is noticed, and between looks for a trial that another process has left.
_POLL = 0.5

# The number of a trial, or None: the default settings. The result is None if the worker was asked to stop.
_Pool = WorkerPool[int | None, Ended | None]


def search_on_ray(task: Task, workers: int | None, say: Say) -> tuple[Worker, float]:
    """Run a search; connect to the cluster before, since Ray replaces the handlers of signals.

    Args:
        task: what to do.
        workers: trials at the same time; None: one per GPU of the cluster, or per core if it has none.
        say: called with lines on the progress.

    Returns:
        The study of this process, and the dev score of the default settings.

    Raises:
        TrainingInterrupted: by Ctrl-C or SIGTERM; running trials have saved their state.
        DiffaugError: the cluster is lost, the default settings fail, or a disk is full.
    """
    with stop_on_signals() as stop, _Pool(partial(_trainer, task), workers) as pool:
        worker = Worker(replace(task, workers=min(pool.size, task.trials)), say)
        search = _Search(task, worker, pool, stop, say)
        default = search.run_default()
        search.run_trials()
    return worker, default


class _Search:
    """The side of the command."""

    def __init__(self, task: Task, worker: Worker, pool: _Pool, stop: StopRequest, say: Say) -> None:
        self._task, self._worker, self._pool, self._stop, self._say = task, worker, pool, stop, say
        self._claimed: dict[int, Claimed] = {}
        self._said = time.monotonic()

    def run_default(self) -> float:
        """The dev score of the default settings, before all trials: they may share its first stage."""
        if (self._task.default_folder / SUMMARY).exists():
            return self._worker.run_default()
        self._pool.submit(None)
        while not (found := self._wait()):
            pass
        score = found[0][1].score
        assert score is not None  # other ends are errors
        self._say(f"default settings: {score:.2f}")
        return score

    def run_trials(self) -> None:
        """As `Worker.run_trials`, with as many trials at the same time as there are workers."""
        trials = self._worker.trials
        try:
            while len(trials.finished()) < trials.count:
                self._claim()
                for number, ended in self._wait():
                    assert number is not None
                    claimed = self._claimed.pop(number)
                    with claimed.held:
                        self._worker.end(claimed.trial, ended)
        finally:
            for claimed in self._claimed.values():  # they were not killed
                claimed.interrupted()
                claimed.held.close()

    def _claim(self) -> None:
        while len(self._claimed) < self._pool.size and not self._stop:
            claimed = self._worker.trials.claim(skip=self._claimed)
            if claimed is None:
                return
            if self._worker.repeated(claimed.trial):
                claimed.held.close()
                continue
            self._claimed[claimed.trial.number] = claimed
            self._pool.submit(claimed.trial.number)

    def _wait(self) -> list[tuple[int | None, Ended]]:
        """What has ended."""
        if self._stop.signal is not None:
            self._say("stopping: running trials save their state first")
            self._pool.stop()
            while self._pool.running:
                self._pool.wait(_POLL)
            raise TrainingInterrupted(self._stop.signal)
        found: list[tuple[int | None, Ended]] = []
        for done in self._pool.wait(_POLL):
            if done.item is not None and isinstance(done.error, WorkerLost):
                found.append((done.item, Ended(0.0, failure=str(done.error))))
            elif done.error is not None:
                raise done.error
            elif done.result is None:  # asked by somebody else
                raise TrainingInterrupted(signal.SIGTERM)
            else:
                found.append((done.item, done.result))
        self._say_progress()
        return found

    def _say_progress(self) -> None:
        """Once a minute, how far each trial is."""
        if time.monotonic() - self._said < SAY_EVERY:
            return
        self._said = time.monotonic()
        runs = {self._worker.place(each.trial): self._task.run_folder(n) for n, each in self._claimed.items()}
        for name, run in (runs or {"default settings": self._task.default_folder}).items():
            if (words := run_progress(run)) is not None:
                self._say(f"{name}: {words}")


def _trainer(task: Task) -> Callable[[int | None], Ended | None]:
    """Called in the process of a worker."""
    be_patient()
    load_plugins(task.recipe.plugins)
    worker = Worker(task, lambda line: None)

    def train(number: int | None) -> Ended | None:
        try:
            if number is None:
                return Ended(0.0, worker.run_default())
            # The lost worker that began this trial may end a little later than Ray has noticed its loss.
            with exclusive_lock(task.folder / f".trial-{number}.worker.lock"):
                return worker.train(worker.trials.get(number))
        except TrainingInterrupted:
            return None

    return train
