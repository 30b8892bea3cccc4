"""`evaluate`: read and check the data, encode each sentence once, score, compare."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.config.registry import TASKS
from diffaug.data.columns import ROLES, Columns, Kind
from diffaug.data.public.store import data_folder
from diffaug.data.read import read_scored_pairs, read_triplets
from diffaug.data.table import Source
from diffaug.errors import DiffaugError
from diffaug.evaluation import sts, transfer
from diffaug.evaluation.evaluated_model import EvaluatedModel, Model
from diffaug.evaluation.folder import DataFolder
from diffaug.evaluation.geometry import GeometryTask
from diffaug.evaluation.own_data import PairsTask, RetrievalTask, TripletsTask
from diffaug.evaluation.protocol import GEOMETRY, GROUPS, STS, STS_PROTOCOL, TRANSFER, StsSpec, choose_tasks
from diffaug.evaluation.result import Average, EvaluationResult, EvaluationSettings, ModelScores
from diffaug.evaluation.retrieval_data import KEYS, read_retrieval
from diffaug.evaluation.retrieval_data import ROLES as RETRIEVAL_ROLES
from diffaug.evaluation.statistics import Comparison, average, bootstrap, compare, interval
from diffaug.evaluation.tasks import Task, TaskResult, registered_task
from diffaug.provenance import device_name, record_reads, versions

PathLike = str | os.PathLike[str]
Retrieval = Source | Mapping[str, Any]
HUB = "hub"
# The name, for a comparison, of the backbone that a model was trained from.
BEFORE = "before"
# The column roles of each kind of own data.
_OWN_ROLES = {"pairs": ROLES[Kind.SCORED_PAIRS], "triplets": ROLES[Kind.TRIPLETS], "retrieval": RETRIEVAL_ROLES}
_AVERAGED = {"sts": STS_PROTOCOL, "transfer": "logreg"}


def evaluate(
    model: Model = None,
    data: PathLike | Sequence[PathLike] | None = None,
    tasks: str | Iterable[str] | None = None,
    *,
    pairs: Source | Mapping[str, Source] | None = None,
    triplets: Source | Mapping[str, Source] | None = None,
    retrieval: Retrieval | Mapping[str, Retrieval] | None = None,
    ignore_identical_ids: bool = False,
    columns: Columns | None = None,
    versus: Model = None,
    seed: int = 0,
    resamples: int = 1000,
    confidence: float = 0.95,
    truncate_dim: int | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    show_progress: bool | None = None,
) -> EvaluationResult:
    """Evaluate a model on public tasks, on your own data, or both.

    Examples:
        >>> result = evaluate(triplets=[("a dog runs", "a dog is running", "the market fell")])
        >>> result.scores
        {'triplets': 100.0}

    Args:
        model: a folder saved by diffaug, sentence-transformers or transformers, a hub name, an `Embedder`, or a
            function from a list of sentences to vectors; default: the small encoder included in the package.
        data: one or several folders with the public tasks, in any known layout; ``"hub"`` for the data sets on the
            hub; default: the folder of ``diffaug data get``.
        tasks: groups (``sts``, ``transfer``, ``geometry``) and names (``STS12``, ``MR``, those of plugins ...), as a
            list or separated by commas; default: ``sts``, or none if own data is given.
        pairs: your own scored pairs, evaluated with Spearman and Pearson: a file or any other source of
            `diffaug.data.read.read_scored_pairs`, such as rows or a data set in Python, or a mapping from names to
            sources, such as a `datasets.DatasetDict`.
        triplets: the same for triplets; accuracy: how often the positive is closer than the negative.
        retrieval: the same in the formats of `diffaug.evaluation.retrieval_data`; MRR, nDCG@10 and recall at k.
        ignore_identical_ids: in retrieval, leave out the document with the query's own id, as mteb does for ArguAna and
            other data whose queries are documents of the corpus.
        columns: the columns of your own data, for example ``{"score": "rating"}``; in a file without header a number,
            from 1. Pairs have ``sentence1``, ``sentence2`` and ``score``; triplets ``anchor``, ``positive`` and
            ``negative``; a retrieval table ``query`` and ``document``. Default: recognised by names and values.
        versus: another model, compared on the same rows; ``"before"`` is the backbone that the model was trained from.
        seed: seed of the bootstrap and of cross-validation.
        resamples: number of bootstrap resamples; 0 turns intervals and tests off.
        confidence: confidence of the intervals.
        truncate_dim: evaluate the first so many components of the vectors of ``model``; ``versus`` is not truncated.
        batch_size: sentences per batch; default: as many as fit the device's token budget.
        device: device to run on; default: the GPU if there is one.
        trust_remote_code: run Python code that comes with the model. Off by default.
        show_progress: show a progress bar on standard error; default: only on a terminal and for long work.

    Returns:
        scores with protocols, intervals, and everything needed to repeat them.

    Raises:
        DiffaugError: data is damaged or has the wrong number of rows, there is no data, or a model cannot be loaded.
            A task whose files do not exist is no error: it is listed in ``missing``.
    """
    if not 0 <= seed < 2**32:
        raise DiffaugError(f"seed must be between 0 and {2**32 - 1:,}, got {seed}")
    if resamples < 0:
        raise DiffaugError(f"resamples must not be negative, got {resamples}")
    if not 0 < confidence < 1:
        raise DiffaugError(f"confidence must be between 0 and 1, got {confidence}")
    if versus is not None and resamples == 0:
        raise DiffaugError("comparing two models needs resamples: give a positive number or leave it out")
    with record_reads() as reads:
        own = _own_tasks(
            {"pairs": pairs, "triplets": triplets, "retrieval": retrieval}, columns or {}, ignore_identical_ids
        )
        names = choose_tasks(("sts" if not own else "") if tasks is None else tasks)
        if not names and not own:
            raise DiffaugError("nothing to evaluate: give tasks or your own data")
        own += [registered_task(name) for name in names if name in TASKS]
        names = [name for name in names if name not in TASKS]
        loaded = _Tasks(names, data, own, seed)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "device": device,
        "trust_remote_code": trust_remote_code,
        "show_progress": show_progress,
    }
    settings = EvaluationSettings(seed, resamples, confidence)
    evaluated = EvaluatedModel(model, truncate_dim=truncate_dim, **options)
    other = None if versus is None else EvaluatedModel(evaluated.backbone() if versus == BEFORE else versus, **options)
    result = EvaluationResult(
        **vars(loaded.score(evaluated, settings)),
        missing=loaded.missing,
        warnings=loaded.warnings,
        files=dict(sorted(reads.items())),
        sentences=len(loaded.sentences),
        settings=settings,
        versions=versions(),
        device="" if evaluated.embedder is None else device_name(evaluated.embedder.device),
    )
    if other is not None:
        result.versus = loaded.score(other, settings)
        result.comparisons = _compare(result, result.versus, confidence)
    return result


class _Tasks:
    """The data of an evaluation, read and checked; any number of models can be scored on it."""

    def __init__(
        self, names: Sequence[str], data: PathLike | Sequence[PathLike] | None, own: list[Task], seed: int
    ) -> None:
        self.tasks: list[Task] = []
        self.missing: dict[str, str] = {}
        self.warnings: list[str] = []
        self.geometry: GeometryTask | None = None
        if names:
            self._read_public(names, data, seed, needed=not own)
        self.tasks += own
        for task in own:
            if isinstance(task, RetrievalTask) and task.data.left_out:
                self.warnings.append(
                    f"{task.name}: {task.data.left_out:,} queries without a relevant document were skipped"
                )
        if GEOMETRY in names and self.geometry is None:
            self.geometry = _own_geometry(own)
            if self.geometry is None:
                self.missing[GEOMETRY] = "it needs STS-B, or your own pairs or triplets"
        if not self.tasks and self.geometry is None:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.missing.items())
            raise DiffaugError(f"no data was found for any task. {reasons}")
        everything: list[Task | GeometryTask] = [*self.tasks, *([self.geometry] if self.geometry else [])]
        self.sentences = list(dict.fromkeys(s for task in everything for s in task.sentences()))

    def score(self, model: EvaluatedModel, settings: EvaluationSettings) -> ModelScores:
        """Encode each sentence once, then score each task."""
        embeddings = model.embed(self.sentences)
        results = [_with_interval(task.score(embeddings), settings) for task in self.tasks]
        geometry = None if self.geometry is None else self.geometry.measure(embeddings, model.embedder)
        return ModelScores(model.info, results, _averages(results, settings), geometry)

    def _read_public(
        self, names: Sequence[str], data: PathLike | Sequence[PathLike] | None, seed: int, *, needed: bool
    ) -> None:
        folder, hub = _data_folder(data, needed)
        for spec in STS:
            if spec.name in names:
                self._add(spec.name, _load_sts(spec, folder, hub), sts.why_missing(spec, hub and not folder.roots))
        for task in TRANSFER:
            if task.name in names:
                self._add(task.name, transfer.load_transfer(task, folder, seed), transfer.why_missing(task))
        if GEOMETRY in names:
            for spec in reversed(STS):  # prefer the dev split of STS-B, which comes last: SimCSE uses it
                if spec.tsv == "STSB" and self.geometry is None and (found := _load_sts(spec, folder, hub)):
                    (stsb,) = found.subtasks.values()
                    self.geometry = GeometryTask.from_pairs(spec.name, stsb, 0.0, 5.0)
        self.warnings += folder.warnings

    def _add(self, name: str, task: Task | None, why_not: str) -> None:
        if task is None:
            self.missing[name] = why_not
        else:
            self.tasks.append(task)


def _data_folder(data: PathLike | Sequence[PathLike] | None, needed: bool) -> tuple[DataFolder, bool]:
    """The folders to search, and whether to load missing tasks from the hub."""
    if data is None:
        default = data_folder()
        if not default.is_dir():
            if needed:
                raise DiffaugError(
                    f"there is no evaluation data in {default}; give its folder (data=, --data), or download it with "
                    "diffaug data get senteval"
                )
            return DataFolder([]), False
        return DataFolder([default]), False
    given = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    paths = [Path(path).expanduser() for path in given if path != HUB]
    return DataFolder(paths), HUB in given


def _load_sts(spec: StsSpec, folder: DataFolder, hub: bool) -> sts.StsTask | None:
    task = sts.load_sts(spec, folder)
    return sts.load_sts_from_hub(spec) if task is None and hub and spec.hub is not None else task


def _own_tasks(given: Mapping[str, Any], columns: Columns, ignore_identical_ids: bool) -> list[Task]:
    """The tasks of the user's own data."""
    given = {kind: source for kind, source in given.items() if source is not None}
    if isinstance(given.get("retrieval"), Mapping) and set(KEYS) <= set(given["retrieval"]):
        given["retrieval"] = {"retrieval": given["retrieval"]}
    _check_columns(columns, given)
    taken = {spec.name for spec in (*STS, *TRANSFER)}
    tasks: list[Task] = []
    for kind, sources in given.items():
        own = {role: column for role, column in columns.items() if _is_role(role, kind)} or None
        for name, source in (sources if isinstance(sources, Mapping) else {_own_name(sources, kind): sources}).items():
            unique = f"{kind} {name}" if name in taken else name
            taken.add(unique)
            tasks.append(_own_task(kind, unique, source, own, ignore_identical_ids))
    return tasks


def _own_task(kind: str, name: str, source: Any, columns: Columns | None, ignore_identical_ids: bool) -> Task:
    if kind == "triplets":
        return TripletsTask(name, read_triplets(source, columns))
    if kind == "retrieval":
        return RetrievalTask(name, read_retrieval(source, columns), ignore_identical_ids)
    pairs = read_scored_pairs(source, columns)
    pairs.check_they_rank(source if isinstance(source, (str, os.PathLike)) else "the pairs given")
    return PairsTask(name, pairs)


def _check_columns(columns: Columns, given: Iterable[str]) -> None:
    given = list(given)
    if unknown := [role for role in columns if not any(_is_role(role, kind) for kind in given)]:
        roles = "; ".join(f"{kind} have {', '.join(_OWN_ROLES[kind])}" for kind in given)
        raise DiffaugError(
            f"unknown column role {unknown[0]!r}; " + (roles or "roles are only for your own data, and none is given")
        )


def _is_role(name: str, kind: str) -> bool:
    roles = _OWN_ROLES[kind]
    return name.casefold() in {*roles, *(known for names in roles.values() for known in names)}


def _own_name(source: object, kind: str) -> str:
    """A file's name without suffixes; for rows passed in Python, their kind."""
    if not isinstance(source, (str, os.PathLike)):
        return kind
    return Path(source).name.split(".")[0] or kind


def _own_geometry(own: Sequence[Task]) -> GeometryTask | None:
    for task in own:
        if isinstance(task, PairsTask):
            scores = task.pairs.scores
            return GeometryTask.from_pairs(task.name, task.pairs, min(scores), max(scores))
        if isinstance(task, TripletsTask):
            return GeometryTask.from_triplets(task.name, task.triplets)
    return None


def _with_interval(result: TaskResult, settings: EvaluationSettings) -> TaskResult:
    if settings.resamples and result.statistic is not None:
        result.resampled = bootstrap(result.statistic, result.name, settings.resamples, settings.seed)
        result.low, result.high = interval(result.resampled, settings.confidence)
    return result


def _averages(results: Sequence[TaskResult], settings: EvaluationSettings) -> list[Average]:
    found = []
    for group, protocol in _AVERAGED.items():
        counted = [result for result in results if result.name in GROUPS[group]]
        if len(counted) < 2:
            continue
        low = high = float("nan")
        if settings.resamples:
            low, high = interval(average([result.resampled for result in counted]), settings.confidence)
        tasks = tuple(result.name for result in counted)
        missing = tuple(name for name in GROUPS[group] if name not in tasks)
        score = float(np.mean([result.score for result in counted]))
        found.append(Average(group, protocol, score, low, high, tasks, missing))
    return found


def _compare(first: ModelScores, second: ModelScores, confidence: float) -> list[Comparison]:
    """One paired test per task and per average."""
    found = []
    for a, b in zip(first.tasks, second.tasks, strict=True):
        if a.statistic is not None:
            found.append(compare(a.name, (a.score, b.score), (a.resampled, b.resampled), confidence))
    for mine, theirs in zip(first.averages, second.averages, strict=True):
        resampled = [
            average([task.resampled for task in scores.tasks if task.name in mine.tasks]) for scores in (first, second)
        ]
        name = f"{mine.group} average of {len(mine.tasks)}"
        found.append(compare(name, (mine.score, theirs.score), (resampled[0], resampled[1]), confidence))
    return found
