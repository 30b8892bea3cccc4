"""`train`: from a recipe to a run folder.

A run folder holds `recipe.yaml` (all settings), `provenance.json` (data, models and versions), `data.json` (revisions
of hub data sets, and what dev and test share with the training data), `metrics.jsonl`, `checkpoints/` (of an unfinished
run), `best/` (the model) and, when the run has finished, `summary.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from diffaug.config import Recipe, load_recipe, recipe_from_dict
from diffaug.config.registry import load_plugins
from diffaug.data.corpus import Corpus
from diffaug.data.table import InMemoryRows, Source
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, write_text
from diffaug.hub.card import CARD, model_card
from diffaug.inference.runner import default_device
from diffaug.methods import method_class
from diffaug.models.config import Provenance
from diffaug.models.io.fetch import backbone_fingerprints, model_source
from diffaug.models.io.saved import is_saved_model, save_model
from diffaug.models.io.start import load_start
from diffaug.provenance import RunProvenance, device_name
from diffaug.training.callbacks import Callback, FirstStageCache
from diffaug.training.checkpoint import last_checkpoint
from diffaug.training.context import TrainingContext
from diffaug.training.inputs import model_fingerprints, resumed_provenance
from diffaug.training.loop import Loop, stage_samplers
from diffaug.training.precision import Precision
from diffaug.training.preflight import claimed
from diffaug.training.run_cache import RunCache
from diffaug.training.scoring import Scorer, final_scores
from diffaug.training.signals import be_patient, stop_on_signals
from diffaug.training.trackers import check_trackers, tracked
from diffaug.training.tracking import Tracker

# Pairs on which alignment, uniformity, delta and kappa are measured.
_PROBE_PAIRS = 256


@dataclass(frozen=True)
class TrainResult:
    """A finished run.

    Attributes:
        model: the folder of the best model.
        scores: its scores: dev and test where there are such data, alignment and uniformity.
        before: dev and test scores of the untrained backbone, with mean pooling unless its folder says otherwise;
            empty if nothing was trained.
        stage1_end: how stage 1 ended.
        seconds: the duration of this process.
    """

    model: Path
    scores: dict[str, float]
    before: dict[str, float]
    stage1_end: str | None
    seconds: float


def train(
    recipe: Recipe | Mapping[str, Any] | str,
    out: str | os.PathLike[str],
    *,
    nli: Source | None = None,
    unlabelled: Source | None = None,
    dev: Source | None = None,
    test: Source | None = None,
    resume: bool = False,
    force: bool = False,
    quiet: bool = False,
    cache: RunCache | None = None,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Train a model.

    Args:
        recipe: a `Recipe`, its values as a mapping, or the name or path of one.
        out: the run's folder, which must not exist yet.
        nli: data to use instead of the recipe's: a file, or the rows themselves, also as a `datasets.Dataset`. Of rows
            the recipe records only the number; to resume, pass them again.
        unlabelled: likewise.
        dev: likewise.
        test: likewise.
        resume: continue the unfinished run in ``out``, or start it if there is none.
        force: resume even if data, backbone or tokenizer have changed; `provenance.json` records it.
        quiet: print nothing.
        cache: shared by several runs, which then load data and backbones once.
        callbacks: called at the events of the run; see `diffaug.training.callbacks`.

    Raises:
        DiffaugError: anything the user can fix. What was saved before stays.
    """
    start = time.monotonic()
    if isinstance(recipe, str):
        recipe = load_recipe(recipe)
    elif isinstance(recipe, Recipe):
        load_plugins(recipe.plugins)
    else:
        load_plugins(recipe.get("plugins"))
        recipe = recipe_from_dict(recipe)
    recipe, given = with_data(recipe, {"nli": nli, "unlabelled": unlabelled, "dev": dev, "test": test})
    check_trackers(recipe.loop.trackers)
    folder = Path(out)
    accelerator = Accelerator(
        # Without this, torchrun's processes do not connect on machines without a GPU.
        cpu=default_device() == "cpu",
        mixed_precision="no",  # see diffaug.training.precision
        log_with=recipe.loop.trackers or None,
        project_dir=str(folder),
    )
    if accelerator.num_processes > 1:
        be_patient()  # the launcher may forward a signal that has reached them already
    with claimed(folder, recipe, resume) if accelerator.is_main_process else nullcontext():
        return _train(recipe, given, folder, accelerator, start, resume, force, quiet, cache, callbacks)


def _train(
    recipe: Recipe,
    given: Mapping[str, InMemoryRows],
    folder: Path,
    accelerator: Accelerator,
    start: float,
    resume: bool,
    force: bool,
    quiet: bool,
    cache: RunCache | None,
    callbacks: Sequence[Callback],
) -> TrainResult:
    """`train`, after the folder has been locked; ``start`` is the start time."""
    precision = Precision(recipe.loop.precision, accelerator.device)
    tracker = Tracker(folder / "metrics.jsonl", accelerator, quiet)

    source = model_source(recipe.model.backbone)
    model = load_start(source) if cache is None else cache.start(source)
    tokenizer = model.tokenizer
    torch.manual_seed(recipe.seed)  # after loading, which may draw random numbers
    method = method_class(recipe.method).build(recipe, *model)
    method.to(accelerator.device)
    data_file = folder / "data.json"
    # A resumed run reads the revisions of hub data sets that it has started with.
    revisions = json.loads(data_file.read_text("utf-8"))["hub"] if resume and data_file.is_file() else {}
    corpus = Corpus(recipe.data, method.collator, given, None if cache is None else cache.data, revisions)
    stages = method.stages(corpus)
    for note in method.notes:
        tracker.say(note)
    for stage in stages:  # fail now, not after stage 1, if there are too few examples for stage 2
        stage_samplers(recipe, stage, accelerator)
    embedder = Embedder(method.encoder, tokenizer, device=accelerator.device)
    dev_pairs, test_pairs = corpus.dev(), corpus.test()
    scorer = Scorer(method, embedder, dev_pairs, corpus.positives(_PROBE_PAIRS), precision)

    def save_best(weights: dict[str, Tensor], scores: dict[str, float]) -> None:
        provenance = Provenance(recipe.name, recipe.to_dict(), scores)
        save_model(folder / "best", method.encoder, tokenizer, provenance, weights=weights, overwrite=True)

    fingerprints = backbone_fingerprints if cache is None else cache.fingerprints
    inputs = RunProvenance.now(device_name(accelerator.device), corpus.files, model_fingerprints(recipe, fingerprints))
    checkpoint, damaged = last_checkpoint(folder / "checkpoints") if resume else (None, [])
    for line in damaged:
        tracker.say(f"{line}; the checkpoint before it is used")
    if checkpoint is not None:
        inputs = resumed_provenance(folder, inputs, force=force, say=tracker.say)
        tracker.say(f"resuming at stage {checkpoint.progress.stage}, step {checkpoint.progress.step}")
        if checkpoint.progress.best is not None and not is_saved_model(folder / "best"):
            raise DiffaugError(
                f"{folder / 'best'} is missing or damaged, and holds the best model so far; copy it back, or remove "
                f"{folder / 'checkpoints'} to train from the start"
            )
    # The first file of the run is written only after model and data have been loaded.
    if accelerator.is_main_process:
        with atomic_file(folder / "recipe.yaml") as temporary:
            temporary.write_text(recipe.to_yaml(), "utf-8")
        inputs.save(folder)
        leakage = corpus.leakage()
        for name, shared in leakage.items():
            if shared:
                tracker.say(f"leakage: of data.{name}, the training data contains {shared}")
        known = {"hub": corpus.revisions, "leakage": {name: shared.to_dict() for name, shared in leakage.items()}}
        write_text(data_file, json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    accelerator.wait_for_everyone()
    method.prepare(folder / "checkpoints", accelerator.is_main_process)
    cached = None
    if cache is not None and accelerator.num_processes == 1:  # several would have to find the same file at once
        cached = cache.first_stage(recipe, method, stages, source)
    callbacks = [*callbacks, *([] if cached is None else [FirstStageCache(cached)])]
    context = TrainingContext(recipe, method, stages, scorer, tracker, accelerator, precision, folder)
    with tracked(accelerator, recipe, folder), stop_on_signals() as stop:
        Loop(context, save_best, stop, callbacks).run(checkpoint)
    accelerator.wait_for_everyone()

    best = Embedder.from_pretrained(folder / "best", device=accelerator.device)
    accelerator.wait_for_everyone()  # before the main process replaces it below
    scores, before = dict(best.provenance.scores), {}
    scored = {name: pairs for name, pairs in (("dev", dev_pairs), ("test", test_pairs)) if pairs is not None}
    # In 32 bits, as a user of the model will get it: what training has computed so is not computed again.
    scores |= final_scores(best, {name: p for name, p in scored.items() if precision.half or name not in scores})
    for name in scored.keys() - scores:
        tracker.say(f"the {name} score is undefined: the model gives all pairs the same similarity")
    if stages and scored:  # without training there is no before and after
        before = (cache or RunCache()).untrained_scores(source, scored, accelerator.device)
    result = TrainResult(folder / "best", scores, before, context.progress.stage1_end, time.monotonic() - start)
    classes = corpus.classes()
    if classes is not None:
        best.fit_classifier(classes.sentences, classes.classes)
    if accelerator.is_main_process:
        if scores != best.provenance.scores or classes is not None:
            best.provenance.scores = scores
            best.save(folder / "best", overwrite=True)
        with atomic_file(folder / "best" / CARD) as temporary:
            temporary.write_text(model_card(best.encoder, best.provenance), "utf-8")
        _write_summary(folder, result, context.progress.best)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    accelerator.wait_for_everyone()
    return result


def with_data(recipe: Recipe, sources: Mapping[str, Source | None]) -> tuple[Recipe, dict[str, InMemoryRows]]:
    """The recipe with the data that was passed to `train`; rows are returned apart, since a file cannot hold them."""
    given: dict[str, InMemoryRows] = {}
    named: dict[str, str] = {}
    for name, source in sources.items():
        if isinstance(source, (str, os.PathLike)):
            named[name] = os.fspath(source)
        elif source is not None:
            given[name] = (
                source
                if isinstance(source, InMemoryRows)
                else InMemoryRows.collect(f"the data passed as {name}", source)
            )
            named[name] = str(given[name])
    return replace(recipe, data=replace(recipe.data, **named)), given  # type: ignore[arg-type]


def _write_summary(folder: Path, result: TrainResult, best: dict[str, Any] | None) -> None:
    summary = {
        "scores": result.scores,
        "before": result.before,
        "best_at": None if best is None else {"stage": best["stage"], "step": best["step"]},
        "stage1_end": result.stage1_end,
        "seconds": round(result.seconds, 1),
    }
    with atomic_file(folder / "summary.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
