"""The outcome of an evaluation, and its form as JSON."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffaug.evaluation.geometry import Geometry
from diffaug.evaluation.statistics import Comparison
from diffaug.evaluation.subject import ModelInfo
from diffaug.evaluation.tasks import TaskResult
from diffaug.files import atomic_file
from diffaug.version import __version__

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Average:
    """The mean score of the tasks of a group that were evaluated.

    Attributes:
        group: ``sts`` or ``transfer``.
        protocol: what was averaged.
        score, low, high: the mean, and its bootstrap interval.
        tasks: what it is the mean of.
        missing: the tasks of the group that it lacks; with any, it is not the average that papers report.
    """

    group: str
    protocol: str
    score: float
    low: float
    high: float
    tasks: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        """With its extent: an average of three tasks never looks like one of seven."""
        total = len(self.tasks) + len(self.missing)
        return f"average of {len(self.tasks)}" + (f" of {total}" if self.missing else "")


@dataclass(frozen=True)
class Settings:
    """What an evaluation depends on besides model and data."""

    seed: int
    resamples: int
    confidence: float


@dataclass
class Scores:
    """What one model reached."""

    model: ModelInfo
    tasks: list[TaskResult]
    averages: list[Average]
    geometry: Geometry | None = None


@dataclass
class Report(Scores):
    """What an evaluation found.

    Attributes:
        model: the model, with its fingerprint.
        tasks: the score of each task.
        averages: the means over the tasks of a group.
        geometry: how the vectors lie in space, if it was asked for.
        missing: each task that was asked for and not evaluated, and why.
        warnings: what to know before trusting a score.
        files: the SHA-256 of every file of the public tasks that was read.
        sentences: how many distinct sentences were embedded.
        versus: the scores of the model it was compared with.
        comparisons: the paired tests, task by task and of the averages.
    """

    missing: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    sentences: int = 0
    settings: Settings = field(default_factory=lambda: Settings(0, 0, 0.95))
    versus: Scores | None = None
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def scores(self) -> dict[str, float]:
        """The score of each task by its name."""
        return {task.name: task.score for task in self.tasks}

    @property
    def labels(self) -> tuple[str, str]:
        """Short names for the model and the one it is compared with: as much of their paths as tells them apart."""
        if self.versus is None:
            return self.model.tail(1), ""
        for parts in range(1, 1 + max(self.model.name.count("/"), self.versus.model.name.count("/")) + 1):
            first, second = self.model.tail(parts), self.versus.model.tail(parts)
            if first != second:
                return first, second
        return "the model", "the other"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON takes it; a score that is undefined is None."""
        versus = None
        if self.versus is not None:
            versus = _scores(self.versus) | {"comparisons": [_comparison(c, self) for c in self.comparisons]}
        everything = {
            "format_version": FORMAT_VERSION,
            "diffaug_version": __version__,
            **_scores(self),
            "missing": self.missing,
            "warnings": self.warnings,
            "versus": versus,
            "distinct_sentences": self.sentences,
            "settings": vars(self.settings),
            "files": self.files,
        }
        cleaned: dict[str, Any] = clean_numbers(everything)
        return cleaned

    def save_json(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` to a file, atomically."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        with atomic_file(Path(path)) as temporary:
            temporary.write_text(text, "utf-8")

    def save_markdown(self, path: str | os.PathLike[str]) -> None:
        """Write `to_markdown` to a file, atomically."""
        with atomic_file(Path(path)) as temporary:
            temporary.write_text(self.to_markdown(), "utf-8")

    def to_markdown(self) -> str:
        """Tables for people, as Markdown."""
        from diffaug.evaluation.render import markdown

        return markdown(self)

    def __str__(self) -> str:
        return self.to_markdown()


def _scores(scores: Scores) -> dict[str, Any]:
    return {
        "model": vars(scores.model),
        "tasks": {
            task.name: {
                "protocol": task.protocol,
                "score": task.score,
                "interval": [task.low, task.high],
                "rows": task.rows,
                **task.details,
            }
            for task in scores.tasks
        },
        "averages": {
            average.group: {
                "protocol": average.protocol,
                "score": average.score,
                "interval": [average.low, average.high],
                "over": len(average.tasks),
                "of": len(average.tasks) + len(average.missing),
                "tasks": list(average.tasks),
                "missing": list(average.missing),
            }
            for average in scores.averages
        },
        "geometry": None if scores.geometry is None else scores.geometry.to_dict(),
    }


def _comparison(comparison: Comparison, report: Report) -> dict[str, Any]:
    return {
        "name": comparison.name,
        "difference": comparison.difference,
        "interval": [comparison.low, comparison.high],
        "p_value": comparison.p_value,
        "shown": comparison.shown,
        "words": comparison.words(*report.labels),
    }


def clean_numbers(value: Any) -> Any:
    """Numbers to six places, which is more than any score means; NaN, which JSON does not know, to None."""
    if isinstance(value, dict):
        return {key: clean_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_numbers(item) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value
