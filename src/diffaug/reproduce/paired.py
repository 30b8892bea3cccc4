"""Whether one row of a grid is better than another: the paired bootstrap over sentence pairs, and run by run.

Two things make a score uncertain: which sentence pairs a task happens to hold, and which seed a run happens to have.
The bootstrap draws the pairs again and keeps the runs as they are; the differences between runs of the same seed show
what the seeds do.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diffaug.errors import DiffaugError
from diffaug.evaluation.statistics import Comparison, Floats, MeanSpearman, Spearman, average, bootstrap, compare
from diffaug.reproduce.cell import Cell, Result
from diffaug.reproduce.grid import SIMILARITIES
from diffaug.reproduce.resamples import Pairs, Resamples, fingerprint
from diffaug.reproduce.score import AVERAGE

# Similarities are kept in single precision, which can change the order of pairs that are all but equal.
_ROUNDING = 0.01


class UnpairedError(Exception):
    """Rows cannot be compared pair by pair; the message says why."""


@dataclass(frozen=True)
class Run:
    """A finished cell that counts as a measurement, and its folder."""

    cell: Cell
    result: Result
    folder: Path


@dataclass(frozen=True)
class PairedTest:
    """A row against another one.

    Attributes:
        row, column: what it is compared with.
        comparisons: the paired bootstrap for each task, and for their average.
        by_run: the differences of the averages of those runs that have the same seed and draw on both sides.
    """

    row: str
    column: str
    comparisons: dict[str, Comparison]
    by_run: tuple[float, ...]

    @property
    def average(self) -> Comparison:
        return self.comparisons[AVERAGE]

    @property
    def runs_ahead(self) -> int:
        """How many of `by_run` are above zero."""
        return sum(difference > 0 for difference in self.by_run)


@dataclass(frozen=True)
class _Drawn:
    """What a row's runs were scored on, and each score on every resample as the mean over the runs."""

    gold: Pairs
    values: dict[str, Floats]


@dataclass
class Pairing:
    """Compares rows, each given by its runs. What was drawn for a row serves all its comparisons.

    Attributes:
        tasks: the test tasks.
        resamples, seed: of the bootstrap.
        confidence: of the intervals.
        kept: what was drawn before, by anybody; None: nothing.
    """

    tasks: Sequence[str]
    resamples: int = 1000
    seed: int = 0
    confidence: float = 0.95
    kept: Resamples | None = None
    _drawn: dict[tuple[str, ...], _Drawn] = field(default_factory=dict, repr=False)

    def test(self, first: Sequence[Run], second: Sequence[Run]) -> PairedTest:
        """Whether the row with the runs ``first`` differs from the one with ``second``.

        Raises:
            UnpairedError: the similarities of a run are missing, or are not those of the same sentence pairs.
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
        return PairedTest(second[0].cell.row, second[0].cell.column, comparisons, by_run)

    def _resampled(self, runs: Sequence[Run]) -> _Drawn:
        """The scores of a row on every resample; the resamples are the same for all rows."""
        key = tuple(run.cell.name for run in runs)
        if key not in self._drawn:
            cosines, golds = zip(*(_similarities(run, self.tasks) for run in runs), strict=True)
            for run, gold in zip(runs, golds, strict=True):
                _check_same_pairs(golds[0], gold, f"{runs[0].cell.name} and {run.cell.name}")
            drawn = dict(zip(self.tasks, self._draw(cosines, golds[0]), strict=True))
            self._drawn[key] = _Drawn(golds[0], {**drawn, AVERAGE: average(list(drawn.values()))})
        return self._drawn[key]

    def _draw(self, cosines: Sequence[Pairs], gold: Pairs) -> Floats:
        """The mean score of runs on every resample: (tasks, resamples)."""
        key = fingerprint(cosines, gold, self.tasks, self.resamples, self.seed)
        found = None if self.kept is None else self.kept.get(key, (len(self.tasks), self.resamples))
        if found is None:
            statistics = [MeanSpearman([of_run[task] for of_run in cosines], gold[task]) for task in self.tasks]
            pairs = zip(self.tasks, statistics, strict=True)
            found = np.stack([bootstrap(statistic, task, self.resamples, self.seed) for task, statistic in pairs])
            if self.kept is not None:
                self.kept.put(key, found)
        return found


def _similarities(run: Run, tasks: Sequence[str]) -> tuple[Pairs, Pairs]:
    """Cosines and gold scores of the pairs a run was scored on, by task.

    Raises:
        UnpairedError: they are not there, or are not those behind the run's scores.
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
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DiffaugError(f"{path} is damaged ({error}); remove the cell's folder and run it again") from error
    return cosines, golds


def _check_same_pairs(first: Pairs, second: Pairs, who: str) -> None:
    for task, gold in first.items():
        if not np.array_equal(gold, second[task]):
            raise UnpairedError(f"{who} were scored on different pairs of {task}")


def _mean(runs: Sequence[Run], score: str) -> float:
    return float(np.mean([run.result.scores[score] for run in runs]))
