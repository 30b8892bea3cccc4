"""The result of an evaluation, and its JSON form."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from diffaug.evaluation.evaluated_model import ModelInfo
from diffaug.evaluation.geometry import Geometry
from diffaug.evaluation.statistics import Comparison, clean_numbers, from_json_number
from diffaug.evaluation.tasks import TaskResult
from diffaug.files import write_text
from diffaug.provenance import RunProvenance
from diffaug.version import __version__

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Average:
    """The mean score of the evaluated tasks of a group.

    Attributes:
        group: ``sts`` or ``transfer``.
        protocol: the protocol of the averaged scores.
        score, low, high: the mean and its bootstrap interval.
        tasks: the averaged tasks.
        missing: tasks of the group that were not evaluated. If there are any, this is not the average of the papers.
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
        """The name with the number of tasks, so that an average of three is not mistaken for one of seven."""
        total = len(self.tasks) + len(self.missing)
        return f"average of {len(self.tasks)}" + (f" of {total}" if self.missing else "")

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "protocol": self.protocol,
            "score": self.score,
            "interval": [self.low, self.high],
            "over": len(self.tasks),
            "of": len(self.tasks) + len(self.missing),
            "tasks": list(self.tasks),
            "missing": list(self.missing),
        }

    @classmethod
    def from_dict(cls, group: str, values: Mapping[str, Any]) -> Average:
        """Read what `to_dict` returned."""
        score, low, high = map(from_json_number, (values["score"], *values["interval"]))
        return cls(group, values["protocol"], score, low, high, tuple(values["tasks"]), tuple(values["missing"]))


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings that influence scores, apart from model and data."""

    seed: int
    resamples: int
    confidence: float


@dataclass
class ModelScores:
    """The scores of one model."""

    model: ModelInfo
    tasks: list[TaskResult]
    averages: list[Average]
    geometry: Geometry | None = None

    @property
    def by_name(self) -> dict[str, float]:
        """Scores of tasks and averages, by the names that comparisons use."""
        averages = {f"{average.group} average of {len(average.tasks)}": average.score for average in self.averages}
        return {task.name: task.score for task in self.tasks} | averages

    def scores_to_dict(self) -> dict[str, Any]:
        """JSON values of the model's part of a result."""
        return {
            "model": vars(self.model),
            "tasks": {task.name: task.to_dict() for task in self.tasks},
            "averages": {average.group: average.to_dict() for average in self.averages},
            "geometry": None if self.geometry is None else asdict(self.geometry),
        }

    @staticmethod
    def scores_from_dict(values: Mapping[str, Any]) -> ModelScores:
        """Read what `scores_to_dict` returned."""
        return ModelScores(
            ModelInfo(**values["model"]),
            [TaskResult.from_dict(name, task) for name, task in values["tasks"].items()],
            [Average.from_dict(group, average) for group, average in values["averages"].items()],
            None if values["geometry"] is None else Geometry(**values["geometry"]),
        )


@dataclass
class EvaluationResult(ModelScores):
    """The result of `diffaug.evaluate`.

    Attributes:
        model: the model's name and fingerprint.
        tasks: one result per task.
        averages: mean scores of groups of tasks.
        geometry: alignment, uniformity and related measures, if requested.
        missing: requested tasks that were not evaluated, with the reason.
        warnings: problems that may affect a score.
        files: SHA-256 of everything that was read, by the name of the file.
        sentences: number of distinct sentences that were encoded.
        versions: of diffaug, torch and transformers.
        device: of the model; empty for a callable.
        versus: the scores of the model to compare with.
        comparisons: paired tests, one per task and average.
    """

    missing: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    sentences: int = 0
    settings: EvaluationSettings = field(default_factory=lambda: EvaluationSettings(0, 0, 0.95))
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    versus: ModelScores | None = None
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def scores(self) -> dict[str, float]:
        """The score of each task, by name."""
        return {task.name: task.score for task in self.tasks}

    @property
    def labels(self) -> tuple[str, str]:
        """Short names of both models: the last parts of their paths, as many as are needed to distinguish them."""
        if self.versus is None:
            return self.model.tail(1), ""
        for parts in range(1, 1 + max(self.model.name.count("/"), self.versus.model.name.count("/")) + 1):
            first, second = self.model.tail(parts), self.versus.model.tail(parts)
            if first != second:
                return first, second
        return "the model", "the other"

    @property
    def provenance(self) -> RunProvenance:
        """What decided the scores, apart from settings."""
        models = {"model": self.model.fingerprint, "versus": self.versus.model.fingerprint if self.versus else None}
        known = {name: fingerprint for name, fingerprint in models.items() if fingerprint is not None}
        return RunProvenance({"tasks": self.files}, known, self.versions, self.device)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; an undefined score is None."""
        versus = None
        if self.versus is not None:
            comparisons = [comparison.to_dict(*self.labels) for comparison in self.comparisons]
            versus = self.versus.scores_to_dict() | {"comparisons": comparisons}
        everything = {
            "format_version": FORMAT_VERSION,
            "diffaug_version": __version__,
            **self.scores_to_dict(),
            "missing": self.missing,
            "warnings": self.warnings,
            "versus": versus,
            "distinct_sentences": self.sentences,
            "settings": vars(self.settings),
            "files": self.files,
            "provenance": self.provenance.to_dict(),
        }
        cleaned: dict[str, Any] = clean_numbers(everything)
        return cleaned

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EvaluationResult:
        """Read what `to_dict` returned, for example from the file of ``diffaug eval --json``.

        Bootstrap values are not saved, so the result cannot be compared with another model again.
        """
        result = cls(
            **vars(cls.scores_from_dict(values)),
            missing=dict(values["missing"]),
            warnings=list(values["warnings"]),
            files=dict(values["files"]),
            sentences=values["distinct_sentences"],
            settings=EvaluationSettings(**values["settings"]),
        )
        if (provenance := values.get("provenance")) is not None:  # older versions did not write it
            found = RunProvenance.from_dict(provenance)
            result.versions, result.device = dict(found.versions), found.device
        if (versus := values["versus"]) is not None:
            result.versus = cls.scores_from_dict(versus)
            first, second = result.by_name, result.versus.by_name
            confidence = result.settings.confidence
            result.comparisons = [
                Comparison.from_dict(found, first[found["name"]], second[found["name"]], confidence)
                for found in versus["comparisons"]
            ]
        return result

    def save_json(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` to a file, atomically."""
        write_text(Path(path), json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")

    def save_markdown(self, path: str | os.PathLike[str]) -> None:
        """Write `to_markdown` to a file, atomically."""
        write_text(Path(path), self.to_markdown())

    def to_markdown(self) -> str:
        """Tables in Markdown."""
        from diffaug.evaluation.render import markdown

        return markdown(self)

    def __str__(self) -> str:
        return self.to_markdown()
