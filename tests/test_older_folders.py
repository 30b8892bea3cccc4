"""Folders written by version 0.1.0 before its packages were rearranged: models load, runs resume, grids continue.

`fixtures/before-redesign.tar.xz` was written at commit 9b6e34a. It holds a tiny BERT with data files, a finished run of
`diffaug train` and the same run interrupted in stage 2, the vectors of the finished model, and a grid of
`diffaug reproduce main` in which one cell is missing.
"""

from __future__ import annotations

import json
import multiprocessing
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from diffaug import Embedder, load_recipe, train
from diffaug.cli import app
from diffaug.experiments import executor


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(Path(__file__).parent / "fixtures" / "before-redesign.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_saved_model_gives_the_same_vectors(before: Path) -> None:
    vectors = Embedder.from_pretrained(before / "finished" / "best").encode(["A dog runs.", "The market fell."])
    np.testing.assert_allclose(vectors, np.load(before / "vectors.npy"), atol=1e-5)


def test_an_interrupted_run_resumes_to_the_same_model(before: Path) -> None:
    train(load_recipe("unfinished/recipe.yaml"), before / "unfinished", resume=True, quiet=True)
    found, expected = (load_file(before / run / "best" / "diffaug.safetensors") for run in ("unfinished", "finished"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    scores = [json.loads((before / run / "summary.json").read_text())["scores"] for run in ("unfinished", "finished")]
    assert scores[0] == pytest.approx(scores[1], abs=0.05)


def test_a_grid_continues_with_the_cell_that_is_missing(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import diffaug.experiments.worker  # noqa: F401 - the worker inherits what is imported

    monkeypatch.setattr(executor, "_PROCESSES", multiprocessing.get_context("fork"))
    kept = {path: path.stat().st_mtime_ns for path in before.glob("grid/cells/*/result.json")}
    assert len(kept) == 5
    command = (
        "reproduce main --encoder backbone --data data --triplets triplets.csv --sentences sentences.txt --seeds 2"
    )
    rows = ["--only", "SimCSE, sup", "--only", "PromptBERT, sup"]
    options = ["--budget", "two.yaml", "--out", "grid", "--no-keep-models", "--jobs", "1"]
    result = CliRunner().invoke(app, [*command.split(), *rows, *options])
    assert result.exit_code == 0, result.output
    found = {path: path.stat().st_mtime_ns for path in before.glob("grid/cells/*/result.json")}
    assert len(found) == 6
    assert kept.items() <= found.items(), "finished cells are not run again"
    assert "PromptBERT, sup" in (before / "grid" / "tables" / "main.md").read_text("utf-8")
