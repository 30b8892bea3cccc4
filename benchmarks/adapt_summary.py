"""The tables of docs/adapt.md, from the results of `benchmarks/adapt.py`.

python benchmarks/adapt_summary.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from diffaug.adaptation.candidates import UNTOUCHED
from diffaug.adaptation.result import Row, choose

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
CONFIDENCES = (0.95, 0.9, 0.8, 0.7, 0.5)
Runs = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""By way and draw, a result."""


def load() -> dict[str, Runs]:
    """By case."""
    found: dict[str, dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
    for entry in json.loads(RESULTS.read_text("utf-8"))["results"]:
        found[entry["case"]][entry["way"]][entry["draw"]] = entry
    return dict(found)


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
        cells = [f"{mean((main | text)[column]):.1f}" if column in main | text else "" for column in COLUMNS]
        best = max(float(cell) for cell in cells[:-1] if cell)
        cells = [f"**{cell}**" if cell and float(cell) >= best else cell for cell in cells]
        lines.append(f"| {name} | {len(main['adapt'])} | {' | '.join(cells)} |")
    return lines


def test_scores(cases: Mapping[str, Runs]) -> list[tuple[Mapping[str, Any], dict[str, float], float | None]]:
    """Every result of adapt, the test score of every candidate, and that of the best peer, if it was run."""
    found = []
    for runs in cases.values():
        for way in ("adapt", "adapt-text"):
            for draw, entry in runs.get(way, {}).items():
                own = dict(entry["candidates"])
                for each in runs.get("untouched", {}).values():  # the same for every draw
                    own[UNTOUCHED] = each["score"]
                names = [name for column in list(COLUMNS)[:3] for name in COLUMNS[column]]
                peers = [runs[name][draw]["score"] for name in names if draw in runs.get(name, {})]
                found.append((entry, own, max(peers) if len(peers) > 1 else None))
    return found


def rule_table(cases: Mapping[str, Runs]) -> list[str]:
    """What each confidence of the rule brings on the test sets."""
    lines = [
        "| confidence | mean gain | smallest gain | regret, mean | regret, median | against the best peer, median |",
        "|---|---|---|---|---|---|",
    ]
    for confidence in CONFIDENCES:
        gains, regrets, leads = [], [], []
        for entry, own, peer in test_scores(cases):
            first = entry["rows"][0]["score"]
            chosen = choose([Row.from_dict(row, first) for row in entry["rows"]], confidence).name
            gains.append(own[chosen] - own[UNTOUCHED])
            regrets.append(max(own.values()) - own[chosen])
            if peer is not None:
                leads.append(own[chosen] - peer)
        cells = [mean(gains), min(gains), mean(regrets), median(regrets), median(leads)]
        signed = [f"{value:+.2f}" if i in (0, 1, 4) else f"{value:.2f}" for i, value in enumerate(cells)]
        lines.append(f"| {confidence} | {' | '.join(signed)} |")
    return lines


def main() -> None:
    cases = load()
    print("\n".join([*scores_table(cases), "", *rule_table(cases)]))
    runs = test_scores(cases)
    print(f"\n{len(runs)} results of adapt, {sum(peer is not None for _, _, peer in runs)} beside peers")


if __name__ == "__main__":
    main()
