"""Runs to report on: folders as training leaves them, and a grid with one cell in every state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.stats import spearmanr

from diffaug.experiments.grid import Grid, write_result
from diffaug.experiments.results import DEV, Cell, Result

# What a page must not be led astray by.
NASTY = "</script><script>window.broken = true</script><b>bold</b> & \u2028 'quotes' \"more\""
GOLD = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 2.5, 4.5]


def write_pairs(folder: Path) -> Path:
    """A file of eight scored pairs, one of them with markup in it."""
    path = folder / "dev.tsv"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{gold}\tSentence number {i}.\tAnother sentence, {i}." for i, gold in enumerate(GOLD)]
    lines[3] = f"{GOLD[3]}\t{NASTY}\tAn innocent sentence."
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def write_run(
    folder: Path, dev: Path | None = None, *, name: str = "simcse-sup", finished: bool = True, **recipe: Any
) -> Path:
    """A run's folder, without a model: two stages of twenty steps, the best score at step 15 of the second."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "name": name,
        "method": name.split("-")[0],
        "seed": 42,
        "model": {"backbone": "some/where/tiny", "template": None},
        "data": {"dev": None if dev is None else str(dev), "columns": {}, "on_bad": "error"},
        "stage2": {"steps": 20, "learning_rate": 1e-4},
        **recipe,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    lines: list[dict[str, Any]] = []
    for stage in (1, 2):
        for step in range(1, 21):
            loss = 1 / (step + 20 * (stage - 1))
            lines.append({"stage": stage, "step": step, "nli" if stage == 1 else "contrastive": loss, "loss": loss})
            lines[-1]["lr_backbone"] = 1e-4 * (1 - step / 20)
            if step % 5 == 0:
                lines.append({"stage": stage, "step": step, "delta": step / 10, "kappa": 10 / step})
                if stage == 2:
                    lines.append(
                        {"stage": 2, "step": step, "alignment": 0.2, "uniformity": -2.0, "dev": 60 - abs(15 - step)}
                    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    if finished:
        summary = {
            "scores": {"dev": 60.0, "test": 58.5, "alignment": 0.2, "uniformity": -2.0},
            "before": {"dev": 40.0, "test": 39.0},
            "best_at": {"stage": 2, "step": 15},
            "stage1_end": "after 20 steps: the number of steps asked for",
            "seconds": 125.0,
        }
        (folder / "summary.json").write_text(json.dumps(summary), "utf-8")
    return folder


def write_grid(folder: Path) -> Grid:
    """Two rows of two seeds, of which one has failed, and a row that is under way and one that waits."""
    dev = write_pairs(folder.parent / "pairs")
    first = [
        Cell("SimCSE, sup", "", "simcse-sup", ("stage2.learning_rate=1e-4",), baseline=True, group="supervised"),
        Cell("SimCSE, sup", "", "simcse-sup", ("stage2.learning_rate=3e-5",), 1, baseline=True, group="supervised"),
        Cell("DiffAug, sup", "", "diffaug-sup", (), group="supervised"),
        Cell("PromptBERT, sup", "", "promptbert-sup", (), baseline=True, group="supervised"),
        Cell("SBERT", "", "sbert", (), baseline=True, group="supervised"),
    ]
    request = {"experiment": "main", "encoder": "tiny", "data": {"folder": None}, "seeds": [42, 43], "draws": 1}
    grid = Grid.begin(folder, request, {"title": "The <main> table", "columns_are": "", "notes": ["A note"]}, first)
    grid.add([Cell("DiffAug, sup", "", "diffaug-sup", (), seed=43, group="supervised")])
    random = np.random.default_rng(0)
    for cell in grid.cells:
        if cell.row == "SBERT":
            continue
        finished = cell.row != "PromptBERT, sup" and cell.seed == 42
        run = write_run(grid.folder_of(cell), dev, name=cell.recipe, finished=finished, seed=cell.seed)
        if cell.seed == 43:
            grid.fail(cell, "the loss is not a finite number any more; lower the learning rate\n\nTraceback: ...")
        if finished:
            cosine = np.array(GOLD) / 5 + random.normal(0, 0.3 if cell.baseline else 0.1, len(GOLD))
            np.savez(
                run / "similarities.npz", **{"STS-B/cosine": cosine.astype("f4"), "STS-B/gold": np.array(GOLD, "f4")}
            )
            score = 100 * float(spearmanr(cosine, GOLD).statistic)
            scores = {DEV: score - cell.setting, "STS-B": score, "average": score}
            machine = {"device": "a GPU", "torch": "2.13.0"}
            write_result(run, Result(scores, 90.0, 1.5, {"1": 20, "2": 20}, {"stage": 2, "step": 15}, None, machine))
    return grid
