"""Adapt a model: try candidates by cross-validation on the user's labels, and keep one only if it is better."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from diffaug.adaptation.candidates import (
    SPREADING,
    UNTOUCHED,
    Candidate,
    candidates,
    cheap,
    find_names,
    learns,
    trained,
)
from diffaug.adaptation.folds import Indices
from diffaug.adaptation.forecasts import Forecast, forecast_candidate
from diffaug.adaptation.inputs import Inputs, most_text, read_inputs
from diffaug.adaptation.measure import Outcomes, measure_name, statistic
from diffaug.adaptation.result import CONFIDENCE, AdaptResult, Row, choose, compare_all, verdict
from diffaug.adaptation.trials import Fit, Trials, fit_here, fit_on_ray, text_helps
from diffaug.cluster import Engine, check_engine
from diffaug.data.columns import Columns
from diffaug.data.problems import OnBad
from diffaug.data.read import LabelNames
from diffaug.data.records import Classes, Labelled, LabelledPairs, ScoredPairs, summary
from diffaug.data.table import Source
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, check_output, exclusive_lock
from diffaug.provenance import PROVENANCE, RunProvenance, device_name

MODEL, RESULT = "model", "adapt.json"
_WORK, _REQUEST, _LOCK = "work", "request.json", ".lock"
# Each fold is a training of its own, and the score of a few held-out rows may be undefined.
_MOST_FOLDS, _FEWEST_HELD_OUT = 10, 5

Measured = dict[str, tuple[list[Outcomes], float]]
"""By candidate, what it does in each fold, and the seconds this takes."""


def adapt(
    model: str | os.PathLike[str],
    labels: Source,
    out: str | os.PathLike[str],
    *,
    text: Source | None = None,
    dev: Source | None = None,
    columns: Columns | None = None,
    label_names: LabelNames | None = None,
    text_column: str | int | None = None,
    on_bad: OnBad = "error",
    folds: int = 3,
    more: int = 300,
    confidence: float = CONFIDENCE,
    only: Sequence[str] | None = None,
    seed: int = 42,
    engine: Engine = "local",
    report: Callable[[str], None] = lambda line: None,
) -> AdaptResult:
    """Adapt a finished embedding model to labels of any kind, if that is shown to help.

    Each candidate learns from the labels without a part and is scored on that part, in turn for ``folds`` parts. The
    result is the candidate with the highest score among those that a paired bootstrap over the held-out rows shows to
    be better than the untouched model; it then learns from all labels. If there is none, the model stays as it is.

    Args:
        model: a folder of diffaug, sentence-transformers or transformers, or a hub name.
        labels: triplets, pairs (same / different, scored, or all matching), or sentences with a class.
        out: a folder for the result. An interrupted call is continued by the same call.
        text: unlabelled sentences of the same domain, which help with classes.
        dev: labels of the same kind that decide instead of cross-validation.
        columns: names of the columns, where they are not the usual ones.
        label_names: what labels of pairs mean, where they are not the usual ones.
        text_column: the column of ``text`` with the sentences, where it is not called sentence or text.
        on_bad: what to do with rows that cannot be used.
        folds: number of parts, from 2 to 10; each must have at least five labels.
        more: the number of additional labels of the forecast.
        confidence: how sure a gain must be, from 0.5 to 1; 0.5 takes whatever scores highest.
        only: names of the candidates to try, in any case, besides the untouched model and label spreading; None: the
            default.
        seed: of folds and training.
        engine: ``"ray"`` fits the candidates to the folds on the nodes of a Ray cluster, which must share ``out``.
        report: called with lines on the progress.

    Raises:
        DiffaugError: anything the user can fix; nothing that was there before is changed.
    """
    begin = time.monotonic()
    check_engine(engine)
    if not 2 <= folds <= _MOST_FOLDS:
        raise DiffaugError(f"the number of folds must be from 2 to {_MOST_FOLDS}, got {folds}")
    if not 0.5 <= confidence < 1:
        raise DiffaugError(f"confidence must be at least 0.5 and less than 1, got {confidence}")
    folder, name = Path(out), os.fspath(model)
    _check_folder(folder)
    start = Embedder.from_pretrained(name)
    on_gpu = start.device.type != "cpu"
    inputs = read_inputs(
        labels,
        text,
        dev,
        columns,
        most_text(on_gpu),
        seed,
        report,
        label_names=label_names,
        text_column=text_column,
        on_bad=on_bad,
    )
    most = len(inputs.labelled) // _FEWEST_HELD_OUT
    if inputs.held is None and folds > most:
        raise DiffaugError(
            f"{len(inputs.labelled)} labels are too few for {folds} folds of at least {_FEWEST_HELD_OUT} labels each; "
            f"use at most {most} folds"
        )
    known = candidates(inputs, start.encoder, on_gpu)
    only = None if only is None else find_names(known, only)
    tried = cheap(known, only)
    splits = inputs.splits(folds, seed)
    _check_held_out([inputs.parts(rows)[1] for rows in splits])
    used = RunProvenance.now(device_name(start.device), inputs.files, {"model": start.fingerprint()})
    request = {"folds": folds, "seed": seed, "only": only, "data": inputs.digest()}
    with _claimed(folder, request, used):
        trials = Trials(folder / _WORK, name, start, inputs.text, seed)
        held = f"{len(inputs.held):,} dev labels" if inputs.held is not None else f"{len(splits)} held-out folds"
        report(f"{summary(inputs.labelled)}; {measure_name(inputs.labelled)} on {held}")
        measured = _measure(trials, inputs, splits, tried, engine, report)
        helps = text_helps(trials, inputs, splits, known)
        if inputs.text and not helps:
            reason = "it helps with classes only" if helps is None else f"{SPREADING} is not better than {UNTOUCHED!r}"
            report(f"unlabelled text is not used to train: {reason}")
        tried += trained(known, only, helps, on_gpu)
        measured |= _measure(trials, inputs, splits, tried[len(measured) :], engine, report)
        rows = compare_all(inputs.labelled, measured)
        chosen = choose(rows, confidence)
        candidate = next(each for each in tried if each.name == chosen.name)
        predicted = _forecast(trials, inputs, splits, tried, chosen, rows, more)
        target = None
        if candidate.changes_model or isinstance(inputs.labelled, Classes):
            report(f"{candidate.name}: learning from all labels")
            if start.classifier is not None and not isinstance(inputs.labelled, Classes):
                report("the model's classifier is left out: it does not fit the new vectors, and these are no classes")
            target = folder / MODEL
            trials.finished(candidate, inputs.labelled).save(target, overwrite=True)
        result = AdaptResult(
            labels=summary(inputs.labelled),
            measure=measure_name(inputs.labelled),
            held_out=held,
            rows=rows,
            chosen=chosen.name,
            verdict=verdict(chosen, rows, inputs.labelled, confidence),
            model=target,
            forecast=predicted,
            seconds=time.monotonic() - begin,
        )
        with atomic_file(folder / RESULT) as path:
            path.write_text(json.dumps({**result.to_dict(), "provenance": used.to_dict()}, indent=1) + "\n", "utf-8")
        shutil.rmtree(folder / _WORK, ignore_errors=True)
    return result


def _check_held_out(parts: Sequence[Labelled]) -> None:
    """Raise if the score of a held-out part is undefined: the mean over the parts would be undefined, too."""
    for part in parts:
        if isinstance(part, ScoredPairs):
            values: set[float] = set(part.scores)
        elif isinstance(part, LabelledPairs):
            values = set(part.binary())
        else:
            continue
        if len(values) < 2:
            alike = f"the score {values.pop():g}" if isinstance(part, ScoredPairs) else "one kind of label"
            raise DiffaugError(
                f"one of the {len(parts)} held-out parts has only pairs with {alike}, which cannot be ranked; use "
                "fewer folds, or add pairs of the rarer kinds"
            )


def _measure(
    trials: Trials,
    inputs: Inputs,
    splits: Sequence[Indices],
    tried: Sequence[Candidate],
    engine: Engine,
    report: Callable[[str], None],
) -> Measured:
    """What each candidate does in each fold."""
    # Candidates that differ in the averaging of weights alone share their training.
    trainings = {candidate.training: candidate for candidate in reversed(tried)}
    learners = [candidate for candidate in tried if trainings[candidate.training] is candidate]
    fits = [Fit(learner, *inputs.parts(rows), number) for learner in learners for number, rows in enumerate(splits)]
    clock = _TimeLeft(learners, len(splits))
    found: dict[str, dict[int, Outcomes]] = {candidate.name: {} for candidate in tried}
    totals = dict.fromkeys(found, 0.0)

    def begins(fit: Fit) -> None:
        report(f"{fit.candidate.training}: fold {fit.fold + 1} of {len(splits)} …")

    for fit, (_, seconds) in fit_on_ray(trials, fits) if engine == "ray" else fit_here(trials, fits, begins):
        clock.spent(fit.candidate, seconds)
        if fit.candidate.trains:
            left = clock.left() if engine == "local" else ""  # it adds up what is computed at the same time
            report(f"{fit.candidate.training}: fold {fit.fold + 1} of {len(splits)}, {seconds:.0f} s{left}")
        for each in [each for each in tried if each.training == fit.candidate.training]:
            found[each.name][fit.fold] = replace(fit, candidate=each).run(trials)[0]
            totals[each.name] += seconds
            if len(found[each.name]) == len(splits):
                score = statistic(inputs.labelled, _in_order(found[each.name])).value()
                report(f"{each.name}: {score:.2f} ({totals[each.name]:.0f} s)")
    return {name: (_in_order(folds), totals[name]) for name, folds in found.items()}


def _in_order(folds: Mapping[int, Outcomes]) -> list[Outcomes]:
    return [folds[number] for number in sorted(folds)]


class _TimeLeft:
    """Estimates the time left, in proportion to the cost of the candidates that are left."""

    def __init__(self, tried: Sequence[Candidate], folds: int) -> None:
        costs = [candidate.cost() for candidate in tried]
        self._left = sum(costs) * folds + max(costs, default=0.0)  # the best is trained once more
        self._done, self._seconds = 0.0, 0.0

    def spent(self, candidate: Candidate, seconds: float) -> None:
        if candidate.trains:
            self._seconds += seconds
            self._done += candidate.cost()
            self._left -= candidate.cost()

    def left(self) -> str:
        seconds = self._left * self._seconds / self._done
        return f"; about {seconds / 60:.0f} min left" if seconds >= 90 else f"; about {seconds:.0f} s left"


def _forecast(
    trials: Trials,
    inputs: Inputs,
    splits: Sequence[Indices],
    tried: Sequence[Candidate],
    chosen: Row,
    rows: Sequence[Row],
    more: int,
) -> Forecast | None:
    """The forecast of the chosen candidate, or else of the best that learns from the labels and takes seconds."""
    scores = {row.name: row.score for row in rows}
    learning = [each for each in tried if not each.trains and learns(each, inputs)]
    if not learning:
        return None
    best = max(learning, key=lambda each: (each.name == chosen.name, scores[each.name]))
    try:
        return forecast_candidate(trials, inputs, splits, best, more, lambda line: None)
    except DiffaugError:  # too few labels
        return None


def _check_folder(folder: Path) -> None:
    if (folder / RESULT).is_file():
        raise DiffaugError(f"{folder} holds a finished result; choose another folder or remove it")
    if folder.exists() and not (folder.is_dir() and _is_begun(folder)):
        raise DiffaugError(f"{folder} exists and is not a folder of adapt; choose another folder")
    check_output(folder)


def _is_begun(folder: Path) -> bool:
    """Whether a folder is empty or one of adapt, also if a call ended before its request was written."""
    return (folder / _REQUEST).is_file() or all(path.name in (_LOCK, PROVENANCE) for path in folder.iterdir())


@contextmanager
def _claimed(folder: Path, request: Mapping[str, Any], used: RunProvenance) -> Iterator[None]:
    """Lock the folder of a result while the block runs; refuse one that was started with other inputs or settings."""
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder / _LOCK, f"another process is writing to {folder}"):
        path = folder / _REQUEST
        if path.is_file():
            before = json.loads(path.read_text("utf-8"))
            earlier = RunProvenance.load(folder) or used
            changed = earlier.changed(used).inputs
            changed += [
                f"{name} was {before.get(name)}, is {value}"
                for name, value in request.items()
                if before.get(name) != value and not (name == "data" and changed)
            ]
            if changed:
                raise DiffaugError(
                    f"{folder} was started with other inputs or settings ({'; '.join(changed)}); choose another folder "
                    "or remove it"
                )
        else:
            used.save(folder)
            with atomic_file(path) as temporary:
                temporary.write_text(json.dumps(request) + "\n", "utf-8")
        yield
