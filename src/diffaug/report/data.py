"""The data that the page's scripts read: runs, curves, pairs and maps, in a compact form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffaug.errors import DiffaugError
from diffaug.report import colours, curves
from diffaug.report.embeddings import Floats, Projection, align, neighbours, project
from diffaug.report.pairs import Encode, PairSet
from diffaug.report.runs import Run
from diffaug.report.sentences import OwnSentences

_LISTED = 5  # nearest neighbours that the page lists
_MAX_CHARACTERS = 400  # longer sentences are truncated


class Sentences:
    """The distinct sentences of the page; data refers to them by index."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def __call__(self, sentence: str) -> int:
        """The index of a sentence, which is added if it is new."""
        text = sentence if len(sentence) <= _MAX_CHARACTERS else sentence[: _MAX_CHARACTERS - 1] + "…"
        return self._index.setdefault(text, len(self._index))

    def texts(self) -> list[str]:
        """All sentences, in the order of their indices."""
        return list(self._index)


def run_data(runs: Sequence[Run], settings: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """The runs with their curves and those settings that differ between runs."""
    found = curves.all_curves([run.metrics for run in runs])
    looks = colours.assign(runs)
    return [
        {
            "name": run.name,
            "state": run.state,
            "colour": colour,
            "dash": dash,
            "shown": run.shown,
            "stages": list(curves.stage_lengths(run.metrics).items()),
            "best": [run.best_at["stage"], run.best_at["step"]] if run.best_at else None,
            "stage1_end": run.stage1_end,
            "before": {} if run.dev_before is None else {"dev": run.dev_before},
            "curves": series,
            "settings": own,
        }
        for run, series, own, (colour, dash) in zip(runs, found, settings, looks, strict=True)
    ]


def metric_data(runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The metrics that have curves, in menu order."""
    names = curves.order({name for run in runs for name in run["curves"]})
    return [
        {"name": name, "label": label, "about": about} for name in names for label, about in [curves.describe(name)]
    ]


def pair_data(sets: Sequence[PairSet], count: int, sentences: Sentences) -> list[dict[str, Any]]:
    """The worst pairs of each run on each set: [first, second, gold, gold rank, cosine, cosine rank, median error].

    Ranks and errors are in percent of all pairs. The median error is over all runs; None if there is only one.
    """
    found = []
    for pair_set in sets:
        gold_rank = pair_set.gold_ranks
        ranks = {run: pair_set.ranks(run) for run in pair_set.cosines}
        median = np.median(list(ranks.values()), axis=0) - gold_rank if len(ranks) > 1 else None
        runs = {}
        for run, cosines in pair_set.cosines.items():
            runs[run] = [
                [
                    sentences(pair_set.pairs.first[i]),
                    sentences(pair_set.pairs.second[i]),
                    _short(pair_set.pairs.scores[i]),
                    round(100 * gold_rank[i]),
                    _short(cosines[i]),
                    round(100 * ranks[run][i]),
                    None if median is None else round(100 * median[i]),
                ]
                for i in pair_set.worst(run, count)
            ]
        scores = pair_set.pairs.scores
        found.append({"name": pair_set.name, "count": len(scores), "top": _short(max(scores)), "runs": runs})
    return found


def map_data(
    own: OwnSentences,
    models: Mapping[int, Path],
    backbones: Mapping[int, str],
    how: Projection,
    encode: Encode,
    sentences: Sentences,
) -> tuple[dict[str, Any], list[str]]:
    """Maps of the user's sentences before and after training, and notes on models that could not be loaded.

    Args:
        own: the sentences.
        models: trained models by run.
        backbones: the models before training, by run.
        how: the projection.
        encode: computes vectors.
        sentences: of the page.
    """
    notes: dict[str, None] = {}
    before: dict[str, _Mapped | None] = {}
    reference: Floats | None = None
    for name in dict.fromkeys(backbones.values()):
        try:
            before[name] = _mapped(encode(name, own.texts), how, reference)
        except DiffaugError as error:
            before[name] = None
            notes[f"The map before training is missing: {error}"] = None
        if reference is None and (mapped := before[name]) is not None:
            reference = mapped.flat
    found = []
    for run, model in models.items():
        start = before.get(backbones.get(run, ""))
        after = _mapped(encode(model, own.texts), how, reference if start is None else start.flat)
        reference = after.flat if reference is None else reference
        found.append(
            {
                "run": run,
                "after": after.to_dict(own.classes),
                "before": None if start is None else list(before).index(backbones[run]),
                "new": None if start is None else after.new_neighbours(start),
            }
        )
    drawn = {
        "from": own.name,
        "how": how,
        "points": [sentences(text) for text in own.texts],
        "classes": own.classes,
        "before": [None if mapped is None else mapped.to_dict(own.classes) for mapped in before.values()],
        "models": found,
    }
    return drawn, list(notes)


@dataclass(frozen=True)
class _Mapped:
    """Sentences on the map of one model: coordinates, explained variance, and nearest neighbours by full vectors."""

    flat: Floats
    explained: float | None
    near: list[list[tuple[int, float]]]

    def new_neighbours(self, before: _Mapped) -> list[int]:
        """Per sentence, the share of its nearest neighbours, in percent, that were not among them before."""
        sides = [[{i for i, _ in row} for row in mapped.near] for mapped in (self, before)]
        return [round(100 * len(now - then) / max(1, len(now))) for now, then in zip(*sides, strict=True)]

    def to_dict(self, classes: list[str] | None) -> dict[str, Any]:
        same = None
        if classes is not None:  # the share of neighbours with the class of the sentence
            same = round(
                100 * float(np.mean([classes[i] == classes[j] for i, row in enumerate(self.near) for j, _ in row]))
            )
        return {
            "shown": self.explained,
            "xy": _coordinates(self.flat).tolist(),
            "near": [[[j, round(100 * cosine)] for j, cosine in row[:_LISTED]] for row in self.near],
            "same": same,
        }


def _mapped(vectors: NDArray[np.float32], how: Projection, reference: Floats | None) -> _Mapped:
    flat, explained = project(vectors, how)
    return _Mapped(flat if reference is None else align(flat, reference), explained, neighbours(vectors))


def _coordinates(flat: Floats) -> Any:
    """Integers from 0 to 1000, with the same scale on both axes and the origin at 500."""
    half = max(float(np.abs(flat).max()), 1e-12)
    return np.rint(500 + 500 * flat / half).astype(int)


def _short(value: float) -> float:
    return float(f"{float(value):.3g}")
