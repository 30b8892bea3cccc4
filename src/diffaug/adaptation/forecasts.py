"""What more labels would bring: a power law through scores with fewer labels."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffaug.adaptation.candidates import LINEAR, SPREADING, UNTOUCHED, Candidate, candidates, find_names, trained
from diffaug.adaptation.folds import Indices, nested_subset
from diffaug.adaptation.inputs import Inputs, most_text, read_inputs
from diffaug.adaptation.measure import Outcomes, measure_name, statistic
from diffaug.adaptation.trials import Trials, text_helps
from diffaug.data.columns import Columns
from diffaug.data.problems import OnBad
from diffaug.data.read import LabelNames
from diffaug.data.records import Classes, Labelled
from diffaug.data.table import Source
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.evaluation.statistics import bootstrap

Floats = NDArray[np.float64]

_SHARES, _DRAWS = (0.25, 0.5, 0.75, 1.0), 5
_TRAINED_SHARES, _TRAINED_DRAWS = (0.34, 0.67, 1.0), 1
_SPREADING_DRAWS = 2
_FOLDS, _TRAINED_FOLDS = 5, 3
# In points: no score is taken to be perfect.
_SMALLEST_ERROR = 0.1
_RESAMPLES = 400
_CONFIDENCE = 0.8


@dataclass(frozen=True)
class Forecast:
    """The expected gain from more labels.

    Attributes:
        candidate: how the labels are used.
        measure: the name of the score.
        labels: the number there are.
        more: the number to be added.
        sizes, scores: the curve: numbers of labels and mean scores.
        gain: the expected difference between the scores with ``labels + more`` and with ``labels``, in points.
        low, high: its 80 % interval.
        visible: the smallest difference that the held-out labels can show with 95 % confidence.
    """

    candidate: str
    measure: str
    labels: int
    more: int
    sizes: list[int]
    scores: list[float]
    gain: float
    low: float
    high: float
    visible: float

    def words(self) -> str:
        """The forecast in a sentence."""
        seen = "could" if self.gain >= self.visible else "could not"
        return (
            f"{self.more:,} more labels would bring {self.gain:+.1f} points with {self.candidate} (80 % interval "
            f"{self.low:+.1f} to {self.high:+.1f}); the held-out labels {seen} show such a difference (they show "
            f"{self.visible:.1f} or more)."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Forecast:
        """Read what `to_dict` returned."""
        return cls(**values)


def forecast(
    model: str | os.PathLike[str],
    labels: Source,
    more: int = 300,
    *,
    text: Source | None = None,
    dev: Source | None = None,
    columns: Columns | None = None,
    label_names: LabelNames | None = None,
    text_column: str | int | None = None,
    on_bad: OnBad = "error",
    candidate: str | None = None,
    seed: int = 42,
    report: Callable[[str], None] = lambda line: None,
) -> Forecast:
    """Estimate what more labels would bring.

    The candidate learns from parts of the labels, and is scored on held-out labels. A power law through these scores
    gives the score with more labels.

    Args:
        model: a finished embedding model: a folder or hub name.
        labels: as for `adapt`.
        more: how many labels would be added.
        text: unlabelled sentences of the same domain.
        dev: labels to score on, instead of cross-validation.
        columns: names of the columns, where they are not the usual ones.
        label_names: what labels of pairs mean, where they are not the usual ones.
        text_column: the column of ``text`` with the sentences, where it is not called sentence or text.
        on_bad: what to do with rows that cannot be used.
        candidate: the name of one of the candidates of `adapt`. Default: one that does not train the encoder and takes
            seconds: with classes label spreading if there is text that helps, otherwise a classifier; with pairs the
            linear map.
        seed: of folds, draws and training.
        report: called with lines on the progress.

    Raises:
        DiffaugError: anything the user can fix.
    """
    start = Embedder.from_pretrained(model)
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
    known = candidates(inputs, start.encoder, on_gpu)
    if candidate is not None:
        (candidate,) = find_names(known, [candidate])
    trains = any(each.trains and each.name == candidate for each in known)
    splits = inputs.splits(_TRAINED_FOLDS if trains else _FOLDS, seed)
    with tempfile.TemporaryDirectory(prefix="diffaug-") as work:
        trials = Trials(Path(work), os.fspath(model), start, inputs.text, seed)
        helps = text_helps(trials, inputs, splits, known)
        if candidate is None:
            candidate = LINEAR if not isinstance(inputs.labelled, Classes) else SPREADING if helps else UNTOUCHED
        tried = [*known, *trained(known, [candidate], helps, on_gpu)]
        chosen = next((each for each in reversed(tried) if each.name == candidate), known[0])
        return forecast_candidate(trials, inputs, splits, chosen, more, report)


def forecast_candidate(
    trials: Trials,
    inputs: Inputs,
    splits: Sequence[Indices],
    candidate: Candidate,
    more: int,
    report: Callable[[str], None],
    draws: int = _DRAWS,
) -> Forecast:
    """The forecast of one candidate; ``draws`` of a part of the labels, if the candidate takes seconds.

    Raises:
        DiffaugError: it does not learn from the labels, or they are too few.
    """
    if candidate.name == UNTOUCHED and not isinstance(inputs.labelled, Classes):
        raise DiffaugError(
            f"the candidate {UNTOUCHED!r} does not learn from {inputs.labelled.kind}; name another candidate"
        )
    shares, draws = (_TRAINED_SHARES, _TRAINED_DRAWS) if candidate.trains else (_SHARES, draws)
    if candidate.spreads:
        draws = min(draws, _SPREADING_DRAWS)  # its classifier learns from all unlabelled text
    if candidate.trains:
        if isinstance(inputs.labelled, Classes) and Counter(inputs.labelled.classes).most_common(2)[1][1] < 12:
            # Of these, a third of a fold's labels has two sentences to learn from in at least two classes.
            raise DiffaugError(
                f"a forecast of {candidate.name} needs two classes with 12 sentences each; name a candidate that does "
                "not train the encoder"
            )
        report(f"{candidate.name} is trained {len(shares) * draws * len(splits)} times")
    sizes = np.zeros(len(shares))
    curves = np.zeros((len(splits) if candidate.trains else draws, len(shares), 1 + _RESAMPLES))
    for j, share in enumerate(shares):
        for draw in range(draws if share < 1 else 1):
            found = []
            for number, rows in enumerate(splits):
                learned, test = inputs.parts(rows)
                name = f"fold{number}"
                if share < 1:
                    learned = learned.take(nested_subset(learned, share, trials.seed + draw).tolist())
                    name += f"-share{share:g}-draw{draw}"
                outcomes, seconds = trials.outcomes(candidate, learned, test, name)
                found.append(outcomes)
                sizes[j] += len(learned)
                if candidate.trains:
                    report(f"{candidate.name}, {len(learned):,} labels, fold {number + 1}: {seconds:.0f} s")
            if candidate.trains:
                curves[:, j] = [_resampled(inputs.labelled, [fold], trials.seed) for fold in found]
            else:
                curves[draw, j] = _resampled(inputs.labelled, found, trials.seed)
        if share == 1 and not candidate.trains:
            curves[:, j] = curves[0, j]
        sizes[j] /= len(splits) * (draws if share < 1 else 1)
    if candidate.trains:
        # There is one training per fold and size, so the folds tell how much one differs from another. How difficult
        # the held-out rows of a fold are is no such difference.
        curves += curves.mean((0, 1)) - curves.mean(1, keepdims=True)
    if len({round(size) for size in sizes}) < len(shares):
        raise DiffaugError(f"{len(inputs.labelled)} labels are too few for a forecast; add labels")
    gain, low, high, visible = fit_gain(sizes, curves, len(inputs.labelled), more, trials.seed)
    return Forecast(
        candidate.name,
        measure_name(inputs.labelled),
        len(inputs.labelled),
        more,
        [round(size) for size in sizes],
        curves[:, :, 0].mean(0).tolist(),
        gain,
        low,
        high,
        visible,
    )


def _resampled(labelled: Labelled, found: Sequence[Outcomes], seed: int) -> Floats:
    """(1 + resamples,): the score, and those of the same resamples of the held-out rows for every number of labels."""
    score = statistic(labelled, found)
    return np.array([score.value(), *bootstrap(score, "forecast", _RESAMPLES, seed)])


def fit_gain(sizes: Floats, values: Floats, labels: int, more: int, seed: int) -> tuple[float, float, float, float]:
    """Fit the power law ``100 - score = a * n ** -b`` to scores over numbers of labels.

    A limit below 100 as a third parameter makes forecasts worse: a few noisy points do not determine it.

    Args:
        sizes: numbers of labels, at least three, increasing.
        values: (draws, sizes, 1 + resamples): scores up to 100; each draw is a series of nested subsets, or one fold.
            First the scores of the held-out rows, then those of resamples of these rows.
        labels: the number there are.
        more: the number to be added.
        seed: of the resampling of draws.

    Returns:
        the gain, the ends of its 80 % interval, and the smallest visible difference.
    """
    draws, count, resamples = values.shape
    rng = np.random.default_rng(seed)
    chosen = rng.integers(draws, size=(resamples, draws))
    chosen[0] = np.arange(draws)
    curves = np.stack([values[chosen[r], :, r].mean(0) for r in range(resamples)])  # (resamples, sizes)
    # A small fold may have resamples in which a score is undefined: they say nothing.
    known = ~np.isnan(curves).any(1)
    if known.sum() < 2 or not known[0]:
        raise DiffaugError("the held-out labels are too few for a forecast; add labels")
    curves, resamples = curves[known], int(known.sum())
    gains = _gains(sizes, curves, labels, more)
    # The labels there are, and those to come, are one draw; a score varies less the more labels it has.
    spread = np.sqrt(np.mean(values[:, :-1, 0].var(0, ddof=1) * sizes[:-1])) if draws > 1 else 0.0
    noise = spread / np.sqrt(labels)
    drawn = gains[1:] + rng.normal(0, 1, resamples - 1) * noise
    low, high = np.quantile(drawn, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    visible = 1.96 * float(np.std(curves[1:, -1] - curves[1:, count // 2 - 1]))
    return float(gains[0]), float(low), float(high), visible


def _gains(sizes: Floats, curves: Floats, labels: int, more: int) -> Floats:
    """(curves,): the rise of the power law through each curve between ``labels`` and ``labels + more``.

    Args:
        sizes: (sizes,)
        curves: (curves, sizes)
        labels, more: see `fit_gain`.
    """
    logs = np.log(sizes) - np.log(sizes).mean()
    errors = np.log(np.maximum(100 - curves, _SMALLEST_ERROR))
    exponents = np.minimum(0, errors @ logs / (logs @ logs))  # a curve never falls
    scale = errors.mean(1) - exponents * np.log(sizes).mean()
    now, later = (np.exp(scale + exponents * np.log(n)) for n in (labels, labels + more))
    gains: Floats = now - later
    return gains
