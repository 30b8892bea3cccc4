"""The score so far: a linear head on cached vectors, refitted in the background while people label."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.adaptation.candidates import UNTOUCHED, Candidate, candidates
from diffaug.adaptation.folds import Indices
from diffaug.adaptation.forecasts import forecast_candidate
from diffaug.adaptation.inputs import Inputs, read_inputs
from diffaug.adaptation.measure import Outcomes, statistic
from diffaug.adaptation.trials import Trials
from diffaug.data.records import Classes, Labelled
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.serve.label.store import Store

_FOLDS, _DRAWS = 3, 2  # fewer than those of `diffaug forecast`, so that it takes seconds
_FEWEST_NEW = 10  # labels that start another fit; of many labels, a tenth
_LOOK = 2.0  # seconds between two looks at the number of labels


class _StopError(Exception):
    pass


@dataclass
class _Fits(Trials):
    """Fits that end soon after ``stop`` is set."""

    stop: threading.Event = field(default_factory=threading.Event)

    def outcomes(self, candidate: Candidate, rows: Labelled, test: Labelled, name: str) -> tuple[Outcomes, float]:
        if self.stop.is_set():
            raise _StopError
        return super().outcomes(candidate, rows, test, name)


class Refit:
    """A thread that fits and scores the candidate of `diffaug forecast` whenever there are enough new labels.

    Args:
        store: the answers.
        load: loads the model; called in the thread, so that the page opens at once.
        more: the number of additional labels of the forecast.
        seed: of folds, draws and fits.
    """

    def __init__(self, store: Store, load: Callable[[], Embedder], more: int = 300, seed: int = 42) -> None:
        self._store, self._load, self._more, self._seed = store, load, more, seed
        self._start: Embedder | None = None
        self._vectors: dict[str, np.ndarray] = {}
        self._stop = threading.Event()
        self._status: dict[str, Any] = {"state": "waiting", "message": None, "curve": None}
        self._thread = threading.Thread(target=self._run, name="refit", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the fit under way."""
        self._stop.set()
        self._thread.join()

    def status(self) -> dict[str, Any]:
        """For the page: the state in a word, a message, and the curve of scores with its forecast."""
        return self._status

    def _run(self) -> None:
        last, enough = -1, 1  # the number of labels at the last attempt, and how many new ones start another
        while not self._stop.is_set():
            rows = self._store.rows()
            if abs(len(rows) - last) < enough:
                self._stop.wait(_LOOK)
                continue
            last, enough = len(rows), 1
            self._status = {**self._status, "state": "fitting"}
            try:
                self._status = {"state": "ready", "message": None, "curve": self._fit(rows)}
                enough = max(_FEWEST_NEW, last // 10)
            except _StopError:
                return
            except DiffaugError as error:  # as long as there are too few labels
                self._status = {**self._status, "state": "waiting", "message": str(error)}
            except Exception as error:  # the thread must not end: a full disk may be emptied
                self._status = {**self._status, "state": "waiting", "message": f"it failed: {type(error).__name__}"}

    def _fit(self, rows: list[tuple[str, ...]]) -> dict[str, Any]:
        kind = self._store.kind
        if kind.name == "classes":  # a class with one sentence cannot be learned and scored
            sizes = Counter(row[-1] for row in rows)
            rows = [row for row in rows if sizes[row[-1]] > 1]
        if not rows:
            raise DiffaugError("there are no labels yet")
        labels = [dict(zip(kind.columns, row, strict=True)) for row in rows]
        inputs = read_inputs(labels, None, None, None, 0, self._seed, lambda line: None)
        if self._start is None:
            self._start = self._load()
        chosen = candidates(inputs, self._start.encoder, on_gpu=False)
        candidate = [each for each in chosen if not each.trains][-1]
        splits = inputs.splits(_FOLDS, self._seed)
        with tempfile.TemporaryDirectory(prefix="diffaug-") as work:
            trials = _Fits(Path(work), "", self._start, [], self._seed, _vectors=self._vectors, stop=self._stop)
            before = None if isinstance(inputs.labelled, Classes) else _before(trials, inputs, splits)
            found = forecast_candidate(trials, inputs, splits, candidate, self._more, lambda line: None, draws=_DRAWS)
        return {**found.to_dict(), "before": before, "words": found.words()}


def _before(trials: Trials, inputs: Inputs, splits: list[Indices]) -> float:
    """The score of the model as it is, on the same held-out answers."""
    untouched = Candidate(UNTOUCHED)
    found = [trials.outcomes(untouched, *inputs.parts(rows), f"fold{i}")[0] for i, rows in enumerate(splits)]
    return statistic(inputs.labelled, found).value()
