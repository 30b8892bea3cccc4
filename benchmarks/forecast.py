"""Are forecasts right? The gain that a forecast promises beside the gain that twice the labels bring on a test set.

    python benchmarks/forecast.py --model all-MiniLM-L6-v2 --data data --out benchmarks/results/forecast.json --jobs 15

Every trial draws labels at random, as many as one of the numbers in `SETTINGS`. The forecast sees these labels only. It
is compared with the difference on the test set between twice as many labels and these. A trial that is in the file
already is not computed again.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from adapt import load, processes, stop
from common import machine

from diffaug import Embedder
from diffaug.adaptation.candidates import DIFFAUG, LINEAR, SIMCSE, UNTOUCHED, candidates
from diffaug.adaptation.forecasts import forecast_candidate
from diffaug.adaptation.inputs import Inputs
from diffaug.adaptation.measure import statistic
from diffaug.adaptation.trials import Trials
from diffaug.data.records import Classes, Labelled, ScoredPairs


@dataclass(frozen=True)
class Setting:
    """A data set, a candidate, the numbers of labels, and how many trials."""

    data: str
    candidate: str
    counts: Sequence[int]
    trials: int


SETTINGS = [
    Setting("banking77", UNTOUCHED, (60, 100, 160), 30),
    Setting("stsb", LINEAR, (80, 150, 300), 30),
    Setting("trec", SIMCSE, (100, 200, 300), 15),
    Setting("stsb", SIMCSE, (80, 150, 300), 15),
    Setting("stsb", DIFFAUG, (80, 150, 300), 15),
]


def draw(setting: Setting, data: Path, seed: int) -> tuple[Labelled, Labelled, int]:
    """All labels in random order, the test set, and how many labels the forecast sees."""
    rng = random.Random(seed)
    count = rng.choice(setting.counts)
    if setting.data == "banking77":
        case = load("banking77-20", seed, data)
        names = set(rng.sample(sorted({row[-1] for row in case.rows}), 20))
        rows, tests = ([row for row in part if row[-1] in names] for part in (case.rows, case.tests["test"]))
        rng.shuffle(rows)
        # The first sentence of each class, then the second: as many of each as one labels for a test of this kind.
        place: Counter[str] = Counter()
        keys = []
        for _, label in rows:
            place[label] += 1
            keys.append(place[label])
        rows = [row for _, row in sorted(zip(keys, rows, strict=True), key=lambda pair: pair[0])]
    else:
        case = load(f"{setting.data}-{2 * max(setting.counts)}", seed, data)
        rows, tests = case.rows, case.tests["test"]
    kind = Classes if case.kind == "classes" else ScoredPairs
    first, second = (kind(*map(list, zip(*part, strict=True))) for part in (rows, tests))
    return first, second, count


def run(task: tuple[Setting, int], model: str, data: Path) -> dict[str, Any]:
    """One trial."""
    setting, seed = task
    labelled, test, count = draw(setting, data, seed)
    inputs = Inputs(labelled.take(range(count)), None, [], {})
    start = Embedder.from_pretrained(model)
    known = candidates(inputs, start.encoder, start.device.type != "cpu")
    candidate = next(each for each in known if each.name == setting.candidate)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        trials = Trials(Path(work), model, start, [], seed)
        splits = inputs.splits(3 if candidate.trains else 5, seed)
        found = forecast_candidate(trials, inputs, splits, candidate, count, lambda line: None)
        seconds = time.monotonic() - begin
        now, later = (
            statistic(labelled, [trials.outcomes(candidate, labelled.take(range(n)), test, f"test{n}")[0]])
            for n in (count, 2 * count)
        )
    return {
        "data": setting.data,
        "candidate": setting.candidate,
        "seed": seed,
        "labels": count,
        **{name: round(getattr(found, name), 2) for name in ("gain", "low", "high")},
        "measured": round(later.value() - now.value(), 2),
        "seconds": round(seconds, 1),
    }


def summary(results: Sequence[dict[str, Any]], setting: Setting) -> dict[str, Any] | None:
    """How far the forecasts of one setting are from what was measured."""
    rows = [row for row in results if (row["data"], row["candidate"]) == (setting.data, setting.candidate)]
    if not rows:
        return None
    errors = [row["gain"] - row["measured"] for row in rows]
    inside = [row["low"] <= row["measured"] <= row["high"] for row in rows]
    return {
        "data": setting.data,
        "candidate": setting.candidate,
        "trials": len(rows),
        "mean measured": round(float(np.mean([row["measured"] for row in rows])), 2),
        "mean error": round(float(np.mean(errors)), 2),
        "mean absolute error": round(float(np.mean(np.abs(errors))), 2),
        "80 % intervals that cover": round(float(np.mean(inside)), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="candidates; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    record = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {"results": []}
    results = record["results"]
    done = {(row["data"], row["candidate"], row["seed"]) for row in results}
    tasks = [
        (setting, seed)
        for seed in range(max(setting.trials for setting in SETTINGS))
        for setting in SETTINGS
        if seed < setting.trials
        and (setting.data, setting.candidate, seed) not in done
        and (options.only is None or setting.candidate in options.only)
    ]
    record |= {
        "command": "python benchmarks/forecast.py --model MODEL --data DATA --out FILE",
        "machine": machine(("torch", "transformers")),
        "model": Path(options.model).name,
    }
    with processes(options.jobs) as pool:
        for row in pool.imap_unordered(partial(run, model=options.model, data=options.data), tasks):
            results.append(row)
            print(row, flush=True)
            record["summary"] = [found for each in SETTINGS if (found := summary(results, each))]
            record["results"] = sorted(results, key=lambda row: (row["data"], row["candidate"], row["seed"]))
            text = json.dumps({key: value for key, value in record.items() if key != "results"}, indent=1)
            lines = ",\n  ".join(json.dumps(row) for row in record["results"])
            options.out.write_text(f'{text[:-2]},\n "results": [\n  {lines}\n ]\n}}\n', "utf-8")
            if time.monotonic() > deadline:
                stop()
    for each in record["summary"]:
        print(each)


if __name__ == "__main__":
    main()
