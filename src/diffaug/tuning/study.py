"""The trials of a search, in an Optuna journal that any number of processes share.

A process that runs a trial holds its lock. A trial that runs and is not locked was interrupted: the next process that
looks for work continues it.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diffaug.errors import DiffaugError
from diffaug.files import exclusive_lock, write_errors
from diffaug.tuning.space import Choices, Range, Space, grid, grid_size

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.storages import JournalStorage
    from optuna.trial import FrozenTrial, Trial

try:
    import optuna
    from optuna.trial import TrialState
except ImportError as error:
    raise DiffaugError("tune needs Optuna: pip install 'diffaug[tune]'") from error

_NAME = "tune"
_JOURNAL = "study.log"
# A trial that kills its process again and again, for example for want of memory, is not tried for ever.
_ATTEMPTS = 3
# No trial is pruned before this many tenths of its last stage.
_WARMUP_TENTHS = 2
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
SECONDS, FAILURE, SAME_AS, _ATTEMPT = "seconds", "failure", "same_as", "attempt"


@dataclass
class Claimed:
    """A trial that this process runs.

    Attributes:
        trial: what to run.
        held: its lock, to be closed in the end.
    """

    trial: Trial
    held: ExitStack

    def interrupted(self) -> None:
        """Note that the trial has ended in order, to be continued later, and was not killed."""
        with suppress(OSError):  # a full disk may be the reason
            self.trial.set_user_attr(_ATTEMPT, 0)


class Trials:
    """The trials in a folder.

    Args:
        folder: of the search.
        space: what is searched.
        count: how many trials there will be.
        seed: of the sampler.
        prune: stop trials that are worse than the median.
    """

    def __init__(self, folder: Path, space: Space, count: int, seed: int, prune: bool) -> None:
        self._folder, self._space, self._seed = folder, space, seed
        self._everything = grid_size(space) <= count
        self.count = int(grid_size(space)) if self._everything else count
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = self._open(prune)

    def _open(self, prune: bool) -> Study:
        path = self._folder / _JOURNAL
        try:
            with exclusive_lock(self._folder / ".study.lock"), write_errors(path):
                return optuna.create_study(
                    study_name=_NAME,
                    storage=_storage(path),
                    direction="maximize",
                    load_if_exists=True,
                    pruner=optuna.pruners.MedianPruner(n_warmup_steps=_WARMUP_TENTHS)
                    if prune
                    else optuna.pruners.NopPruner(),
                )
        except (ValueError, KeyError) as error:
            raise DiffaugError(f"{path} is damaged ({error}); choose another folder") from error

    def claim(self, skip: Collection[int] = ()) -> Claimed | None:
        """A trial to run: one that was interrupted, else a new one; None if there is none left to run.

        Args:
            skip: the numbers of trials that this process has claimed before.
        """
        with exclusive_lock(self._folder / ".study.lock"):
            known = self.all()
            for frozen in known:
                if frozen.state != TrialState.RUNNING or frozen.number in skip:
                    continue
                if (claimed := self._continue(frozen)) is not None:
                    return claimed
            if len(known) >= self.count:
                return None
            # Seeded by the number of the trial, so that an interrupted search draws what it would have drawn.
            seed = (self._seed * 1_000_003 + len(known)) % 2**32
            self.study.sampler = optuna.samplers.TPESampler(seed=seed)
            if self._everything:
                tried = [trial.params for trial in known]
                self.study.enqueue_trial(next(values for values in grid(self._space) if values not in tried))
            trial = self.study.ask({key: _distribution(each) for key, each in self._space.items()})
            held = ExitStack()
            held.enter_context(exclusive_lock(self._lock(trial.number)))
            return Claimed(trial, held)

    def _continue(self, frozen: FrozenTrial) -> Claimed | None:
        """Claim an interrupted trial; None if another process runs it, or it has ended or failed too often."""
        held = ExitStack()
        try:
            held.enter_context(exclusive_lock(self._lock(frozen.number), "running"))
        except DiffaugError:
            return None
        trial = self.get(frozen.number)
        attempt = trial.user_attrs.get(_ATTEMPT, 0) + 1
        if self.study.trials[frozen.number].state != TrialState.RUNNING:  # it has ended since we looked
            held.close()
            return None
        if attempt >= _ATTEMPTS:
            self.fail(trial, f"its process was killed {attempt} times")
            held.close()
            return None
        trial.set_user_attr(_ATTEMPT, attempt)
        return Claimed(trial, held)

    def get(self, number: int) -> Trial:
        """A trial that has begun, perhaps in another process."""
        return optuna.trial.Trial(self.study, self.study.trials[number]._trial_id)

    def fail(self, trial: Trial, reason: str) -> None:
        """End a trial that has no score."""
        trial.set_user_attr(FAILURE, reason)
        self.study.tell(trial, state=TrialState.FAIL)

    def all(self) -> list[FrozenTrial]:
        """All trials that have begun, by their numbers."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]

    def finished(self) -> list[FrozenTrial]:
        """All trials that have ended."""
        return [trial for trial in self.all() if trial.state in _FINISHED]

    def best(self) -> FrozenTrial | None:
        """The complete trial with the highest score, the first of equal ones."""
        complete = [trial for trial in self.all() if trial.state == TrialState.COMPLETE]
        return max(complete, key=lambda trial: trial.values[0]) if complete else None

    def twin(self, trial: Trial) -> FrozenTrial | None:
        """An earlier trial of the same values that has ended."""
        return next((other for other in self.finished() if other.params == trial.params), None)

    def _lock(self, number: int) -> Path:
        return self._folder / f".trial-{number}.lock"


def _storage(path: Path) -> JournalStorage:
    """The journal, without the half of a line that a full disk or the end of a process may have left at its end."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    backend, lock = JournalFileBackend(str(path)), JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            with path.open("rb+") as file:
                file.truncate(data.rfind(b"\n") + 1)
    finally:
        lock.release()
    return JournalStorage(backend)


def _distribution(dimension: Choices | Range) -> BaseDistribution:
    if isinstance(dimension, Choices):
        return optuna.distributions.CategoricalDistribution(dimension.values)
    if dimension.whole:
        return optuna.distributions.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return optuna.distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)
