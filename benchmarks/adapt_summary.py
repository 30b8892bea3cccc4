"""The tables of docs/adapt.md, from the results of `benchmarks/adapt.py`.

python benchmarks/adapt_summary.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np

from diffaug.adaptation.candidates import UNTOUCHED
from diffaug.adaptation.result import CONFIDENCE, Row, choose

RESULTS = Path(__file__).with_name("results") / "adapt.json"
NAMES = {
    "banking77": "BANKING77",
    "trec": "TREC",
    "sst2": "SST-2",
    "mr": "MR",
    "stsb": "STS-B",
    "sick": "SICK",
    "mrpc": "MRPC",
    "nli": "NLI",
}
COLUMNS = {
    "as it is": ("untouched", "logistic"),
    "sentence-transformers": ("triplets", "cosent", "mnrl"),
    "SetFit": ("setfit",),
    "adapt": ("adapt",),
    "adapt with text": ("adapt-text",),
}
ADAPT = ("adapt", "adapt-text")
# Candidates that were tried, and are now tried only if they are named.
NOT_BY_DEFAULT = {"nli": ("SimCSE", "SimCSE, averaged")}
CONFIDENCES = (0.95, 0.9, 0.8, 0.7, 0.5)
Runs = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""By way and draw, a result."""


def load() -> dict[str, Runs]:
    """By case. The score of adapt is that of the candidate which today's rule chooses, whatever the rule was then."""
    found: dict[str, dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
    for entry in json.loads(RESULTS.read_text("utf-8"))["results"]:
        found[entry["case"]][entry["way"]][entry["draw"]] = entry
    for runs in found.values():
        for entry in [entry for way in ADAPT for entry in runs.get(way, {}).values()]:
            for each in runs.get("untouched", {}).values():  # the same for every draw
                entry["candidates"][UNTOUCHED] = each["score"]
            entry["score"] = entry["candidates"][chosen(entry, CONFIDENCE)]
    return dict(found)


def chosen(entry: Mapping[str, Any], confidence: float) -> str:
    """The candidate that the rule chooses in a result of adapt."""
    first = entry["rows"][0]["score"]
    left_out = NOT_BY_DEFAULT.get(entry["case"].split("-")[0], ())
    return choose([Row.from_dict(row, first) for row in entry["rows"] if row["name"] not in left_out], confidence).name


def shared_scores(runs: Runs, columns: Sequence[str]) -> dict[str, list[float]]:
    """By column, the scores of the draws that all columns have; of several ways, that with the highest mean."""
    ways = [[way for way in COLUMNS[column] if way in runs] for column in columns]
    draws = sorted(set.intersection(*(set(runs[way]) for names in ways for way in names)))
    by_way = {way: [runs[way][draw]["score"] for draw in draws] for names in ways for way in names}
    return {
        column: max((by_way[way] for way in names), key=mean)
        for column, names in zip(columns, ways, strict=True)
        if names and draws
    }


def scores_table(cases: Mapping[str, Runs]) -> list[str]:
    """A line per case."""
    lines = [f"| labels | draws | {' | '.join(COLUMNS)} |", f"|---|---|{'---|' * len(COLUMNS)}"]
    for case, runs in cases.items():
        family, count = case.split("-")
        labels = next(iter(runs["adapt"].values()))["labels"]
        name = f"{NAMES[family]}, {labels}" + f" ({count} per class)" * (family == "banking77")
        main = shared_scores(runs, [column for column in COLUMNS if column != "adapt with text"])
        text = shared_scores(runs, ["adapt with text"]) if "adapt-text" in runs else {}
        scores = [(main | text).get(column, []) for column in COLUMNS]
        best = max(round(mean(values), 1) for values in scores[:-1] if values)
        cells = [_cell(values, best) if values else "" for values in scores]
        lines.append(f"| {name} | {len(main['adapt'])} | {' | '.join(cells)} |")
    return lines


def _cell(scores: Sequence[float], best: float) -> str:
    """The mean and the standard deviation over draws, with spaces at which no line is broken."""
    middle = f"{mean(scores):.1f}"
    spread = f"\u00a0±\u00a0{stdev(scores):.1f}" if len(scores) > 1 and stdev(scores) > 0.05 else ""
    return (f"**{middle}**" if float(middle) >= best else middle) + spread


def best_peers(cases: Mapping[str, Runs]) -> list[tuple[Mapping[str, Any], float]]:
    """Every result of adapt, and the best test score of the others on the same labels."""
    names = [name for column in list(COLUMNS)[:3] for name in COLUMNS[column]]
    return [
        (entry, max(runs[name][draw]["score"] for name in names if draw in runs.get(name, {})))
        for runs in cases.values()
        for way in ADAPT
        for draw, entry in runs.get(way, {}).items()
    ]


def lead_by_case(cases: Mapping[str, Runs]) -> tuple[float, float, float]:
    """The mean lead of adapt over the best of the others, a case counting once, and its 90 % interval over cases."""
    leads = np.array([mean(entry["score"] - peer for entry, peer in best_peers({"": runs})) for runs in cases.values()])
    drawn = np.random.default_rng(0).integers(len(leads), size=(10_000, len(leads)))
    low, high = np.quantile(leads[drawn].mean(1), [0.05, 0.95])
    return float(leads.mean()), float(low), float(high)


def rule_table(cases: Mapping[str, Runs]) -> list[str]:
    """What each confidence of the rule brings on the test sets."""
    lines = [
        "| confidence | mean gain | smallest gain | draws that lose over 0.5 | regret, mean | regret, median "
        "| lead over the best of the others, median |",
        "|---|---|---|---|---|---|---|",
    ]
    for confidence in CONFIDENCES:
        gains, regrets, leads = [], [], []
        for entry, peer in best_peers(cases):
            own = entry["candidates"]
            score = own[chosen(entry, confidence)]
            gains.append(score - own[UNTOUCHED])
            regrets.append(max(own.values()) - score)
            leads.append(score - peer)
        lost = sum(gain < -0.5 for gain in gains)
        lines.append(
            f"| {confidence} | {mean(gains):+.2f} | {min(gains):+.2f} | {lost} | {mean(regrets):.2f} "
            f"| {median(regrets):.2f} | {median(leads):+.2f} |"
        )
    return lines


def main() -> None:
    cases = load()
    print("\n".join([*scores_table(cases), "", *rule_table(cases)]))
    print(
        "\n{} results of adapt; lead over the best of the others {:+.2f}, 90 % interval {:+.2f} to {:+.2f}".format(
            len(best_peers(cases)), *lead_by_case(cases)
        )
    )


if __name__ == "__main__":
    main()
