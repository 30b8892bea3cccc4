"""What `tune` found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffaug.evaluation.statistics import Comparison, clean_numbers
from diffaug.tabular import Section, whole_rows

DEFAULT = "default"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class TrialResult:
    """One trial.

    Attributes:
        name: its number, or `default` for the recipe as it is.
        changes: its settings, as `key=value`.
        score: on the pairs that choose; of a pruned trial the best until then; None if it failed.
        end: `complete`, `pruned`, `failed`, or `same as N`.
        seconds: the duration of its training.
        failure: why it failed.
    """

    name: str
    changes: list[str]
    score: float | None
    end: str
    seconds: float
    failure: str | None = None


@dataclass(frozen=True)
class TuneResult:
    """A search over settings.

    Attributes:
        trials: the recipe as it is, then all trials by number.
        chosen: the name of the one with the highest score on the pairs that choose.
        chooses: the pairs that choose, in words.
        reports: the pairs that choose nothing, in words.
        comparison: chosen settings and default settings on the latter; None if the default was chosen.
        score: of the chosen settings on the latter.
        model: the folder of its model.
    """

    trials: list[TrialResult]
    chosen: str
    chooses: str
    reports: str
    score: float
    comparison: Comparison | None
    model: Path

    @property
    def changes(self) -> list[str]:
        """The chosen settings, as `key=value`; empty if the default was chosen."""
        return next(trial.changes for trial in self.trials if trial.name == self.chosen)

    @property
    def verdict(self) -> str:
        """What was found, in a sentence or two."""
        if self.comparison is None:
            return f"Keep the default settings: no trial is better on {self.chooses}; {self.reports}: {self.score:.2f}."
        words = self.comparison.words("the chosen settings", "the default")
        caution = "" if self.comparison.low > 0 else " The gain is not shown; more dev pairs may show it."
        return f"{words}.{caution}"

    def table(self, most: int = 20) -> Section:
        """The trials with the highest scores."""
        ranked = sorted(self.trials, key=lambda trial: float("-inf") if trial.score is None else -trial.score)
        ranked = [trial for trial in ranked if trial.score is not None][:most]
        rows = [
            [trial.name, "  ".join(trial.changes), trial.end, f"{trial.score:.2f}", f"{trial.seconds:.0f}"]
            for trial in ranked
        ]
        chosen = {i for i, trial in enumerate(ranked) if trial.name == self.chosen}
        columns = ["trial", "settings", "end", "score", "seconds"]
        return Section(f"Spearman on {self.chooses}", columns, rows, whole_rows(rows, chosen), texts=3)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        words = {name: getattr(self, name) for name in ("chosen", "chooses", "reports", "score")}
        scores: dict[str, Any] = {}
        if self.comparison is not None:
            scores = {"default_score": self.comparison.second, **self.comparison.to_dict(self.chosen, DEFAULT)}
        values = {**words, "model": str(self.model), "comparison": scores or None}
        found: dict[str, Any] = clean_numbers({**values, "trials": list(map(asdict, self.trials))})
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TuneResult:
        """Read what `to_dict` returned."""
        given, score = values["comparison"], values["score"]
        found = given and Comparison.from_dict(given, score, given["default_score"], CONFIDENCE)
        return cls(
            trials=[TrialResult(**trial) for trial in values["trials"]],
            **{name: values[name] for name in ("chosen", "chooses", "reports", "score")},
            comparison=found,
            model=Path(values["model"]),
        )
