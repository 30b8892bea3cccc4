"""Are forecasts right? The gain that a forecast promises beside the gain that twice the labels bring on a test set.

    python benchmarks/forecast.py --model all-MiniLM-L6-v2 --data data --out benchmarks/results/forecast.json

Every trial draws labels at random: of 20 classes of BANKING77 (3, 5 or 8 sentences each; logistic regression on frozen
vectors), or of STS-B's training pairs (80, 150 or 300; a linear map). The forecast sees these labels only. It is
compared with the difference on the test set between twice as many labels and these.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from adapt import load
from common import machine

from diffaug import Embedder
from diffaug.adaptation.candidates import LINEAR, UNTOUCHED, Candidate
from diffaug.adaptation.forecasts import forecast_candidate
from diffaug.adaptation.inputs import Inputs
from diffaug.adaptation.measure import statistic
from diffaug.adaptation.trials import Trials
from diffaug.data.records import Classes, Labelled, ScoredPairs

CANDIDATES = {"banking77": Candidate(UNTOUCHED), "stsb": Candidate(LINEAR, linear=True)}
COUNTS = {"banking77": (60, 100, 160), "stsb": (80, 150, 300)}


def draw(name: str, data: Path, seed: int) -> tuple[Labelled, Labelled, int]:
    """All labels in random order, the test set, and how many labels the forecast sees."""
    rng = random.Random(seed)
    count = rng.choice(COUNTS[name])
    if name == "banking77":
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
        return Classes(*map(list, zip(*rows, strict=True))), Classes(*map(list, zip(*tests, strict=True))), count
    case = load("stsb-2000", seed, data)
    first, second = (ScoredPairs(*map(list, zip(*part, strict=True))) for part in (case.rows, case.tests["test"]))
    return first, second, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20, help="per data set")
    options = parser.parse_args()
    results = []
    start = Embedder.from_pretrained(options.model)
    vectors: dict[str, np.ndarray] = {}  # shared by all trials
    for name, candidate in CANDIDATES.items():
        for seed in range(options.trials):
            labelled, test, count = draw(name, options.data, seed)
            inputs = Inputs(labelled.take(range(count)), None, [], {})
            with tempfile.TemporaryDirectory() as work:
                trials = Trials(Path(work), options.model, start, [], seed, _vectors=vectors)
                found = forecast_candidate(trials, inputs, inputs.splits(5, seed), candidate, count, print)
                now, later = (
                    statistic(labelled, [trials.outcomes(candidate, labelled.take(range(n)), test, f"test{n}")[0]])
                    for n in (count, 2 * count)
                )
            gain = later.value() - now.value()
            results.append({"data": name, "seed": seed, **found.to_dict(), "measured": gain})
            print(f"{name} {count}: {found.gain:+.2f} ({found.low:+.2f} to {found.high:+.2f}), measured {gain:+.2f}")
    summary = {}
    for name in CANDIDATES:
        rows = [row for row in results if row["data"] == name]
        errors = [row["gain"] - row["measured"] for row in rows]
        inside = [row["low"] <= row["measured"] <= row["high"] for row in rows]
        summary[name] = {
            "mean error": float(np.mean(errors)),
            "mean absolute error": float(np.mean(np.abs(errors))),
            "80 % intervals that cover": float(np.mean(inside)),
        }
        print(name, summary[name])
    record = {
        "command": "python benchmarks/forecast.py --model MODEL --data DATA --out FILE",
        "machine": machine(("torch", "transformers")),
        "model": Path(options.model).name,
        "summary": summary,
        "results": results,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
