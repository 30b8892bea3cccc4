"""Paired comparison of two rows: a bootstrap over sentence pairs, and differences between runs of the same seed.

The bootstrap resamples the pairs of a task and keeps the runs, so it shows how much another set of pairs would change.
The differences between runs of the same seed show how much other seeds would change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from diffaug.errors import DiffaugError
from diffaug.evaluation.statistics import Floats, MeanSpearman, Spearman, average, bootstrap, compare
from diffaug.experiments.grid import SIMILARITIES
from diffaug.experiments.results import AVERAGE, PairedTest, Run
from diffaug.files import atomic_file
from diffaug.version import __version__

Pairs = dict[str, NDArray[np.float32]]
"""One number per sentence pair, by task."""

RESAMPLES = ".resamples.npz"
# Increase it when the same similarities give other samples than before.
_METHOD = 1
# Similarities are stored in single precision, which can swap pairs that are nearly equal.
_ROUNDING = 0.01


class UnpairedError(Exception):
    """Two rows cannot be compared; the message says why."""


class ResampleCache:
    """Bootstrap samples in the folder of a grid, as a context manager. Entries that were not used are removed at exit.

    Resampling some hundred runs takes most of a minute. The result depends only on the similarities and gold scores,
    whose hash is the key, so entries never go stale. A damaged or read-only file only costs time.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / RESAMPLES
        self._entries: dict[str, Floats] = {}
        self._used: set[str] = set()
        self._new = False

    def __enter__(self) -> ResampleCache:
        with suppress(Exception), np.load(self._path) as arrays:
            self._entries = {key: arrays[key] for key in arrays.files}
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if not self._new:
            return
        # After an exception, entries may be unused only because they were not reached.
        keep = {key: value for key, value in self._entries.items() if kind is not None or key in self._used}
        with suppress(DiffaugError), atomic_file(self._path) as temporary:
            np.savez(temporary, **keep)  # type: ignore[arg-type]

    def get(self, key: str, shape: tuple[int, int]) -> Floats | None:
        found = self._entries.get(key)
        if found is None or found.shape != shape or found.dtype != np.float64:
            return None
        self._used.add(key)
        return found

    def put(self, key: str, values: Floats) -> None:
        self._entries[key] = values
        self._used.add(key)
        self._new = True


def resample_key(cosines: Sequence[Pairs], gold: Pairs, tasks: Sequence[str], resamples: int, seed: int) -> str:
    """A hash of everything that decides the bootstrap samples of a row.

    Args:
        cosines: of each run, by task.
        gold: the gold scores of the same pairs, by task.
        tasks: their order.
        resamples, seed: of the bootstrap.
    """
    digest = hashlib.sha256()
    digest.update(json.dumps([_METHOD, __version__, list(tasks), len(cosines), resamples, seed]).encode())
    for task in tasks:
        for array in (gold[task], *(of_run[task] for of_run in cosines)):
            digest.update(f"{array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Resampled:
    """The gold scores of a row's runs, and each score on every resample as the mean over the runs."""

    gold: Pairs
    values: dict[str, Floats]


@dataclass
class Pairing:
    """Compares rows, each given by its runs. The samples of a row are reused in all its comparisons.

    Attributes:
        tasks: the test tasks.
        resamples, seed: of the bootstrap.
        confidence: of the intervals.
        cache: of earlier samples; None: no cache.
    """

    tasks: Sequence[str]
    resamples: int = 1000
    seed: int = 0
    confidence: float = 0.95
    cache: ResampleCache | None = None
    _rows: dict[tuple[str, ...], _Resampled] = field(default_factory=dict, repr=False)

    def test(self, first: Sequence[Run], second: Sequence[Run]) -> PairedTest:
        """Compare the row with the runs ``first`` with the row with the runs ``second``.

        Raises:
            UnpairedError: the similarities of a run are missing, or belong to other sentence pairs.
        """
        mine, theirs = self._resampled(first), self._resampled(second)
        _check_same_pairs(mine.gold, theirs.gold, f"{first[0].cell.name} and {second[0].cell.name}")
        comparisons = {}
        for name in (*self.tasks, AVERAGE):
            scores = _mean(first, name), _mean(second, name)
            comparisons[name] = compare(name, scores, (mine.values[name], theirs.values[name]), self.confidence)
        other = {(run.cell.seed, run.cell.draw): run.result.scores[AVERAGE] for run in second}
        by_run = tuple(
            run.result.scores[AVERAGE] - other[key] for run in first if (key := (run.cell.seed, run.cell.draw)) in other
        )
        return PairedTest(*second[0].cell.place, comparisons, by_run)

    def _resampled(self, runs: Sequence[Run]) -> _Resampled:
        """The scores of a row on every resample; all rows have the same resamples."""
        key = tuple(run.cell.name for run in runs)
        if key not in self._rows:
            cosines, golds = zip(*(_similarities(run, self.tasks) for run in runs), strict=True)
            for run, gold in zip(runs, golds, strict=True):
                _check_same_pairs(golds[0], gold, f"{runs[0].cell.name} and {run.cell.name}")
            values = dict(zip(self.tasks, self._draw(cosines, golds[0]), strict=True))
            self._rows[key] = _Resampled(golds[0], {**values, AVERAGE: average(list(values.values()))})
        return self._rows[key]

    def _draw(self, cosines: Sequence[Pairs], gold: Pairs) -> Floats:
        """The mean score of runs on every resample: (tasks, resamples)."""
        key = resample_key(cosines, gold, self.tasks, self.resamples, self.seed)
        found = None if self.cache is None else self.cache.get(key, (len(self.tasks), self.resamples))
        if found is None:
            statistics = [MeanSpearman([of_run[task] for of_run in cosines], gold[task]) for task in self.tasks]
            pairs = zip(self.tasks, statistics, strict=True)
            found = np.stack([bootstrap(statistic, task, self.resamples, self.seed) for task, statistic in pairs])
            if self.cache is not None:
                self.cache.put(key, found)
        return found


def _similarities(run: Run, tasks: Sequence[str]) -> tuple[Pairs, Pairs]:
    """Cosines and gold scores of the pairs of a run, by task.

    Raises:
        UnpairedError: they are missing, or do not give the scores of the run.
    """
    path, name = run.folder / SIMILARITIES, run.cell.name
    cosines: Pairs = {}
    golds: Pairs = {}
    try:
        with np.load(path) as arrays:
            for task in tasks:
                cosines[task], golds[task] = arrays[f"{task}/cosine"], arrays[f"{task}/gold"]
                again, score = Spearman(cosines[task], golds[task]).value(), run.result.scores[task]
                if not abs(again - score) <= _ROUNDING:
                    raise UnpairedError(f"{name} scored {score:.2f} on {task}, but its pairs give {again:.2f}")
    except FileNotFoundError:
        raise UnpairedError(f"{name} has no {SIMILARITIES}") from None
    except KeyError as error:
        raise UnpairedError(f"{name} was not scored on all tasks: there is no {error.args[0]}") from None
    except UnpairedError:
        raise
    except Exception as error:  # damaged archives raise errors of many classes
        raise DiffaugError(f"{path} is damaged ({error}); remove the cell's folder and run it again") from error
    return cosines, golds


def _check_same_pairs(first: Pairs, second: Pairs, who: str) -> None:
    for task, gold in first.items():
        if not np.array_equal(gold, second[task]):
            raise UnpairedError(f"{who} were scored on different pairs of {task}")


def _mean(runs: Sequence[Run], score: str) -> float:
    return float(np.mean([run.result.scores[score] for run in runs]))
