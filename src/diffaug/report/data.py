"""What the page's script works with: runs, curves, pairs and maps, in as few bytes as they need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.report import colours, curves
from diffaug.report.embeddings import Floats, Projection, choose_pairs, neighbours, project, turned
from diffaug.report.pairs import Encode, PairSet
from diffaug.report.runs import Run

# Pairs on a map; of them, those each model gets most wrong.
_MAP_PAIRS = 150
_MAP_WORST = 4
_LONGEST = 400  # characters of a sentence


class Sentences:
    """Every sentence of the page, once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def __call__(self, sentence: str) -> int:
        """The place of a sentence in the list."""
        text = sentence if len(sentence) <= _LONGEST else sentence[: _LONGEST - 1] + "…"
        return self._places.setdefault(text, len(self._places))

    def texts(self) -> list[str]:
        """The list."""
        return list(self._places)


def run_data(runs: Sequence[Run], settings: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """Runs with their curves, and the settings that not all of them share."""
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
    """The metrics there are curves of, in the order in which they are offered."""
    names = curves.order({name for run in runs for name in run["curves"]})
    return [
        {"name": name, "label": label, "about": about} for name in names for label, about in [curves.describe(name)]
    ]


def pair_data(sets: Sequence[PairSet], count: int, sentences: Sentences) -> list[dict[str, Any]]:
    """The worst pairs of every run on every set, as [first, second, gold, its rank, cosine, its rank, usual error].

    Ranks are per cent of all pairs, and so is the usual error: the median over all runs, if there are several.
    """
    found = []
    for pair_set in sets:
        gold_rank = pair_set.gold_ranks
        ranks = {run: pair_set.ranks(run) for run in pair_set.cosines}
        usual = np.median(list(ranks.values()), axis=0) - gold_rank if len(ranks) > 1 else None
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
                    None if usual is None else round(100 * usual[i]),
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
    """Maps of the same sentences by several models: their places from 0 to 1000, neighbours, and pairs with cosines."""
    if not models or not sets:
        return None
    base = max(sets, key=lambda pair_set: len(pair_set.cosines))
    wanted = [i for run in models if run in base.cosines for i in base.worst(run, _MAP_WORST)]
    pairs = base.pairs.take(choose_pairs(base.pairs, _MAP_PAIRS, wanted))
    texts = list(dict.fromkeys([*pairs.first, *pairs.second]))
    place = {text: i for i, text in enumerate(texts)}
    ends = np.array([[place[first], place[second]] for first, second, _ in pairs])
    reference: Floats | None = None
    found = []
    for run, model in models.items():
        vectors = encode(model, texts)
        flat, part = project(vectors, how)
        reference = flat if reference is None else reference
        flat = turned(flat, reference)
        near = neighbours(vectors)
        cosines = np.einsum("ij,ij->i", vectors[ends[:, 0]], vectors[ends[:, 1]])
        found.append(
            {
                "run": run,
                "shown": part,
                "xy": _grid(flat).tolist(),
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


def _grid(flat: Floats) -> Any:
    """Coordinates as whole numbers from 0 to 1000, both axes on the same scale, the middle in the middle."""
    half = max(float(np.abs(flat).max()), 1e-12)
    return np.rint(500 + 500 * flat / half).astype(int)


def _short(value: float) -> float:
    return float(f"{float(value):.3g}")
