"""Runs cells: train, measure, score, write the result. Imported by worker processes, since it imports torch."""

from __future__ import annotations

import gc
import json
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffaug.config import Recipe, ViewSettings, load_recipe, read_settings, recipe_from_dict
from diffaug.config.registry import load_plugins
from diffaug.data.corpus import Corpus
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.experiments.data import StsTasks
from diffaug.experiments.executor import Orders, Outcome
from diffaug.experiments.grid import FAILURE, SHARED, SIMILARITIES, write_json, write_result
from diffaug.experiments.inputs import TASKS
from diffaug.experiments.results import DEV, Cell, Result
from diffaug.experiments.spec import DROPOUT, TIME
from diffaug.files import atomic_file
from diffaug.inference.runner import default_device
from diffaug.losses.metrics import divergence
from diffaug.methods import method_class
from diffaug.models.backbone import load_backbone
from diffaug.models.io.fetch import model_source
from diffaug.provenance import RunProvenance, device_name, versions
from diffaug.training.loop import TrainingInterrupted
from diffaug.training.run import train
from diffaug.training.run_cache import RunCache

Measure = Callable[[Path], None]
"""Measures something in the folder of a finished run."""

# Time and memory of earlier, interrupted attempts at a cell.
_SPENT = "spent.json"
_GIB = 2**30
_DROPOUT_DELTA = "dropout_delta"
_DROPOUT_SENTENCES = 256


class Worker:
    """Runs one cell after the other and keeps what it has loaded.

    Args:
        orders: for all workers of the grid.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        load_plugins(orders.plugins)
        self._cache = None if orders.alone else RunCache(orders.grid / SHARED)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, min(torch.get_num_threads(), cores // orders.jobs)))

    @cached_property
    def _tasks(self) -> StsTasks:
        return self._orders.tasks.load()

    @cached_property
    def _measures(self) -> list[Measure]:
        # Time and memory are measured in every run.
        return [find_measure(name) for name in self._orders.measure if name != TIME]

    def run(self, cell: Cell) -> tuple[Outcome, bool]:
        """Run a cell; returns the outcome, and whether this process can run another."""
        orders, reusable = self._orders, not self._orders.alone
        folder = orders.grid / "cells" / cell.name
        try:
            result = run_cell(
                cell,
                folder,
                self._tasks,
                self._cache,
                measures=self._measures,
                keep_model=orders.keep_models,
                force=orders.force,
            )
            return Outcome(cell, result), reusable
        except TrainingInterrupted:
            return Outcome(cell), False
        except DiffaugError as error:
            return Outcome(cell, failure=_failure(error)), reusable
        except Exception as error:
            # Memory may be short from now on, or CUDA in an error state: a new process takes over.
            return Outcome(cell, failure=_failure(error)), False
        finally:
            gc.collect()
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # other workers may share the GPU


def run_cell(
    cell: Cell,
    folder: Path,
    tasks: StsTasks,
    cache: RunCache | None = None,
    *,
    measures: Sequence[Measure] = (),
    keep_model: bool = True,
    force: bool = False,
) -> Result:
    """Train the model of a cell, or continue an earlier attempt, and score it.

    Args:
        cell: what to run.
        folder: of its run.
        tasks: what to score it on.
        cache: what earlier cells of this process have loaded.
        measures: called with the folder after training; they may be called again if scoring is interrupted.
        keep_model: keep the model after it is scored.
        force: continue an earlier attempt even if its inputs have changed.

    Returns:
        The content of `result.json`, which is written last.

    Raises:
        TrainingInterrupted: the process was asked to stop; the state of the run is saved.
        DiffaugError: anything the user can correct.
    """
    (folder / FAILURE).unlink(missing_ok=True)
    if not (folder / "summary.json").exists():
        with _measured(folder):
            train(load_recipe(cell.recipe, cell.changes), folder, resume=True, force=force, quiet=True, cache=cache)
    summary = _read(folder / "summary.json")
    if "dev" not in summary["scores"]:
        raise DiffaugError(f"{cell.name} has no dev pairs, which choose the setting of its row; set data.dev")
    for measure in measures:
        measure(folder)
    scores, similarities = tasks.score(Embedder.from_pretrained(folder / "best"))
    if (provenance := RunProvenance.load(folder)) is not None:  # an older version has trained it otherwise
        replace(provenance, data={**provenance.data, TASKS: tasks.files}).save(folder)
    with atomic_file(folder / SIMILARITIES) as temporary:
        np.savez_compressed(temporary, **similarities)  # type: ignore[arg-type]
    # A process that was killed right after training has not written this file, and its memory is unknown.
    spent = _read(folder / _SPENT) if (folder / _SPENT).exists() else {"seconds": summary["seconds"], "gib": 0.0}
    result = Result(
        scores={DEV: summary["scores"]["dev"], **scores},
        seconds=spent["seconds"],
        gib=spent["gib"],
        steps=_steps(folder / "metrics.jsonl"),
        best_at=summary["best_at"],
        stage1_end=summary["stage1_end"],
        machine=_machine(),
    )
    write_result(folder, result)
    if not keep_model:
        # Renamed first: a partly removed model would still look like one.
        shutil.rmtree((folder / "best").rename(folder / ".best"))
    return result


def find_measure(name: str) -> Measure:
    """The function of a name under `measure` in a specification.

    Raises:
        DiffaugError: there is no such function.
    """
    if name == DROPOUT:
        return record_dropout_divergence
    module, _, function = name.partition(":")
    try:
        found: Measure = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise DiffaugError(f"the function of measure {name!r} cannot be imported: {error}") from error
    return found


def record_dropout_divergence(run: Path) -> None:
    """Add the divergence of dropout alone to `metrics.jsonl` of a DiffAug run, unless it is there.

    It is measured on the language model before training, which stage 1 does not change.
    """
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text("utf-8").splitlines() if metrics.exists() else []
    if any(_DROPOUT_DELTA in json.loads(line) for line in lines):
        return
    recipe = recipe_from_dict(read_settings(run / "recipe.yaml"), str(run / "recipe.yaml"))
    found = json.dumps({"stage": 1, "step": 0, _DROPOUT_DELTA: dropout_divergence(recipe)})
    with atomic_file(metrics) as temporary:
        # First, since it belongs to step 0.
        temporary.write_text("".join(f"{line}\n" for line in (found, *lines)), "utf-8")


def dropout_divergence(recipe: Recipe) -> float:
    """The mean distance between the vectors of a sentence under two dropout masks.

    Args:
        recipe: of a DiffAug run: its backbone with its template but without prefixes, and the sentences that delta is
            measured on.
    """
    # PromptBERT is the encoder of DiffAug without prefixes.
    plain = replace(recipe, method="promptbert", views=ViewSettings())
    source = model_source(recipe.model.backbone)
    method = method_class(plain.method).build(plain, *load_backbone(source)).to(default_device())
    sentences = [first for first, _ in Corpus(recipe.data, method.collator).positives(_DROPOUT_SENTENCES)]
    collator = Embedder(method.encoder, method.collator.tokenizer, device=default_device()).collator
    rows = collator.rows(collator.ids(sentences)[0]).to(default_device())
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    method.train()
    with torch.no_grad(), torch.random.fork_rng(cuda):
        torch.manual_seed(recipe.seed)
        first, second = (method.encoder.represent(rows) for _ in range(2))
        return float(divergence(first.float(), second.float()))


@contextmanager
def _measured(folder: Path) -> Iterator[None]:
    """Add time and memory of the block to those of earlier attempts, even if it raises."""
    if torch.cuda.is_available():
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats()
    start = time.monotonic()
    try:
        yield
    finally:
        # Not before the run has its first file: other files would make the folder look occupied.
        if (folder / "recipe.yaml").exists():
            before = _read(folder / _SPENT) if (folder / _SPENT).exists() else {"seconds": 0.0, "gib": 0.0}
            seconds = before["seconds"] + time.monotonic() - start
            write_json(folder / _SPENT, {"seconds": round(seconds, 2), "gib": max(before["gib"], _peak_gib())})


def _peak_gib() -> float:
    """Peak memory: of the GPU since `_measured` began, or of this process."""
    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / _GIB, 3)
    try:
        import resource
    except ImportError:  # not a Unix system
        return 0.0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most * (1 if sys.platform == "darwin" else 1024) / _GIB, 3)


def _steps(metrics: Path) -> dict[str, int]:
    """The number of steps of each stage."""
    steps: dict[str, int] = {}
    try:
        for line in metrics.read_text("utf-8").splitlines():
            entry = json.loads(line)
            if entry["stage"]:  # a model that is not trained is scored at stage 0
                steps[str(entry["stage"])] = max(entry["step"], steps.get(str(entry["stage"]), 0))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DiffaugError(f"{metrics} is damaged ({error}); remove the cell's folder to run it again") from error
    return steps


def _machine() -> dict[str, Any]:
    return {"device": device_name(torch.device(default_device())), "python": platform.python_version(), **versions()}


def _failure(error: Exception) -> str:
    """A sentence, then the traceback."""
    kind = "" if isinstance(error, DiffaugError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}\n\n{''.join(traceback.format_exception(error))}"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DiffaugError(
            f"{path} is missing or damaged ({error}); remove the cell's folder to run it again"
        ) from error
