"""Does the fast way of training on a GPU give what the plain one gives?

A supervised run on the sample data (the quickstart of version 0.1), both ways:

- without dropout, the losses of stage 2 over 100 steps: in 32 bits, in 16 bits the plain way, and in 16 bits the fast
  way, which differ by rounding alone;
- with dropout, whose random numbers differ, the dev score over seeds.

    python benchmarks/fast_or_plain.py --seeds 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import save

from diffaug import train
from diffaug.config import load_recipe

os.environ.setdefault("HF_HUB_OFFLINE", "1")
_SAMPLE = [
    "model.backbone=embedded",
    "data.nli=sample:triplets",
    "data.dev=sample:dev",
    "stage1.steps=40",
    "stage1.batch_size=64",
    "stage2.steps=100",
    "stage2.learning_rate=1e-4",
    "loop.eval_every=20",
]
# Nor a stage 1, which always has it.
_NO_DROPOUT = ["stage1=null", "stage2.dropout=false", "views.dropout=0.0"]
_WAYS = {"plain": "loop.fast=false", "fast": "loop.fast=true"}


def run(*changes: str) -> tuple[list[float], float]:
    """The losses of stage 2, every ten steps, and the dev score."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        scores = train(load_recipe("diffaug-sup", [*_SAMPLE, *changes]), out, quiet=True).scores
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line["loss"] for line in lines if line["stage"] == 2 and "loss" in line], round(scores["dev"], 2)


def losses() -> dict[str, Any]:
    """Curves without dropout, and how far those in 16 bits are from that in 32 on average."""
    curves = {"fp32": run(*_NO_DROPOUT, "loop.fast=false", "loop.precision=fp32")[0]}
    for way, change in _WAYS.items():
        curves[way] = run(*_NO_DROPOUT, change)[0]
    distances = {
        way: round(statistics.mean(abs(a - b) for a, b in zip(curves["fp32"], curves[way], strict=True)), 4)
        for way in _WAYS
    }
    return {"losses": curves, "distance_from_fp32": distances}


def dev_scores(seeds: int) -> dict[str, Any]:
    """With dropout: every seed's score, and their mean and standard deviation."""
    found: dict[str, Any] = {}
    for way, change in _WAYS.items():
        scores = [run(change, f"seed={seed}", "stage1.steps=60")[1] for seed in range(1, seeds + 1)]
        found[way] = {
            "dev": scores,
            "mean": round(statistics.mean(scores), 2),
            "sd": round(statistics.stdev(scores), 2),
        }
        print(way, found[way], flush=True)
    return found


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("a spread needs two seeds at least")
    if not torch.cuda.is_available():
        parser.error("the fast way is that of a GPU, and there is none here")
    without = losses()
    print(without, flush=True)
    print(save("fast_or_plain", {**without, "with_dropout": dev_scores(arguments.seeds)}, ("torch", "transformers")))


if __name__ == "__main__":
    main()
