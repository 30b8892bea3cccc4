"""The verdict: which run is best, by how much, and whether it beats the model before training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from diffaug.data.records import ScoredPairs
from diffaug.errors import DiffaugError
from diffaug.evaluation.statistics import Comparison, Spearman, bootstrap, compare
from diffaug.experiments.results import AVERAGE, DEV, Entry, Summary, place_name
from diffaug.report.pairs import PairReader
from diffaug.report.runs import Run

# The scores of a run; a grid has names of its own.
_DEV, _TEST = "dev", "test"
_RESAMPLES, _CONFIDENCE = 1000, 0.95
_MOST_PLACES = 6  # of a grid

Outcome = Literal["better", "worse", "unclear"]
Cosines = Callable[[Run, ScoredPairs, bool], NDArray[np.float64]]
"""The cosines of the pairs by a run's best model (True), or by its backbone before training (False)."""


@dataclass(frozen=True)
class Verdict:
    """What the top of the page says.

    Attributes:
        headline: the answer in a sentence.
        outcome: whether the best run beats the model before training.
        details: what it is compared with, and the result.
        note: how it was measured.
    """

    headline: str
    outcome: Outcome = "unclear"
    details: list[tuple[str, str]] = field(default_factory=list)
    note: str = ""


def judge_runs(runs: Sequence[Run], reader: PairReader, cosines: Cosines) -> Verdict | None:
    """The verdict on runs that do not belong to a grid; None if none is finished.

    The best run has the highest dev score. It is compared on the test pairs if there are some, because the dev pairs
    have chosen it.
    """
    finished = [run for run in runs if run.state == "finished"]
    chosen_by = next((name for name in (_DEV, _TEST) if any(name in run.scores for run in finished)), None)
    if chosen_by is None:
        about = "no finished run has a dev or test score. Set data.dev to scored pairs to compare runs."
        return Verdict(f"There is no verdict: {about}") if finished else None
    scored = [run for run in finished if math.isfinite(run.scores.get(chosen_by, math.nan))]
    if not scored:
        return Verdict(f"There is no verdict: the {chosen_by} score of every run is undefined.")
    best = max(scored, key=lambda run: run.scores[chosen_by])
    name = _TEST if _TEST in best.scores else chosen_by
    rivals = [run for run in scored if run is not best and _same_data(run, best, (chosen_by, name))]
    rivals.sort(key=lambda run: -run.scores[chosen_by])
    pairs, why = _pairs(reader, best, name)

    def gap(other: Run, trained: bool) -> _Gap | None:
        """How far the best run is ahead of another one, or of its own backbone."""
        scores = best.scores[name], (other.scores if trained else other.before).get(name, math.nan)
        if not all(map(math.isfinite, scores)):
            return None
        nonlocal why
        if pairs is not None and not why:
            try:
                sides = [cosines(best, pairs, True), cosines(other, pairs, trained)]
            except DiffaugError as error:
                why = str(error)
            else:
                drawn = [bootstrap(Spearman(side, pairs.scores), name, _RESAMPLES, seed=0) for side in sides]
                return _Gap.of(compare(name, scores, (drawn[0], drawn[1]), _CONFIDENCE))
        return _Gap(*scores)

    before, second = gap(best, False), gap(rivals[0], True) if rivals else None
    details = [] if before is None else [("Before training", str(before))]
    if second is not None:
        details.append((f"Second: {rivals[0].name}", str(second)))
    if others := len(scored) - len(rivals) - 1:
        details.append((f"{others:,} more", f"not compared: their {chosen_by} or {name} data are others"))
    headline = _headline(best, len(rivals) + 1, chosen_by, before, second)
    return Verdict(
        headline, "unclear" if before is None else before.outcome, details, _note(name, chosen_by, pairs, why)
    )


@dataclass(frozen=True)
class _Gap:
    """Two scores and, if they could be resampled, the interval of their difference."""

    first: float
    second: float
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, found: Comparison) -> _Gap:
        return cls(found.first, found.second, (found.low, found.high))

    @property
    def outcome(self) -> Outcome:
        low, high = self.interval or (self.first - self.second,) * 2
        return "better" if low > 0 else "worse" if high < 0 else "unclear"

    @property
    def size(self) -> str:
        return f"{abs(self.first - self.second):.2f}"

    def __str__(self) -> str:
        text = f"{_minus(self.second)}, a difference of {_minus(self.first - self.second, '+')}"
        if self.interval is None:
            return text
        text += f" ({' to '.join(_minus(end, '+') for end in self.interval)})"
        return text if self.outcome != "unclear" else f"{text}: may be chance"


def _headline(best: Run, count: int, chosen_by: str, before: _Gap | None, second: _Gap | None) -> str:
    base = "the model before training"
    if count > 1:
        clear = second is not None and second.outcome == "better"
        place = "is the best" if clear else f"has the highest {chosen_by} score"
        start = f"{best.name} {place} of {count:,} runs"
        if before is None:
            return f"{start}."
        joined = {
            "better": ", and is better than",
            "worse": ", but is worse than",
            "unclear": ", but is not shown to beat",
        }
        end = "" if before.outcome == "unclear" else f" by {before.size}"
        return f"{start}{joined[before.outcome]} {base}{end}."
    if before is None:
        return f"{best.name} has a {chosen_by} score of {best.scores[chosen_by]:.2f}."
    if before.outcome == "unclear":
        return f"{best.name} is not shown to beat {base}."
    return f"{best.name} is {before.outcome} than {base} by {before.size}."


def _note(name: str, chosen_by: str, pairs: ScoredPairs | None, why: str) -> str:
    if pairs is None or why:
        return f"Scores on the {name} pairs, without intervals: {why}."
    text = (
        f"Scores on {len(pairs):,} {name} pairs. In brackets: the {100 * _CONFIDENCE:g} % interval of the difference, "
    )
    text += "by a paired bootstrap over the pairs."
    return text if name != chosen_by else f"{text} The same pairs chose checkpoint and run; expect less on other pairs."


def _pairs(reader: PairReader, run: Run, name: str) -> tuple[ScoredPairs | None, str]:
    """The pairs of a score, or why they are missing."""
    try:
        found = {setting: pairs for setting, _, pairs in reader.dev_and_test(run)}
    except DiffaugError as error:
        return None, str(error)
    return found.get(name), "" if name in found else "the recipe names no file"


def _same_data(first: Run, second: Run, names: Sequence[str]) -> bool:
    sources = [[(run.recipe.get("data") or {}).get(name) for name in names] for run in (first, second)]
    return sources[0] == sources[1]


def _minus(value: float, sign: str = "") -> str:
    return f"{value:{sign}.2f}".replace("-", "−")


def judge_grid(summary: Summary, runs: Sequence[Run]) -> Verdict | None:
    """The verdict on a grid: the best row of each group and column, by the tests of its tables; None without results.

    Args:
        summary: of the grid.
        runs: of the grid; they know the scores before training.
    """
    name = AVERAGE if summary.tasks else DEV
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in summary.entries:
        if name in entry.values:
            groups.setdefault((entry.group, entry.column), []).append(entry)
    if not groups:
        return None
    best = {place: max(entries, key=lambda entry: entry.values[name].mean) for place, entries in groups.items()}
    details = []
    for (group, column), entry in list(best.items())[-_MOST_PLACES:]:
        where = " at ".join(part for part in (group, column) if part) if len(best) > 1 else ""
        details.append((where or entry.row, f"{entry.row}, " * bool(where) + _entry_text(entry, name)))
    top = max(best.values(), key=lambda entry: entry.values[name].mean)
    headline = f"{place_name(top.row, top.column)} has the highest {'average' if name == AVERAGE else 'dev score'}, "
    headline += f"{top.values[name].mean:.2f}"
    cells = [run for run in runs if run.cell and run.cell.place == (top.row, top.column)]
    before = [run.dev_before for run in cells if run.dev_before is not None]
    outcome: Outcome = "unclear"
    if before and DEV in top.values:
        gap = _Gap(top.values[DEV].mean, fmean(before))
        outcome = gap.outcome
        headline += f"; its dev score was {_minus(gap.second)} before training and is {_minus(gap.first)}"
    return Verdict(f"{headline}.", outcome, details, _grid_note(summary, len(best)))


def _entry_text(entry: Entry, name: str) -> str:
    text = _minus(entry.values[name].mean)
    if entry.test is None:
        return text
    found = entry.test.average
    gap = _Gap.of(found)
    against = f"{entry.test.row} {_minus(found.second)}"
    low, high = (_minus(end, "+") for end in (found.low, found.high))
    chance = "" if gap.outcome != "unclear" else ": may be chance"
    return f"{text}; strongest baseline {against}, difference {_minus(found.difference, '+')} ({low} to {high}){chance}"


def _grid_note(summary: Summary, places: int) -> str:
    shown = f"The last {_MOST_PLACES} of {places} places are listed. " if places > _MOST_PLACES else ""
    if not any(entry.test for entry in summary.entries):
        return f"{shown}Without tests between rows; the tables below have all scores."
    return f"{shown}In brackets: {100 * summary.confidence:g} % intervals of a paired bootstrap, as in the tables."
