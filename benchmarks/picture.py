"""Draw score by number of labels from the results in this folder.

    python benchmarks/picture.py docs/assets

Writes `adapt-light.svg`, `adapt-dark.svg` (the front page: `diffaug adapt` beside other libraries), `labels-light.svg`
and `labels-dark.svg` (the methods of the paper).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
from adapt_summary import load, shared_scores
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


def draw_methods(folder: Path, theme: str) -> None:
    """The methods of the paper."""
    colours, found = COLOURS[theme], scores()
    with mpl.rc_context(_style(colours)):
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
            panel.set_xscale("log")
            panel.set_xticks(list(LABELS.values()), [f"{labels:,}" for labels in LABELS.values()])
            panel.minorticks_off()
            _finish(panel, title, "labelled triplets", colours)
        axes[0].set_ylabel("average of three STS tasks")
        axes[0].legend(frameon=False, loc="lower right")
        _save(figure, folder / f"labels-{theme}.svg")


# By panel, the data sets that are averaged, their numbers of labels, and the lines: columns of `adapt_summary`.
ADAPT_PANELS: dict[str, tuple[tuple[str, ...], dict[str, str], tuple[str, ...]]] = {
    "Intents, with raw text": (
        ("banking77",),
        {"5": "385", "10": "770"},
        ("as it is", "sentence-transformers", "SetFit", "adapt with text"),
    ),
    "Questions, opinions": (
        ("trec", "sst2", "mr"),
        {"50": "50", "300": "300", "1000": "1,000"},
        ("as it is", "sentence-transformers", "SetFit", "adapt"),
    ),
    "Pairs": (
        ("stsb", "sick", "mrpc"),
        {"50": "50", "300": "300", "1000": "1,000"},
        ("as it is", "sentence-transformers", "adapt"),
    ),
}
ADAPT_LINES = {
    "as it is": ("the model as it is", "ink", ":", ""),
    "sentence-transformers": ("sentence-transformers", "SimCSE", "-", "^"),
    "SetFit": ("SetFit", "PromptBERT", "-", "s"),
    "adapt": ("diffaug adapt", "DiffAug", "-", "o"),
    "adapt with text": ("diffaug adapt", "DiffAug", "-", "o"),
}


def draw_adapt(folder: Path, theme: str) -> None:
    """`diffaug adapt` beside other libraries: means over data sets, on the draws that all lines have."""
    colours, cases = COLOURS[theme], load()
    with mpl.rc_context(_style(colours)):
        figure = Figure(figsize=(8.4, 3.3), layout="constrained")
        axes = figure.subplots(1, 3)
        for panel, (title, (families, counts, columns)) in zip(axes, ADAPT_PANELS.items(), strict=True):
            points = [[shared_scores(cases[f"{family}-{count}"], columns) for family in families] for count in counts]
            for column in columns:
                name, colour, line, marker = ADAPT_LINES[column]
                heights = [mean(mean(each[column]) for each in parts) for parts in points]
                ours = name == "diffaug adapt"
                panel.plot(
                    heights,
                    color=colours[colour],
                    linestyle=line,
                    marker=marker,
                    linewidth=2.6 if ours else 1.6,
                    label=name,
                    zorder=3 if ours else 2,
                )
            panel.set_xticks(range(len(counts)), list(counts.values()))
            panel.margins(x=0.12)
            _finish(panel, title, "labels", colours)
        axes[0].set_ylabel("score on test sets")
        handles, names = axes[1].get_legend_handles_labels()
        figure.legend(handles[::-1], names[::-1], loc="outside lower center", ncols=4, frameon=False)
        _save(figure, folder / f"adapt-{theme}.svg")


def _style(colours: dict[str, str]) -> Any:
    ink = colours["ink"]
    return {"svg.fonttype": "none", "svg.hashsalt": "diffaug", "text.color": ink, "axes.labelcolor": ink}


def _finish(panel: Any, title: str, below: str, colours: dict[str, str]) -> None:
    panel.set_title(title, loc="left", fontweight="bold", fontsize=10.5)
    panel.set_xlabel(below)
    panel.grid(axis="y", color=colours["line"], linewidth=0.7)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(colours["line"])
    panel.tick_params(colors=colours["ink"], length=0)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, transparent=True, metadata={"Date": None})
    # Some programs leave spaces at the ends of lines, which git reports as an error.
    path.write_text("\n".join(line.rstrip() for line in path.read_text("utf-8").splitlines()) + "\n", "utf-8")


if __name__ == "__main__":
    for theme in COLOURS:
        draw_methods(Path(sys.argv[1]), theme)
        draw_adapt(Path(sys.argv[1]), theme)
