"""Metric curves, downsampled for the page without changing their shape."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Maximum number of points of all curves together, about ten bytes each, and the limits per curve.
_BUDGET = 80_000
_FEWEST, _MOST = 40, 400
# A point closer to the line between its neighbours than this fraction of the curve's height can be dropped.
_STRAIGHT = 0.001

# Label and description of each metric. Losses and learning rates that only some methods have are not listed.
METRICS = {
    "dev": ("Dev score", "Spearman × 100 on the dev pairs; selects the best checkpoint"),
    "loss": ("Loss", "training loss of the batch"),
    "delta": ("Delta", "mean distance between the two views of a sentence: rises to a plateau or a peak in stage 1"),
    "kappa": ("Kappa", "norm of the model's own keys and values relative to the prefix's: falls in stage 1"),
    "alignment": ("Alignment", "mean squared distance of positive pairs; lower is better"),
    "uniformity": ("Uniformity", "how evenly the vectors cover the sphere; lower is better"),
    "contrastive": ("Contrastive loss", "the contrastive term of the loss"),
    "nli": ("NLI loss", "the classification term of the loss"),
}


def describe(name: str) -> tuple[str, str]:
    """Label and description of a metric."""
    if name in METRICS:
        return METRICS[name]
    if name.startswith("lr_"):
        role = name.removeprefix("lr_").replace("_", " ")
        return f"Learning rate, {role}", f"learning rate of the {role}"
    return name.replace("_", " ").capitalize(), ""


def order(names: Iterable[str]) -> list[str]:
    """Metrics in the order of the page's menu: common ones first, learning rates last."""
    known = list(METRICS)
    return sorted(
        names, key=lambda name: (name.startswith("lr_"), known.index(name) if name in known else len(known), name)
    )


def stage_lengths(metrics: list[dict[str, Any]]) -> dict[int, int]:
    """The last logged step of each stage, by stage number."""
    lengths: dict[int, int] = {}
    for line in metrics:
        lengths[line["stage"]] = max(line["step"], lengths.get(line["stage"], 0))
    return dict(sorted(lengths.items()))


def all_curves(runs: list[list[dict[str, Any]]]) -> list[dict[str, list[list[Any]]]]:
    """For each run, its curves by metric name; a curve is a list of [stage, steps, values]."""
    found = [_series(metrics) for metrics in runs]
    plotted = {name for series in found for name, stages in series.items() if _points(stages) > 1}
    # A method without training has a single point; it stays as a reference level if other runs have a curve.
    found = [{name: stages for name, stages in series.items() if name in plotted} for series in found]
    count = sum(len(stages) for series in found for stages in series.values())
    limit = min(_MOST, max(_FEWEST, _BUDGET // max(1, count)))
    return [
        {
            name: [[stage, *_compact(np.array(x), np.array(y), limit)] for stage, (x, y) in sorted(stages.items())]
            for name, stages in series.items()
        }
        for series in found
    ]


_Stages = dict[int, tuple[list[float], list[float]]]


def _series(metrics: list[dict[str, Any]]) -> dict[str, _Stages]:
    series: dict[str, _Stages] = {}
    for line in metrics:
        for name, value in line.items():
            if name in ("stage", "step") or isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if math.isfinite(value):
                x, y = series.setdefault(name, {}).setdefault(line["stage"], ([], []))
                x.append(line["step"])
                y.append(float(value))
    loss = series.get("loss", {})
    # Drop a loss term that equals the total loss everywhere.
    return {
        name: stages
        for name, stages in series.items()
        if name == "loss" or any(loss.get(stage) != curve for stage, curve in stages.items())
    }


def _points(stages: _Stages) -> int:
    return sum(len(x) for x, _ in stages.values())


def _compact(x: Floats, y: Floats, limit: int) -> tuple[list[int], list[float]]:
    kept = thin(y, limit)
    kept = kept[_bends(x[kept], y[kept])]
    return [int(value) for value in x[kept]], [float(f"{value:.4g}") for value in y[kept]]


def thin(y: Floats, limit: int) -> NDArray[np.int64]:
    """Indices of the points to keep, at most ``limit + 2``: minimum and maximum of each interval, and both ends.

    This preserves peaks and the look of noise.
    """
    count = len(y)
    if count <= max(limit, 3):
        return np.arange(count)
    width = -(-count // (limit // 2))
    rows = -(-count // width)
    intervals = np.pad(y, (0, rows * width - count), mode="edge").reshape(rows, width)
    starts = np.arange(rows) * width
    kept = np.concatenate([[0, count - 1], starts + intervals.argmin(1), starts + intervals.argmax(1)])
    return np.unique(np.minimum(kept, count - 1))


def _bends(x: Floats, y: Floats) -> NDArray[np.int64]:
    """Indices of the points that a polyline needs; a linear learning rate decay needs two."""
    if len(x) < 3:
        return np.arange(len(x))
    tolerance = _STRAIGHT * float(y.max() - y.min())
    kept, start = [0], 0
    for end in range(2, len(x)):
        between = slice(start + 1, end)
        line = y[start] + (y[end] - y[start]) * (x[between] - x[start]) / max(x[end] - x[start], 1e-9)
        if np.abs(y[between] - line).max() > tolerance:
            start = end - 1
            kept.append(start)
    return np.array([*kept, len(x) - 1])
