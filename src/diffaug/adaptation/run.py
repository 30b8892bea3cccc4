"""Adapt a model: try candidates by cross-validation on the user's labels, and keep one only if it is better."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.adaptation.candidates import UNTOUCHED, Candidate, candidates
from diffaug.adaptation.folds import Indices, nested_subset, split_folds
from diffaug.adaptation.forecast import Forecast, fit_forecast
from diffaug.adaptation.measure import Array, Outcomes, fit_classifier, held_out, measure_name, statistic
from diffaug.config import load_recipe
from diffaug.data.columns import Columns
from diffaug.data.read import read_labelled, read_sentences
from diffaug.data.records import Classes, Labelled, LabelledPairs, ScoredPairs, Triplets, summary
from diffaug.data.table import Source
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.evaluation.statistics import Comparison, Floats, bootstrap, compare
from diffaug.files import atomic_file, exclusive_lock
from diffaug.inference.runner import default_device
from diffaug.tabular import Section, whole_rows
from diffaug.training.run import train
from diffaug.training.run_cache import RunCache

MODEL, RESULT, _WORK = "model", "adapt.json", "work"
_FEWEST = 20
_MOST_TEXT = 100_000
_RESAMPLES = 2000
_CONFIDENCE = 0.95
_SHARES = (0.25, 0.5, 0.75, 1.0)
_DRAWS = 5


@dataclass(frozen=True)
class Row:
    """A candidate's result.

    Attributes:
        name: of the candidate.
        score: over the held-out rows of all folds.
        difference: from the untouched model, with its interval; None for the untouched model.
        seconds: for all folds.
    """

    name: str
    score: float
    difference: Comparison | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        difference = self.difference and self.difference.to_dict(self.name, UNTOUCHED)
        return {"name": self.name, "score": self.score, "difference": difference, "seconds": self.seconds}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], untouched: float) -> Row:
        """Read what `to_dict` returned; ``untouched`` is the score of the untouched model."""
        given = values["difference"]
        found = given and Comparison.from_dict(given, values["score"], untouched, _CONFIDENCE)
        return cls(values["name"], values["score"], found, values["seconds"])


@dataclass(frozen=True)
class AdaptResult:
    """What `adapt` found.

    Attributes:
        labels: what the labels are, in words.
        measure: the name of the score.
        folds: number of folds; 1 if a dev file was given.
        rows: one per candidate, the untouched model first.
        chosen: the name of the candidate that was saved.
        verdict: one sentence.
        model: the folder of the saved model; None if the untouched model is the result and has no classifier to save.
        forecast: what more labels would bring; None if the chosen candidate trains the encoder.
        seconds: the duration of this process.
    """

    labels: str
    measure: str
    folds: int
    rows: list[Row]
    chosen: str
    verdict: str
    model: Path | None
    forecast: Forecast | None
    seconds: float

    def table(self) -> Section:
        """The candidates as a table."""
        rows = [
            [
                row.name,
                f"{row.score:.2f}",
                "" if (d := row.difference) is None else f"{d.difference:+.2f} ({d.low:+.2f} to {d.high:+.2f})",
                f"{row.seconds:.0f}",
            ]
            for row in self.rows
        ]
        chosen = {i for i, row in enumerate(self.rows) if row.name == self.chosen}
        columns = ["candidate", self.measure, f"against {UNTOUCHED}", "seconds"]
        return Section("Candidates", columns, rows, whole_rows(rows, chosen))

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            **{name: getattr(self, name) for name in ("labels", "measure", "folds", "chosen", "verdict", "seconds")},
            "model": None if self.model is None else str(self.model),
            "rows": [row.to_dict() for row in self.rows],
            "forecast": self.forecast and self.forecast.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AdaptResult:
        """Read what `to_dict` returned."""
        untouched = values["rows"][0]["score"]
        return cls(
            **{name: values[name] for name in ("labels", "measure", "folds", "chosen", "verdict", "seconds")},
            model=None if values["model"] is None else Path(values["model"]),
            rows=[Row.from_dict(row, untouched) for row in values["rows"]],
            forecast=None if values["forecast"] is None else Forecast.from_dict(values["forecast"]),
        )


def adapt(
    model: str,
    labels: Source,
    out: str | os.PathLike[str],
    *,
    text: Source | None = None,
    dev: Source | None = None,
    columns: Columns | None = None,
    folds: int = 3,
    more: int = 300,
    only: Sequence[str] | None = None,
    seed: int = 42,
    report: Callable[[str], None] = lambda line: None,
) -> AdaptResult:
    """Adapt a finished embedding model to labels of any kind, if that is shown to help.

    Each candidate is trained without a part of the labels and scored on that part, in turn for each of ``folds`` parts.
    The candidate with the highest score is kept if the 95 % interval of its difference from the untouched model, by a
    paired bootstrap over the held-out rows, is above zero; otherwise the model stays as it is. The kept candidate is
    trained again on all labels.

    Args:
        model: a folder of diffaug, sentence-transformers or transformers, or a hub name.
        labels: triplets, pairs (same / different, scored, or all matching), or sentences with a class.
        out: a folder for the result. An interrupted call is continued by the same call.
        text: unlabelled sentences of the same domain.
        dev: labels of the same kind that decide instead of cross-validation.
        columns: names of the columns, where they are not the usual ones.
        folds: number of parts.
        more: the number of additional labels of the forecast.
        only: names of the candidates to try, besides the untouched model; None: all.
        seed: of folds and training.
        report: called with lines on the progress.

    Raises:
        DiffaugError: anything the user can fix; nothing that was there before is changed.
    """
    begin = time.monotonic()
    folder = Path(out)
    labelled = _read(labels, columns, "the labels")
    held = None if dev is None else _read(dev, columns, "the dev labels")
    raw = [] if text is None else _raw_text(text, labelled, held)
    splits = _splits(labelled, held, folds, seed)
    request = _Request(model, labelled, held, raw, folds, seed)
    start = Embedder.from_pretrained(model)
    with _claimed(folder, request.digest(start)):
        session = _Session(folder / _WORK, model, start, labelled, held, raw, seed, report)
        tried = candidates(labelled, bool(raw), default_device() != "cpu")
        if only is not None:
            known = [candidate.name for candidate in tried]
            if unknown := [name for name in only if name not in known]:
                raise DiffaugError(f"there is no candidate {unknown[0]!r} for these labels: {', '.join(known)}")
            tried = [candidate for candidate in tried if candidate.name in (UNTOUCHED, *only)]
        report(f"{summary(labelled)}; {measure_name(labelled)} on " + _held_words(splits, held))
        measured = [session.measure(candidate, splits) for candidate in tried]
        rows = _compare(tried, measured, labelled)
        chosen = _choose(tried, rows)
        forecast = session.forecast(chosen, splits, more, measured[tried.index(chosen)])
        saved = session.finish(chosen, folder / MODEL)
        result = AdaptResult(
            labels=summary(labelled),
            measure=measure_name(labelled),
            folds=len(splits),
            rows=rows,
            chosen=chosen.name,
            verdict=_verdict(chosen, rows, labelled),
            model=saved,
            forecast=forecast,
            seconds=time.monotonic() - begin,
        )
        with atomic_file(folder / RESULT) as path:
            path.write_text(json.dumps(result.to_dict(), indent=1), "utf-8")
        shutil.rmtree(folder / _WORK, ignore_errors=True)
    return result


def _read(source: Source, columns: Columns | None, what: str) -> Labelled:
    labelled = read_labelled(source, columns)
    if len(labelled) < _FEWEST:
        raise DiffaugError(
            f"{what} are {len(labelled)} rows; at least {_FEWEST} are needed to tell whether training helps"
        )
    if isinstance(labelled, ScoredPairs):
        labelled.check_they_rank(what)
    if isinstance(labelled, LabelledPairs) and len(set(labelled.binary())) < 2:
        raise DiffaugError(f"{what} have one kind of pairs only; both same and different pairs are needed")
    if isinstance(labelled, Classes):
        _check_classes(labelled, what)
    else:
        _check_contradictions(labelled, what)
    return labelled


def _check_classes(labelled: Classes, what: str) -> None:
    sizes = Counter(labelled.classes)
    if len(sizes) < 2:
        raise DiffaugError(f"{what} have one class only ({labelled.classes[0]!r}); at least two are needed")
    single = [name for name, size in sizes.items() if size < 2]
    if single:
        raise DiffaugError(
            f"{len(single)} classes of {what} have one sentence only, such as {single[0]!r}; add sentences or leave "
            "these classes out"
        )
    by_text: dict[str, str] = {}
    for sentence, name in labelled:
        if by_text.setdefault(sentence, name) != name:
            raise DiffaugError(
                f"{what} contradict each other: {sentence!r:.80} is both {by_text[sentence]!r} and {name!r}"
            )


def _check_contradictions(labelled: Labelled, what: str) -> None:
    if not isinstance(labelled, LabelledPairs):
        return
    seen: dict[tuple[str, str], Any] = {}
    for first, second, label in labelled:
        if seen.setdefault((first, second), label) is not label:
            raise DiffaugError(
                f"{what} contradict each other: {first!r:.60} and {second!r:.60} are labelled both "
                f"{seen[first, second].value} and {label.value}"
            )


def _raw_text(source: Source, labelled: Labelled, held: Labelled | None) -> list[str]:
    """Distinct unlabelled sentences, without those that have labels; a part where there are very many."""
    known = {text for part in (labelled, held) if part is not None for column in part.texts() for text in column}
    found = [sentence for sentence in dict.fromkeys(read_sentences(source)) if sentence not in known]
    step = -(-len(found) // _MOST_TEXT)
    return found[:: max(1, step)]


def _splits(labelled: Labelled, held: Labelled | None, folds: int, seed: int) -> list[Indices]:
    """The rows that are held out in each fold; one empty fold if a dev set decides."""
    if held is not None:
        if type(held) is not type(labelled):
            raise DiffaugError(f"the dev labels are {held.kind}, the labels {labelled.kind}; both must be of one kind")
        shared = {text for column in labelled.texts() for text in column}
        rows = sum(all(text in shared for text in row) for row in zip(*held.texts(), strict=True))
        if rows:
            raise DiffaugError(
                f"{rows} of {len(held)} rows of the dev labels have only sentences that are among the labels; "
                "remove them from one of the files"
            )
        return [np.array([], np.int64)]
    if folds < 2:
        raise DiffaugError(f"the number of folds must be at least 2, got {folds}")
    if isinstance(labelled, Classes):
        folds = min(folds, min(Counter(labelled.classes).values()))
    return split_folds(labelled, folds, seed)


def _held_words(splits: Sequence[Indices], held: Labelled | None) -> str:
    return f"{len(held):,} dev labels" if held is not None else f"held-out labels of {len(splits)} folds"


@dataclass(frozen=True)
class _Request:
    """What decides the result; a folder belongs to one request."""

    model: str
    labelled: Labelled
    held: Labelled | None
    raw: list[str]
    folds: int
    seed: int

    def digest(self, start: Embedder) -> str:
        rows = [list(part) for part in (self.labelled, self.held) if part is not None]
        content = json.dumps([start.fingerprint(), rows, self.raw, self.folds, self.seed], default=str)
        return hashlib.sha256(content.encode()).hexdigest()


class _claimed:  # noqa: N801 - a context manager, used like a function
    """Lock the folder of a result; refuse one of another request, and one that is finished."""

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder, self._digest = folder, digest

    def __enter__(self) -> None:
        folder, digest = self._folder, self._digest
        request = folder / "request.json"
        if (folder / RESULT).is_file():
            raise DiffaugError(f"{folder} holds a finished result; choose another folder or remove it")
        if folder.exists() and not request.is_file() and any(folder.iterdir()):
            raise DiffaugError(f"{folder} exists and is not a folder of adapt; choose another folder")
        if request.is_file() and json.loads(request.read_text("utf-8")).get("digest") != digest:
            raise DiffaugError(
                f"{folder} belongs to another model, other labels or other settings; choose another folder or remove it"
            )
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(request) as path:
            path.write_text(json.dumps({"digest": digest}), "utf-8")
        self._lock = exclusive_lock(folder / ".lock", f"another process is writing to {folder}")
        self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)


@dataclass
class _Measured:
    """A candidate's outcomes on the held-out rows of each fold."""

    outcomes: list[Outcomes]
    seconds: float


@dataclass
class _Session:
    """Measures and finishes candidates; finished folds are stored in ``work``."""

    work: Path
    model: str
    start: Embedder
    labelled: Labelled
    held: Labelled | None
    raw: list[str]
    seed: int
    report: Callable[[str], None]
    _cache: RunCache = field(default_factory=RunCache)
    _vectors: dict[str, Array] = field(default_factory=dict)

    def measure(self, candidate: Candidate, splits: Sequence[Indices]) -> _Measured:
        """Train and score a candidate in every fold, or read what an earlier process stored."""
        outcomes, seconds = [], 0.0
        for number, rows in enumerate(splits):
            path = self.work / f"{candidate.key}-fold{number}.npz"
            if path.is_file():
                with np.load(path) as stored:
                    found = dict(stored.items())
                seconds += float(found.pop("seconds"))
            else:
                begin = time.monotonic()
                train_rows, test_rows = self._parts(rows)
                encode = self._encoder(candidate, train_rows, self.work / f"{candidate.key}-fold{number}")
                found = held_out(encode, train_rows, test_rows, self.raw if candidate.text else None)
                spent = time.monotonic() - begin
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_file(path) as temporary, temporary.open("wb") as file:
                    np.savez(file, seconds=spent, **found)  # type: ignore[arg-type]
                shutil.rmtree(self.work / f"{candidate.key}-fold{number}", ignore_errors=True)
                seconds += spent
            outcomes.append(found)
        score = statistic(self.labelled, outcomes).value()
        self.report(f"{candidate.name}: {score:.2f} ({seconds:.0f} s)")
        return _Measured(outcomes, seconds)

    def forecast(self, chosen: Candidate, splits: Sequence[Indices], more: int, full: _Measured) -> Forecast | None:
        """Scores with parts of the labels, for a candidate whose encoder stays as it is."""
        if chosen.recipe is not None or not isinstance(self.labelled, Classes):
            return None  # training again and again takes too long, and an untouched model does not learn from pairs
        encode = self._encode_start
        draws = []
        for draw in range(_DRAWS):
            scores = []
            for share in _SHARES:
                outcomes = []
                for rows in splits:
                    train_rows, test_rows = self._parts(rows)
                    part = train_rows.take(nested_subset(train_rows, share, self.seed + draw))
                    outcomes.append(held_out(encode, part, test_rows, self.raw if chosen.text else None))
                scores.append(statistic(self.labelled, outcomes).value())
            draws.append(scores)
        fraction = 1 - 1 / len(splits) if self.held is None else 1.0
        sizes = sorted({round(share * fraction * len(self.labelled)) for share in _SHARES})
        if len(sizes) < len(_SHARES):
            return None
        values = bootstrap(statistic(self.labelled, full.outcomes), "forecast", _RESAMPLES, self.seed)
        return fit_forecast(sizes, np.array(draws), more, float(values.std(ddof=1)), self.seed)

    def finish(self, chosen: Candidate, target: Path) -> Path | None:
        """Train the chosen candidate on all labels, and save it with the classifier of the classes."""
        labelled = self.labelled
        if chosen.recipe is None and not isinstance(labelled, Classes):
            return None
        if chosen.recipe is None:
            embedder, encode = self.start, self._encode_start
        else:
            self.report(f"{chosen.name}: training on all labels")
            embedder = self._trained(chosen, labelled, self.work / "final")
            encode = embedder.encode
        if isinstance(labelled, Classes):
            embedder.classifier = fit_classifier(encode, labelled, self.raw if chosen.text else None)
        embedder.save(target, overwrite=True)
        return target

    def _parts(self, rows: Indices) -> tuple[Labelled, Labelled]:
        if self.held is not None:
            return self.labelled, self.held
        rest = np.setdiff1d(np.arange(len(self.labelled)), rows)
        return self.labelled.take(rest.tolist()), self.labelled.take(rows.tolist())

    def _encoder(self, candidate: Candidate, rows: Labelled, folder: Path) -> Callable[[Sequence[str]], Array]:
        if candidate.recipe is None:
            return self._encode_start
        return self._trained(candidate, rows, folder).encode

    def _trained(self, candidate: Candidate, rows: Labelled, folder: Path) -> Embedder:
        assert candidate.recipe is not None
        changes = [*candidate.changes, f"model.backbone={json.dumps(self.model)}", f"seed={self.seed}"]
        recipe = load_recipe(candidate.recipe, [*changes, *_smaller_batches(rows, candidate)])
        trained = train(recipe, folder, nli=_as_rows(rows), resume=True, quiet=True, cache=self._cache)
        return Embedder.from_pretrained(trained.model)

    def _encode_start(self, sentences: Sequence[str]) -> Array:
        """Vectors of the untouched model, each computed once."""
        missing = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._vectors]
        if missing:
            self._vectors.update(zip(missing, self.start.encode(missing), strict=True))
        return np.stack([self._vectors[sentence] for sentence in sentences])


def _smaller_batches(rows: Labelled, candidate: Candidate) -> list[str]:
    """Batches no larger than the data."""
    recipe = load_recipe(str(candidate.recipe), candidate.changes)
    return [
        f"{name}.batch_size={len(rows)}"
        for name, stage in (("stage1", recipe.stage1), ("stage2", recipe.stage2))
        if stage is not None and not isinstance(rows, Classes) and stage.batch_size > len(rows)
    ]


def _as_rows(labelled: Labelled) -> list[dict[str, Any]]:
    """Rows with the usual names of columns."""
    if isinstance(labelled, Classes):
        names: tuple[str, ...] = ("text", "label")
    elif isinstance(labelled, ScoredPairs):
        names = ("sentence1", "sentence2", "score")
    elif isinstance(labelled, LabelledPairs):
        names = ("premise", "hypothesis", "label")
        return [dict(zip(names, (first, second, label.value), strict=True)) for first, second, label in labelled]
    else:
        names = ("anchor", "positive", "negative")[: 3 if isinstance(labelled, Triplets) else 2]
    return [dict(zip(names, row, strict=True)) for row in labelled]


def _compare(tried: Sequence[Candidate], measured: Sequence[_Measured], labelled: Labelled) -> list[Row]:
    """The rows of the table, with paired bootstraps against the untouched model."""
    statistics = [statistic(labelled, found.outcomes) for found in measured]
    resampled: list[Floats] = [bootstrap(s, "held out", _RESAMPLES, 0) for s in statistics]
    values = [s.value() for s in statistics]
    return [
        Row(
            candidate.name,
            value,
            None if i == 0 else compare("held out", (value, values[0]), (resampled[i], resampled[0]), _CONFIDENCE),
            measured[i].seconds,
        )
        for i, (candidate, value) in enumerate(zip(tried, values, strict=True))
    ]


def _choose(tried: Sequence[Candidate], rows: Sequence[Row]) -> Candidate:
    """The candidate with the highest score among those shown to be better than the untouched model, or that one."""
    better = [i for i, row in enumerate(rows) if row.difference is not None and row.difference.low > 0]
    return tried[max(better, key=lambda i: rows[i].score)] if better else tried[0]


def _verdict(chosen: Candidate, rows: Sequence[Row], labelled: Labelled) -> str:
    if chosen.name == UNTOUCHED:
        best = max(rows[1:], key=lambda row: row.score, default=None)
        tail = ""
        if best is not None and best.difference is not None:
            d = best.difference
            tail = f": the best candidate, {best.name}, differs by {d.difference:+.2f} ({d.low:+.2f} to {d.high:+.2f})"
        save = " A classifier on its vectors is saved." if isinstance(labelled, Classes) else ""
        return f"Do not train: no candidate is shown to be better than the model as it is{tail}.{save}"
    row = next(row for row in rows if row.name == chosen.name)
    assert row.difference is not None
    d = row.difference
    return (
        f"Use {chosen.name}: {d.difference:+.2f} points over the model as it is (95 % interval {d.low:+.2f} to "
        f"{d.high:+.2f}, p = {d.p_value:.3f})."
    )
