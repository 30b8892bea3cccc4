"""Draw the picture of the front page, score by number of labels, from the results in this folder.

    python benchmarks/picture.py docs/assets

Writes `labels-light.svg` and `labels-dark.svg`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

RESULTS = Path(__file__).with_name("results")
FILES = ("reproduce-low-label-small-300.json", "reproduce-low-label-small.json")
LABELS = {"300": 300, "2,756": 2756, "100 %": 53142}
PANELS = {
    "Labels only": {"DiffAug, sup": "DiffAug", "PromptBERT, sup": "PromptBERT", "SimCSE, sup": "SimCSE"},
    "Labels and raw text": {
        "DiffAug, semi": "DiffAug",
        "PromptBERT, joint": "PromptBERT",
        "SimCSE, joint": "SimCSE",
    },
}
# Okabe and Ito's palette, which is safe for common kinds of colour blindness; lighter on dark pages.
COLOURS = {
    "light": {"DiffAug": "#d55e00", "PromptBERT": "#00805d", "SimCSE": "#0072b2", "ink": "#222222", "line": "#dddddd"},
    "dark": {"DiffAug": "#ff8a3d", "PromptBERT": "#3ccfa4", "SimCSE": "#6cbdf0", "ink": "#e6e6e6", "line": "#444444"},
}
MARKERS = {"DiffAug": "o", "PromptBERT": "s", "SimCSE": "^"}


def scores() -> dict[str, dict[int, tuple[float, float]]]:
    """Mean and standard deviation of the average score, by row and number of labels."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for name in FILES:
        for entry in json.loads((RESULTS / name).read_text("utf-8"))["entries"]:
            average = entry["scores"]["average"]
            point = average["mean"], average["deviation"]
            found.setdefault(entry["row"], {})[LABELS[entry["column"]]] = point
    return found


def draw(folder: Path, theme: str) -> None:
    """Write one file."""
    colours, found = COLOURS[theme], scores()
    ink = colours["ink"]
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "diffaug", "text.color": ink, "axes.labelcolor": ink}
    with mpl.rc_context(style):
        figure = Figure(figsize=(7.6, 3.1), layout="constrained")
        axes = figure.subplots(1, 2)
        for panel, (title, rows) in zip(axes, PANELS.items(), strict=True):
            for row, method in rows.items():
                points = sorted(found[row].items())
                panel.errorbar(
                    [labels for labels, _ in points],
                    [mean for _, (mean, _) in points],
                    [deviation for _, (_, deviation) in points],
                    color=colours[method],
                    marker=MARKERS[method],
                    linewidth=2.6 if method == "DiffAug" else 1.6,
                    capsize=2.5,
                    label=method,
                    zorder=3 if method == "DiffAug" else 2,
                )
            panel.set_title(title, loc="left", fontweight="bold", fontsize=10.5)
            panel.set_xscale("log")
            panel.set_xticks(list(LABELS.values()), [f"{labels:,}" for labels in LABELS.values()])
            panel.minorticks_off()
            panel.set_xlabel("labelled triplets")
            panel.grid(axis="y", color=colours["line"], linewidth=0.7)
            panel.spines[["top", "right", "left"]].set_visible(False)
            panel.spines["bottom"].set_color(colours["line"])
            panel.tick_params(colors=ink, length=0)
        axes[0].set_ylabel("average of three STS tasks")
        axes[0].legend(frameon=False, loc="lower right")
        path = folder / f"labels-{theme}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})
        # Some programs leave spaces at the ends of lines, which git reports as an error.
        path.write_text("\n".join(line.rstrip() for line in path.read_text("utf-8").splitlines()) + "\n", "utf-8")


if __name__ == "__main__":
    for theme in COLOURS:
        draw(Path(sys.argv[1]), theme)
