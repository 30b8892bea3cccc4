"""Fit a candidate to labelled rows: what `adapt` and `forecast` do again and again."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.adaptation.averaging import average_with
from diffaug.adaptation.candidates import SPREADING, UNTOUCHED, Candidate
from diffaug.adaptation.folds import Indices
from diffaug.adaptation.inputs import Inputs
from diffaug.adaptation.linear import apply_linear, fit_linear, with_linear
from diffaug.adaptation.measure import Array, Encode, Outcomes, fit_classifier, held_out, pseudo_labelled, statistic
from diffaug.cluster import WorkerPool
from diffaug.config import load_recipe
from diffaug.data.records import Classes, Labelled, LabelledPairs, ScoredPairs, Triplets
from diffaug.embedder import Embedder
from diffaug.files import atomic_file
from diffaug.training.run import train
from diffaug.training.run_cache import RunCache

FitResult = tuple[Outcomes, float]
"""What a candidate does with held-out rows, and the seconds this took."""


@dataclass
class Trials:
    """Fits candidates to rows, scores them on others, and stores what it found.

    Attributes:
        work: a folder for results and unfinished training; what is stored there is not computed again.
        model: the folder or name of the model to start from.
        start: the loaded model.
        text: unlabelled sentences.
        seed: of training.
    """

    work: Path
    model: str
    start: Embedder
    text: list[str]
    seed: int
    _cache: RunCache = field(default_factory=RunCache)
    _vectors: dict[str, Array] = field(default_factory=dict)

    def outcomes(self, candidate: Candidate, rows: Labelled, test: Labelled, name: str) -> FitResult:
        """Fit a candidate to ``rows``, and apply it to ``test``; also the seconds this took.

        Args:
            candidate: what to fit.
            rows: what it may learn from.
            test: held-out rows.
            name: of the stored result.
        """
        if not self.has(candidate, name):
            self._fit(candidate, rows, test, name)
        with np.load(self._stored(candidate, name)) as stored:
            found = dict(stored.items())
        return found, float(found.pop("seconds"))

    def has(self, candidate: Candidate, name: str) -> bool:
        """Whether the outcomes of this name are stored, so that nothing is fitted."""
        return self._stored(candidate, name).is_file()

    def _fit(self, candidate: Candidate, rows: Labelled, test: Labelled, name: str) -> None:
        """Compute and store outcomes; of a trained encoder, with its weights and with the averaged ones."""
        begin = time.monotonic()
        folder = self.work / f"{_file_name(candidate.training)}-{name}"
        plain = replace(candidate, averaged=False)
        embedder = self._trained(plain, rows, folder) if candidate.trains else None
        found = {plain: self._outcomes(plain, embedder, rows, test)}
        if embedder is not None and embedder.encoder.denoise is None:
            found[replace(candidate, averaged=True)] = self._outcomes(
                candidate, average_with(embedder, self.start), rows, test
            )
        seconds = time.monotonic() - begin
        self.work.mkdir(parents=True, exist_ok=True)
        for each, outcomes in found.items():
            with atomic_file(self._stored(each, name)) as temporary, temporary.open("wb") as file:
                np.savez(file, seconds=seconds, **outcomes)  # type: ignore[arg-type]
        shutil.rmtree(folder, ignore_errors=True)

    def _outcomes(self, candidate: Candidate, embedder: Embedder | None, rows: Labelled, test: Labelled) -> Outcomes:
        encode = self._encode_linear(rows) if candidate.linear else self.encode_start
        return held_out(encode if embedder is None else embedder.encode, rows, test, self._text(candidate))

    def _encode_linear(self, rows: Labelled) -> Encode:
        weight = fit_linear(self.encode_start, rows, self.seed, self.start.device)
        return lambda sentences: apply_linear(weight, self.encode_start(sentences))

    def _stored(self, candidate: Candidate, name: str) -> Path:
        return self.work / f"{_file_name(candidate.name)}-{name}.npz"

    def finished(self, candidate: Candidate, rows: Labelled) -> Embedder:
        """The candidate fitted to all labels, with the classifier of the classes, if they are classes."""
        if candidate.trains:
            embedder = self._trained(candidate, rows, self.work / f"{_file_name(candidate.training)}-final")
            encode: Encode = embedder.encode
        else:
            embedder, encode = self.start, self.encode_start
            if candidate.linear:
                with_linear(embedder, fit_linear(encode, rows, self.seed, self.start.device))
        # A classifier that the model had before does not fit its new vectors.
        embedder.classifier = fit_classifier(encode, rows, self._text(candidate)) if isinstance(rows, Classes) else None
        return embedder

    def encode_start(self, sentences: Sequence[str]) -> Array:
        """Vectors of the untouched model, each computed once."""
        missing = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._vectors]
        if missing:
            self._vectors.update(zip(missing, self.start.encode(missing), strict=True))
        return np.stack([self._vectors[sentence] for sentence in sentences])

    def _text(self, candidate: Candidate) -> list[str] | None:
        return self.text if candidate.spreads else None

    def _trained(self, candidate: Candidate, rows: Labelled, folder: Path) -> Embedder:
        if candidate.pseudo_labels:
            assert isinstance(rows, Classes)
            rows = pseudo_labelled(self.encode_start, rows, self.text, self.seed)
        changes = [*candidate.changes, f"model.backbone={json.dumps(self.model)}", f"seed={self.seed}"]
        recipe = load_recipe(str(candidate.recipe), [*changes, "data.on_bad=skip"])
        if not (folder / "summary.json").exists():  # an interruption may come between training and what follows
            train(recipe, folder, nli=_as_rows(rows), resume=True, quiet=True, cache=self._cache)
        embedder = Embedder.from_pretrained(folder / "best")
        return average_with(embedder, self.start) if candidate.averaged else embedder


@dataclass(frozen=True, eq=False)
class Fit:
    """A candidate, the labels that it learns from, the held-out labels, and the number of the fold."""

    candidate: Candidate
    rows: Labelled
    test: Labelled
    fold: int

    def run(self, trials: Trials) -> FitResult:
        """See `Trials.outcomes`."""
        return trials.outcomes(self.candidate, self.rows, self.test, self._name)

    def will_train(self, trials: Trials) -> bool:
        """Whether `run` trains the encoder, which takes a while."""
        return self.candidate.trains and not trials.has(self.candidate, self._name)

    @property
    def _name(self) -> str:
        return f"fold{self.fold}"


def fit_here(trials: Trials, fits: Sequence[Fit], begins: Callable[[Fit], None]) -> Iterator[tuple[Fit, FitResult]]:
    """Run fits one after the other in this process; ``begins`` is called before each one that trains an encoder."""
    for fit in fits:
        if fit.will_train(trials):
            begins(fit)
        yield fit, fit.run(trials)


def fit_on_ray(trials: Trials, fits: Sequence[Fit]) -> Iterator[tuple[Fit, FitResult]]:
    """Run fits on a Ray cluster, in the order in which they end.

    Raises:
        DiffaugError: one failed, or there is no cluster.
    """
    # The expensive ones first, so that the cluster is busy to the end.
    ordered = sorted(range(len(fits)), key=lambda number: -fits[number].candidate.cost())
    make = partial(_ray_trials, trials.work, trials.model, trials.text, trials.seed)
    with WorkerPool[Fit, FitResult](make) as pool:
        for number in ordered:
            pool.submit(fits[number])
        while pool.running:
            for done in pool.wait(1.0):
                if done.error is not None:
                    raise done.error
                assert done.result is not None
                yield done.item, done.result


def text_helps(trials: Trials, inputs: Inputs, splits: Sequence[Indices], known: Sequence[Candidate]) -> bool | None:
    """Whether label spreading scores higher than a classifier that learns from labels alone; None: it cannot be used.

    Where neighbours often have different classes, as with opinions, unlabelled text makes a classifier much worse.
    """
    by_name = {candidate.name: candidate for candidate in known}
    if SPREADING not in by_name:
        return None
    scores = []
    for name in (SPREADING, UNTOUCHED):
        parts = enumerate(map(inputs.parts, splits))
        found = [trials.outcomes(by_name[name], *part, f"fold{number}")[0] for number, part in parts]
        scores.append(statistic(inputs.labelled, found).value())
    return scores[0] > scores[1]


def _ray_trials(work: Path, model: str, text: list[str], seed: int) -> Callable[[Fit], FitResult]:
    """Called in the process of a worker."""
    trials = Trials(work, model, Embedder.from_pretrained(model), text, seed)
    return lambda fit: fit.run(trials)


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


def _as_rows(labelled: Labelled) -> list[dict[str, Any]]:
    """Rows with the usual names of columns."""
    if isinstance(labelled, LabelledPairs):
        names: tuple[str, ...] = ("premise", "hypothesis", "label")
        return [dict(zip(names, (first, second, label.value), strict=True)) for first, second, label in labelled]
    if isinstance(labelled, Classes):
        names = ("text", "label")
    elif isinstance(labelled, ScoredPairs):
        names = ("sentence1", "sentence2", "score")
    else:
        names = ("anchor", "positive", "negative")[: 3 if isinstance(labelled, Triplets) else 2]
    return [dict(zip(names, row, strict=True)) for row in labelled]
