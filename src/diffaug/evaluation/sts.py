"""The STS tasks: reading and scoring.

Three layouts are supported: TSV files such as ``STS12.MSRpar.tsv``, SentEval's files (the same as the organisers'), and
data sets on the hub. Quotation marks have no special meaning in any of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.data.records import ScoredPairs
from diffaug.data.table import STSB_COLUMNS
from diffaug.errors import DiffaugError
from diffaug.evaluation.folder import DataFolder, check_rows, one_spaced
from diffaug.evaluation.protocol import STS_PROTOCOL, StsSpec
from diffaug.evaluation.statistics import Spearman, pearson
from diffaug.evaluation.tasks import Embeddings, TaskResult


@dataclass
class StsTask:
    """The pairs of an STS task, by subtask; a source without subtasks has one, named ``all``."""

    name: str
    subtasks: dict[str, ScoredPairs]

    def sentences(self) -> Iterable[str]:
        for pairs in self.subtasks.values():
            yield from pairs.first
            yield from pairs.second

    def score(self, embeddings: Embeddings) -> TaskResult:
        cosines, scores = [], []
        parts: dict[str, dict[str, float]] = {}
        for name, pairs in self.subtasks.items():
            cosines.append(embeddings.cosines(pairs.first, pairs.second))
            scores.append(np.array(pairs.scores))
            parts[name] = {"rows": len(pairs), **_correlations(cosines[-1], scores[-1])}
        joined = np.concatenate(cosines), np.concatenate(scores)
        overall = _correlations(*joined)
        details: dict[str, Any] = {"all": overall}
        if list(parts) != ["all"]:
            details |= {"mean": _mean(parts.values()), "wmean": _mean(parts.values(), weighted=True), "subtasks": parts}
        return TaskResult(
            self.name, "sts", STS_PROTOCOL, overall["spearman"], len(joined[0]), Spearman(*joined), details
        )


def _correlations(cosines: Any, scores: Any) -> dict[str, float]:
    return {"spearman": Spearman(cosines, scores).value(), "pearson": pearson(cosines, scores)}


def _mean(parts: Iterable[dict[str, float]], *, weighted: bool = False) -> dict[str, float]:
    parts = list(parts)
    weights = [part["rows"] if weighted else 1 for part in parts]
    return {
        measure: float(np.average([part[measure] for part in parts], weights=weights))
        for measure in ("spearman", "pearson")
    }


def load_sts(spec: StsSpec, folder: DataFolder) -> StsTask | None:
    """Read an STS task from a folder; None if the folder has none of its files.

    Raises:
        DiffaugError: some files are missing, one has the wrong number of rows, or one cannot be read.
    """
    incomplete = None
    for layout in (_tsv_files, _original_files):
        files = layout(spec, folder)
        absent = [name for name, paths in files.items() if None in paths.values()]
        if not absent:
            return StsTask(spec.name, {sub: _read(spec, sub, files[sub], folder) for sub in spec.subtasks})
        if len(absent) < len(files):
            missing = [str(name) for sub in absent for name, path in files[sub].items() if path is None]
            found = next(path for paths in files.values() for path in paths.values() if path is not None)
            incomplete = (
                f"{spec.name} is incomplete: {found.parent} has some of its files, but not {', '.join(missing)}"
            )
    if incomplete is not None:
        raise DiffaugError(f"{incomplete}; add them, or do not evaluate {spec.name}")
    return None


_Files = dict[str, dict[str, Path | None]]
"""For each subtask, the paths of its files by file name; None for a missing file."""


def _tsv_files(spec: StsSpec, folder: DataFolder) -> _Files:
    return {sub: {name: folder.find(name)} for sub in spec.subtasks for name in [f"{spec.tsv}.{sub}.tsv"]}


def _original_files(spec: StsSpec, folder: DataFolder) -> _Files:
    if spec.original is not None:
        return {sub: {spec.original: folder.find(spec.original)} for sub in spec.subtasks}
    files: _Files = {}
    for sub in spec.subtasks:
        files[sub] = {}
        for what in ("input", "gs"):
            names = f"STS.{what}.{sub}.txt", f"STS20{spec.name[3:]}.{what}.{sub}.txt"
            paths = (folder.find(name, spec.folders) for name in names)
            files[sub][f"{spec.folders[0]}/{names[0]}"] = next((path for path in paths if path is not None), None)
    return files


def _read(spec: StsSpec, sub: str, files: dict[str, Path | None], folder: DataFolder) -> ScoredPairs:
    paths = [path for path in files.values() if path is not None]
    if len(paths) == 2:
        rows = _year(paths[0], paths[1], folder)
    elif paths[0].suffix == ".tsv":
        rows = _columns(paths[0], folder, score=0, first=1, second=2, width=3)
    elif paths[0].suffix == ".csv":
        score, first, second = (STSB_COLUMNS.index(role) for role in ("score", "sentence1", "sentence2"))
        rows = _columns(paths[0], folder, score=score, first=first, second=second)
    else:
        rows = _columns(paths[0], folder, score=3, first=1, second=2, header=True)
    part = spec.name if len(spec.subtasks) == 1 else f"{spec.name} {sub}"
    check_rows(str(paths[0]), len(rows), spec.subtasks[sub], part)
    return rows


def _columns(
    path: Path,
    folder: DataFolder,
    *,
    score: int,
    first: int,
    second: int,
    width: int | None = None,
    header: bool = False,
) -> ScoredPairs:
    """Read pairs from tab-separated columns; ``width`` is the exact number of columns, if it is fixed."""
    pairs = ScoredPairs([], [], [])
    needed = max(score, first, second) + 1
    for number, line in enumerate(folder.lines(path), start=1):
        if header and number == 1:
            continue
        cells = line.split("\t")
        if len(cells) < needed or (width is not None and len(cells) != width):
            raise DiffaugError(
                f"{path}, line {number}: expected {width or needed} columns, found {len(cells)}; download it again"
            )
        _add(pairs, cells[first], cells[second], cells[score], path, number)
    return pairs


def _year(sentences: Path, gold: Path, folder: DataFolder) -> ScoredPairs:
    """Read a subtask of a SemEval year: one file with sentences, one with scores. Pairs without a score are skipped."""
    inputs, scores = folder.lines(sentences), folder.lines(gold)
    if len(inputs) != len(scores):
        raise DiffaugError(
            f"{gold} has {len(scores):,} lines and {sentences.name} {len(inputs):,}; download both again"
        )
    pairs = ScoredPairs([], [], [])
    for number, (line, score) in enumerate(zip(inputs, scores, strict=True), start=1):
        if not score.strip():
            continue
        cells = line.split("\t")
        if len(cells) < 2:
            raise DiffaugError(f"{sentences}, line {number}: no tab between two sentences; download the file again")
        _add(pairs, cells[0], cells[1], score, gold, number)
    return pairs


def _add(pairs: ScoredPairs, first: str, second: str, score: str, path: Path | str, number: int) -> None:
    try:
        value = float(score)
    except ValueError:
        raise DiffaugError(
            f"{path}, line {number}: the score {score!r:.40} is not a number; download the file again"
        ) from None
    pairs.first.append(one_spaced(first))
    pairs.second.append(one_spaced(second))
    pairs.scores.append(value)


def load_sts_from_hub(spec: StsSpec) -> StsTask:
    """Read an STS task from its data set on the hub, which has no subtasks.

    Raises:
        DiffaugError: there is none, it cannot be downloaded, or it has the wrong number of rows.
    """
    if spec.hub is None:
        raise DiffaugError(f"the hub has no data set with the {spec.rows:,} pairs of {spec.name}")
    name, revision, split = spec.hub
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise DiffaugError(f"{name}: reading from the hub needs datasets: pip install 'diffaug[hub]'") from error
    try:
        rows = datasets.load_dataset(name, revision=revision, split=split)
    except Exception as error:  # errors of datasets, of the HTTP client and of the system
        reason = " ".join(str(error).split())[:300]
        raise DiffaugError(f"{name} could not be loaded from the hub: {reason}") from error
    pairs = ScoredPairs([], [], [])
    for number, row in enumerate(rows, start=1):
        _add(pairs, row["sentence1"], row["sentence2"], str(row["score"]), name, number)
    check_rows(f"{name} ({split})", len(pairs), spec.rows, spec.name)
    return StsTask(spec.name, {"all": pairs} if len(spec.subtasks) > 1 else {split: pairs})


def why_missing(spec: StsSpec, from_hub: bool) -> str:
    """Why a task was not evaluated: which files were not found."""
    if from_hub:
        return (
            f"the hub has no data set with its {spec.rows:,} test pairs (mteb/sickr-sts also contains train and trial)"
        )
    first = next(iter(spec.subtasks))
    original = spec.original or f"{spec.folders[0]}/STS.input.{first}.txt"
    return f"found neither {spec.tsv}.{first}.tsv nor {original}"
