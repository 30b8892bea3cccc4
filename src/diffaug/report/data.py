"""The data that the page's scripts read: runs, curves, pairs and maps, in a compact form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.report import colours, curves
from diffaug.report.embeddings import Floats, Projection, align, choose_pairs, neighbours, project
from diffaug.report.pairs import Encode, PairSet
from diffaug.report.runs import Run

_MAP_PAIRS = 150  # pairs on the map
_MAP_WORST = 4  # worst pairs of each model that the map includes
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
    runs: Sequence[Run],
    sets: Sequence[PairSet],
    models: dict[int, Path],
    how: Projection,
    encode: Encode,
    sentences: Sentences,
) -> dict[str, Any] | None:
    """Maps of the same sentences by several models: coordinates from 0 to 1000, nearest neighbours, pair cosines."""
    if not models or not sets:
        return None
    base = max(sets, key=lambda pair_set: len(pair_set.cosines))
    wanted = [i for run in models if run in base.cosines for i in base.worst(run, _MAP_WORST)]
    pairs = base.pairs.take(choose_pairs(base.pairs, _MAP_PAIRS, wanted))
    texts = list(dict.fromkeys([*pairs.first, *pairs.second]))
    index = {text: i for i, text in enumerate(texts)}
    ends = np.array([[index[first], index[second]] for first, second, _ in pairs])
    reference: Floats | None = None
    found = []
    for run, model in models.items():
        vectors = encode(model, texts)
        flat, part = project(vectors, how)
        reference = flat if reference is None else reference
        flat = align(flat, reference)
        near = neighbours(vectors)
        cosines = np.einsum("ij,ij->i", vectors[ends[:, 0]], vectors[ends[:, 1]])
        found.append(
            {
                "run": run,
                "shown": part,
                "xy": _coordinates(flat).tolist(),
                "near": [[[j, round(100 * cosine)] for j, cosine in row] for row in near],
                "cosines": [round(100 * float(cosine)) for cosine in cosines],
            }
        )
    return {
        "from": base.name,
        "how": how,
        "points": [sentences(text) for text in texts],
        "pairs": [[int(a), int(b), _short(score)] for (a, b), score in zip(ends, pairs.scores, strict=True)],
        "range": [_short(min(base.pairs.scores)), _short(max(base.pairs.scores))],
        "models": found,
    }


def _coordinates(flat: Floats) -> Any:
    """Integers from 0 to 1000, with the same scale on both axes and the origin at 500."""
    half = max(float(np.abs(flat).max()), 1e-12)
    return np.rint(500 + 500 * flat / half).astype(int)


def _short(value: float) -> float:
    return float(f"{float(value):.3g}")
