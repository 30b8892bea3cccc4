"""`tune`: search over the settings of a recipe on the user's own data.

The folder holds `request.json` and `provenance.json` (what was asked for), `study.log` (Optuna's journal of all
trials), `default/` (the run of the recipe as it is), `trials/` (one run per trial; the model of the best one only) and,
in the end, `tune.json` and `best.yaml`.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from diffaug.adaptation.folds import split_folds
from diffaug.cluster import Engine, check_engine, connected
from diffaug.config import Recipe, change_recipe, load_recipe, recipe_from_dict
from diffaug.config.registry import load_plugins
from diffaug.data.read import read_scored_pairs
from diffaug.data.records import ScoredPairs
from diffaug.data.table import InMemoryRows, Source, iterate
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.evaluation.statistics import Spearman, bootstrap, compare
from diffaug.experiments.executor import gpu_of
from diffaug.files import exclusive_lock, write_text
from diffaug.inference.runner import default_device
from diffaug.provenance import RunProvenance, device_name
from diffaug.training.inputs import data_checksums, model_fingerprints
from diffaug.training.preflight import differences
from diffaug.training.run import with_data
from diffaug.tuning.on_ray import search_on_ray
from diffaug.tuning.preflight import REQUEST, check_tuning
from diffaug.tuning.result import CONFIDENCE, DEFAULT, TrialResult, TuneResult
from diffaug.tuning.space import Search, Space, as_changes
from diffaug.tuning.study import FAILURE, SAME_AS, SECONDS
from diffaug.tuning.worker import CACHE, SUMMARY, Say, Task, Worker, limit_threads, work

RESULT = "tune.json"
# Fewer pairs in a part order settings by chance.
_FEWEST_PAIRS = 20
_RESAMPLES = 2000
_ENDS = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def tune(
    recipe: Recipe | Mapping[str, Any] | str,
    search: Search,
    out: str | os.PathLike[str],
    *,
    trials: int = 20,
    workers: int | None = None,
    engine: Engine = "local",
    prune: bool = True,
    nli: Source | None = None,
    unlabelled: Source | None = None,
    dev: Source | None = None,
    test: Source | None = None,
    report: Callable[[str], None] | None = None,
) -> TuneResult:
    """Search for the settings of a recipe with the highest dev score.

    The unchanged recipe is trained first, then ``trials`` other settings, which Optuna proposes. The dev pairs are
    divided: one half chooses checkpoints and settings, the other half reports what the choice is worth, beside the
    default settings. With test pairs, all dev pairs choose and the test pairs report. The recipe's seed decides the
    division, what is proposed, and every training run.

    Args:
        recipe: a `Recipe`, its values as a mapping, or the name or path of one. It needs dev pairs.
        search: for each setting its values: `"log:1e-5..1e-4"`, `"1..5"`, `"0.03, 0.05"` or a list.
        out: a folder. The same call continues an interrupted search, and one with more trials a finished one. Several
            processes may work on one folder.
        trials: how many settings to try; fewer if there are fewer combinations.
        workers: trials at the same time, each in a process; each takes one GPU where there are several. None: 1, or
            with the engine ``"ray"`` one per GPU of the cluster, or per core if it has none.
        engine: ``"ray"`` trains on the nodes of a Ray cluster, which must share ``out``.
        prune: end a trial whose score is below the median of the others at the same point of training.
        nli: labelled data to use instead of the recipe's, as `train` takes it.
        unlabelled: likewise, raw sentences.
        dev: likewise, scored pairs that choose.
        test: likewise, scored pairs that report.
        report: called with lines on the progress.

    Raises:
        DiffaugError: anything the user can fix; all trials failed; the folder was started with other inputs; or there
            is no cluster.
    """
    if isinstance(recipe, str):
        recipe = load_recipe(recipe)
    elif isinstance(recipe, Recipe):
        load_plugins(recipe.plugins)
    else:
        load_plugins(recipe.get("plugins"))
        recipe = recipe_from_dict(recipe)
    recipe, given = with_data(recipe, {"nli": nli, "unlabelled": unlabelled, "dev": dev, "test": test})
    folder = Path(out)
    check_engine(engine)
    processes = 1 if workers is None else workers
    space = check_tuning(recipe, search, folder, trials, processes)
    pairs = _divide(recipe, given)
    with ExitStack() as stack:
        if engine == "ray":
            stack.enter_context(connected())  # before anything is written
        _claim(folder, recipe, space, given)
        # The pairs that report are kept from training, which would score every trial on them.
        columns = {name: each for name, each in recipe.data.columns.items() if name not in ("dev", "test")}
        choosing = replace(recipe, data=replace(recipe.data, test=None, columns=columns))
        data = {name: rows for name, rows in given.items() if name != "test"} | {"dev": _rows(pairs.choose)}
        task = Task(folder, choosing, space, trials, prune, data, processes)
        say = report or (lambda line: None)
        if engine == "ray":
            worker, default = search_on_ray(task, workers, say)
        else:
            worker, default = _search_here(task, say, quiet=report is None)
    with exclusive_lock(folder / ".study.lock"):
        result = _result(task, worker, default, pairs)
        write_text(folder / RESULT, json.dumps(result.to_dict(), indent=1, ensure_ascii=False) + "\n")
        write_text(folder / "best.yaml", change_recipe(recipe, result.changes).to_yaml())
        shutil.rmtree(folder / CACHE, ignore_errors=True)
    return result


def _search_here(task: Task, say: Say, quiet: bool) -> tuple[Worker, float]:
    """Run a search on this machine; the study of this process, and the dev score of the default settings."""
    if task.workers > 1:
        limit_threads(task.workers)
    worker = Worker(task, say)
    default = worker.run_default()
    context = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
    others = [context.Process(target=work, args=(task, gpu_of(n), quiet)) for n in range(1, task.workers)]
    try:
        for process in others:
            process.start()
        worker.run_trials()
    finally:
        for process in others:
            if process.is_alive():
                process.terminate()
        for process in others:
            process.join()
    return worker, default


@dataclass(frozen=True)
class _Pairs:
    """The pairs that choose settings, and those that report what the choice is worth, each with its name."""

    choose: ScoredPairs
    report: ScoredPairs
    chooses: str
    reports: str


def _divide(recipe: Recipe, given: Mapping[str, InMemoryRows]) -> _Pairs:
    def read(name: str) -> ScoredPairs:
        source = given.get(name, getattr(recipe.data, name))
        pairs = read_scored_pairs(source, recipe.data.columns.get(name), recipe.data.on_bad)
        pairs.check_they_rank(f"data.{name}")
        return pairs

    dev = read("dev")
    if recipe.data.test is not None:
        test = read("test")
        pairs = _Pairs(dev, test, f"{len(dev):,} dev pairs", f"{len(test):,} test pairs")
    else:
        rest, chosen = split_folds(dev, 2, recipe.seed)
        choose, report = dev.take(chosen.tolist()), dev.take(rest.tolist())
        pairs = _Pairs(choose, report, f"{len(choose):,} dev pairs", f"{len(report):,} held-out dev pairs")
    if min(len(pairs.choose), len(pairs.report)) < _FEWEST_PAIRS:
        raise DiffaugError(
            f"tune would choose by {pairs.chooses} and report on {pairs.reports}; each part needs at least "
            f"{_FEWEST_PAIRS}: add pairs"
        )
    return pairs


def _rows(pairs: ScoredPairs) -> InMemoryRows:
    names = ("sentence1", "sentence2", "score")
    return InMemoryRows("the dev pairs that choose", [dict(zip(names, row, strict=True)) for row in pairs])


def _claim(folder: Path, recipe: Recipe, space: Space, given: Mapping[str, InMemoryRows]) -> None:
    """Note in the folder what is searched; refuse one that was started with other inputs or settings."""
    files = data_checksums(recipe)
    for name, rows in given.items():
        text = json.dumps(list(iterate(rows.rows)), default=str)
        files[name] = {name: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()}
    used = RunProvenance.now(device_name(default_device()), files, model_fingerprints(recipe))
    searched = {key: str(dimension) for key, dimension in space.items()}
    path = folder / REQUEST
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder / ".study.lock"):
        if not path.is_file():
            used.save(folder)
            write_text(path, json.dumps({"recipe": recipe.to_dict(), "search": searched}, indent=1) + "\n")
            return
        before = json.loads(path.read_text("utf-8"))
        changed = (RunProvenance.load(folder) or used).changed(used).inputs
        changed += differences(recipe_from_dict(before["recipe"], str(path)).to_dict(), recipe.to_dict())
        changed += differences(before["search"], searched)
    if changed:
        raise DiffaugError(
            f"{folder} was started with other inputs or settings ({'; '.join(changed[:3])}); restore them, or choose "
            "another folder"
        )


def _result(task: Task, worker: Worker, default: float, pairs: _Pairs) -> TuneResult:
    best, finished = worker.trials.best(), worker.trials.finished()
    if best is None:
        reasons = [trial.user_attrs[FAILURE] for trial in finished if FAILURE in trial.user_attrs]
        raise DiffaugError(f"all {len(finished)} trials failed; the first one: {reasons[0]}")
    default_model = task.default_folder / "best"
    summary = json.loads((task.default_folder / SUMMARY).read_text("utf-8"))
    rows = [TrialResult(DEFAULT, [], default, "complete", summary["seconds"]), *map(_row, finished)]
    baseline = _score(default_model, pairs.report)
    if best.values[0] <= default:
        words = pairs.chooses, pairs.reports
        return TuneResult(rows, DEFAULT, *words, baseline.value(), None, default_model)
    model = task.run_folder(best.number) / "best"
    chosen = _score(model, pairs.report)
    found = compare(
        pairs.reports,
        (chosen.value(), baseline.value()),
        (_resampled(chosen), _resampled(baseline)),
        CONFIDENCE,
    )
    name = _row(best).name
    return TuneResult(rows, name, pairs.chooses, pairs.reports, chosen.value(), found, model)


def _score(model: Path, pairs: ScoredPairs) -> Spearman:
    embedder = Embedder.from_pretrained(model)
    first, second = (embedder.encode(texts, show_progress=False) for texts in (pairs.first, pairs.second))
    return Spearman(np.einsum("ij,ij->i", first, second), pairs.scores)


def _resampled(statistic: Spearman) -> Any:
    return bootstrap(statistic, "tune", _RESAMPLES, 0)


def _row(trial: FrozenTrial) -> TrialResult:
    known = trial.user_attrs
    end = f"same as {known[SAME_AS] + 1}" if SAME_AS in known else _ENDS[trial.state]
    score = None if trial.state == TrialState.FAIL else trial.value
    return TrialResult(
        str(trial.number + 1), as_changes(trial.params), score, end, known.get(SECONDS, 0.0), known.get(FAILURE)
    )
