"""The divergence experiment, run on a tiny model: its curves, and dropout's divergence beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from plan_data import plan

from diffaug.config import load_recipe
from diffaug.experiments.data import DataFiles
from diffaug.experiments.worker import dropout_divergence, find_measure
from diffaug.training.run import train


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_a_run_records_both_curves_and_dropout(tiny_bert: Path, data_files: dict[str, str], tmp_path: Path) -> None:
    files = DataFiles(triplets=data_files["nli"], sentences=data_files["unlabelled"], dev=data_files["dev"])
    short = ("stage1.steps=4", "loop.eval_every=2", "stage1.batch_size=8", "stage2.batch_size=8", "views.length=3")
    made = plan("divergence", files, encoder=str(tiny_bert), changes=short)
    (cell,) = made.cells
    train(load_recipe(cell.recipe, cell.changes), tmp_path / "run", quiet=True)
    recorded = lines(tmp_path / "run")
    assert [line["step"] for line in recorded if line["stage"] == 1 and "delta" in line and "kappa" in line] == [
        0,
        2,
        4,
    ]
    # The step of stage 2 changes nothing.
    (before,) = [line["delta"] for line in recorded if line["stage"] == 1 and line["step"] == 4 and "delta" in line]
    (after,) = [line["delta"] for line in recorded if line["stage"] == 2 and "delta" in line]
    assert after == before

    (measure,) = map(find_measure, made.spec.measure)
    measure(tmp_path / "run")
    measure(tmp_path / "run")
    found, *rest = lines(tmp_path / "run")
    assert rest == recorded
    assert (found["stage"], found["step"]) == (1, 0)
    assert found["dropout_delta"] > 0


def test_without_dropout_the_views_do_not_differ(tiny_bert: Path, data_files: dict[str, str], tmp_path: Path) -> None:
    still = tmp_path / "still"
    shutil.copytree(tiny_bert, still)
    config = json.loads((still / "config.json").read_text("utf-8"))
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (still / "config.json").write_text(json.dumps(config), "utf-8")

    def measured(backbone: Path, *changes: str) -> float:
        changes = (f"model.backbone={backbone}", f"data.nli={data_files['nli']}", *changes)
        return dropout_divergence(load_recipe("diffaug-semi", changes))

    assert measured(still) == 0.0
    assert measured(tiny_bert) > 0.01
    assert measured(tiny_bert) == measured(tiny_bert) != measured(tiny_bert, "seed=7")
    # It says nothing about prefixes: their length does not matter.
    assert measured(tiny_bert, "views.length=3") == pytest.approx(measured(tiny_bert))
