"""What `adapt` found, and the rule by which it chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.adaptation.candidates import UNTOUCHED
from diffaug.adaptation.forecasts import Forecast
from diffaug.adaptation.measure import Outcomes, statistic
from diffaug.data.records import Classes, Labelled
from diffaug.evaluation.statistics import Comparison, Statistic, bootstrap, clean_numbers, compare
from diffaug.tabular import Section, whole_rows

# How sure a gain must be by default. On 71 draws of public labels, 0.95 gained less and lost as much (docs/adapt.md).
CONFIDENCE = 0.9
_RESAMPLES = 2000
_INTERVAL = 0.8  # of the differences in the table: it is above 0 if a gain is shown with the default confidence


@dataclass(frozen=True)
class Row:
    """A candidate's result.

    Attributes:
        name: of the candidate.
        score: over the held-out rows of all folds.
        difference: from the untouched model, with its interval; None for the untouched model.
        seconds: for all folds.
    """

    name: str
    score: float
    difference: Comparison | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        found = self.difference
        difference = found and {**found.to_dict(self.name, UNTOUCHED), "confidence": found.confidence}
        return {"name": self.name, "score": self.score, "difference": difference, "seconds": self.seconds}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], untouched: float) -> Row:
        """Read what `to_dict` returned; ``untouched`` is the score of the untouched model."""
        given = values["difference"]
        # Older results have 90 % intervals, and do not say so.
        found = given and Comparison.from_dict(given, values["score"], untouched, given.get("confidence", 0.9))
        return cls(values["name"], values["score"], found, values["seconds"])


@dataclass(frozen=True)
class AdaptResult:
    """What `adapt` found.

    Attributes:
        labels: what the labels are, in words.
        measure: the name of the score.
        held_out: what decided, in words.
        rows: one per candidate, the untouched model first.
        chosen: the name of the candidate that is the result.
        verdict: one sentence.
        model: the folder of the saved model; None if the untouched model is the result and has no classifier to save.
        forecast: what more labels would bring; None if every candidate that learns from the labels trains the encoder.
        seconds: the duration of this process.
    """

    labels: str
    measure: str
    held_out: str
    rows: list[Row]
    chosen: str
    verdict: str
    model: Path | None
    forecast: Forecast | None
    seconds: float

    def table(self) -> Section:
        """The candidates as a table."""
        rows = [
            [
                row.name,
                f"{row.score:.2f}",
                "" if (d := row.difference) is None else f"{d.difference:+.2f} ({d.low:+.2f} to {d.high:+.2f})",
                f"{row.seconds:.0f}",
            ]
            for row in self.rows
        ]
        chosen = {i for i, row in enumerate(self.rows) if row.name == self.chosen}
        percent = next((f" ({_percent(d.confidence)} interval)" for row in self.rows if (d := row.difference)), "")
        columns = ["candidate", self.measure, f"against {UNTOUCHED}{percent}", "seconds"]
        return Section(f"{self.labels}; {self.measure} on {self.held_out}", columns, rows, whole_rows(rows, chosen))

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        names = ("labels", "measure", "held_out", "chosen", "verdict", "seconds")
        values = {
            **{name: getattr(self, name) for name in names},
            "model": None if self.model is None else str(self.model),
            "rows": [row.to_dict() for row in self.rows],
            "forecast": self.forecast and self.forecast.to_dict(),
        }
        found: dict[str, Any] = clean_numbers(values)
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AdaptResult:
        """Read what `to_dict` returned."""
        names = ("labels", "measure", "held_out", "chosen", "verdict", "seconds")
        return cls(
            **{name: values[name] for name in names},
            model=None if values["model"] is None else Path(values["model"]),
            rows=[Row.from_dict(row, values["rows"][0]["score"]) for row in values["rows"]],
            forecast=None if values["forecast"] is None else Forecast.from_dict(values["forecast"]),
        )


def compare_all(labelled: Labelled, outcomes: Mapping[str, tuple[Sequence[Outcomes], float]]) -> list[Row]:
    """The rows of the table, with paired bootstraps against the first candidate, the untouched model.

    Args:
        labelled: the labels.
        outcomes: by candidate, what it did in each fold, and how many seconds that took.
    """
    rows: list[Row] = []
    first = None
    for name, (found, seconds) in outcomes.items():
        score: Statistic = statistic(labelled, found)
        resampled = bootstrap(score, "held out", _RESAMPLES, 0)
        if first is None:
            first = resampled
            rows.append(Row(name, score.value(), None, seconds))
            continue
        # A small fold may have resamples in which a score is undefined: they say nothing.
        known = ~np.isnan(resampled - first)
        known |= ~known.any()
        pair = (resampled[known], first[known])
        rows.append(
            Row(name, score.value(), compare("held out", (score.value(), rows[0].score), pair, _INTERVAL), seconds)
        )
    return rows


def choose(rows: Sequence[Row], confidence: float = CONFIDENCE) -> Row:
    """The row with the highest score among those shown to be better than the untouched model, or that of this one."""

    def shown(row: Row) -> bool:
        # The p-value is two-sided.
        d = row.difference
        return d is not None and d.difference > 0 and d.p_value <= 2 * (1 - confidence) + 1e-9

    better = [row for row in rows if shown(row)]
    return max(better, key=lambda row: row.score) if better else rows[0]


def verdict(chosen: Row, rows: Sequence[Row], labelled: Labelled, confidence: float = CONFIDENCE) -> str:
    """One sentence on what to do, and how sure that is."""
    if (d := chosen.difference) is not None:
        sure = math.floor(1000 * (1 - d.p_value / 2)) / 1000  # rounding could give 100 %
        return (
            f"Use {chosen.name}: {d.difference:+.2f} points over the model as it is ({_interval(d)}), better with "
            f"{_percent(sure)} confidence."
        )
    best = max(rows[1:], key=lambda row: row.score, default=None)
    tail = ""
    if best is not None and (d := best.difference) is not None:
        tail = f" (the best, {best.name}, differs by {d.difference:+.2f} points, {_interval(d)})"
    saved = "a classifier on its vectors is saved" if isinstance(labelled, Classes) else "nothing is saved"
    return (
        f"Do not train: no candidate is shown with {_percent(confidence)} confidence to be better than the model as it "
        f"is{tail}; {saved}."
    )


def _interval(found: Comparison) -> str:
    return f"{_percent(found.confidence)} interval {found.low:+.2f} to {found.high:+.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
