"""A grid that was begun by an earlier version is continued, reported and reused.

`old_grid` was written by diffaug 0.1.0 before grids were specified in YAML, by

    diffaug reproduce prefix-length --encoder tiny --data data --out grid --seeds 2 --column 2 --column 3 ...

with the encoder and data of these tests. One of its four runs and all models were removed.
"""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.experiments import executor
from diffaug.experiments.grid import Grid

OLD = Path(__file__).parent / "old_grid"
STEPS = ["stage1.steps=1", "stage2.steps=1", "stage1.batch_size=8", "stage2.batch_size=8", "data.max_length=16"]
COMMAND = ["reproduce", "prefix-length", "--encoder", "tiny", "--data", "data", "--seeds", "2", "--column", "2"]


@pytest.fixture
def folder(tiny_bert: Path, data_files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Encoder, data and grid where they were when the grid was begun."""
    shutil.copytree(tiny_bert, tmp_path / "tiny")
    shutil.copytree(OLD, tmp_path / "grid")
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(data_files["nli"], data / "triplets.csv")
    shutil.copy(data_files["unlabelled"], data / "sentences.txt")
    pairs = Path(data_files["dev"]).read_text("utf-8").splitlines() * 40
    for split, rows in (("dev", 1500), ("test", 1379)):
        (data / f"STSB.{split}.tsv").write_text("\n".join(pairs[:rows]) + "\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executor, "_PROCESSES", multiprocessing.get_context("fork"))
    return tmp_path / "grid"


def run(*arguments: str) -> str:
    changes = [part for change in STEPS for part in ("--set", change)]
    done = CliRunner().invoke(app, [*COMMAND, "--column", "3", *changes, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_it_is_continued(folder: Path) -> None:
    assert "3 finished, 0 failed, 1 to do." in run("--out", "grid", "--dry-run")
    before = {cell.name: result for cell, result in Grid.open(folder).results()}
    run("--out", "grid", "--quiet")
    after = {cell.name: result for cell, result in Grid.open(folder).results()}
    assert len(after) == 4
    assert before.items() <= after.items()
    text = (folder / "tables" / "prefix-length.md").read_text("utf-8")
    assert "| DiffAug, semi | **-9.13 ±3.58** |" in text, "as the earlier version wrote it"


def test_its_runs_are_taken_over(folder: Path) -> None:
    listed = run("--out", "new", "--reuse", "grid", "--dry-run")
    assert "0 of them copied from grid." in listed
    assert "3 runs not copied from grid (without a record of data and models; --force copies them)." in listed
    assert "3 of them copied from grid." in run("--out", "new", "--reuse", "grid", "--force", "--dry-run")


def test_it_is_reported(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", "grid", "-o", "page.html", "--map", "none"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "Length of the prefixes" in (tmp_path / "page.html").read_text("utf-8")
