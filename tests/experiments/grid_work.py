"""Grids that are run in tests: few steps of a tiny model, and what to do to their processes.

Workers import this module by its name, so it imports nothing that takes long.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterable
from itertools import cycle, islice
from pathlib import Path

from diffaug.experiments.grid import Grid, write_result
from diffaug.experiments.plan import Plan
from diffaug.experiments.results import Cell, Result
from diffaug.experiments.spec import GridSpec

ABOUT = {"title": "Made up", "columns_are": "", "notes": ["One", "Two"]}


def task_folder(folder: Path, data_files: dict[str, str]) -> Path:
    """Triplets, sentences, and STS-B dev and test with as many rows as they must have, few of them distinct."""
    folder.mkdir()
    shutil.copy(data_files["nli"], folder / "triplets.csv")
    shutil.copy(data_files["unlabelled"], folder / "sentences.txt")
    pairs = Path(data_files["dev"]).read_text("utf-8").splitlines()
    for split, rows in (("dev", 1500), ("test", 1379)):
        (folder / f"STSB.{split}.tsv").write_text("\n".join(islice(cycle(pairs), rows)) + "\n", "utf-8")
    return folder


def quick_cell(row: str, backbone: Path, data: Path, *changes: str, setting: int = 0, seed: int = 42) -> Cell:
    """A supervised run of a few steps; ``changes`` go on top."""
    settings = (
        f"model.backbone={backbone}",
        f"data.nli={data / 'triplets.csv'}",
        f"data.dev={data / 'STSB.dev.tsv'}",
        "data.max_length=16",
        "stage1.steps=2",
        "stage1.batch_size=8",
        "stage2.steps=4",
        "stage2.batch_size=8",
        "loop.eval_every=2",
        "views.length=3",
    )
    return Cell(row, "", "diffaug-sup", (*settings, *changes, f"seed={seed}"), setting=setting, seed=seed)


def made_up_cell(row: str, column: str = "", setting: int = 0, seed: int = 42, draw: int = 0) -> Cell:
    """A cell that nobody runs."""
    return Cell(row, column, "diffaug-sup", (f"seed={seed}",), setting=setting, seed=seed, draw=draw)


def finish(grid: Grid, cell: Cell, dev: float) -> None:
    """Leave a result, as a run would have."""
    write_result(grid.folder_of(cell), Result({"STS-B dev": dev, "STS-B": dev - 1, "average": dev - 1}, 1.0, 0.5))


def plan_of(cells: Iterable[Cell], seeds: tuple[int, ...] = (42, 43), *measure: str) -> Plan:
    return Plan(GridSpec("Made up", [], "made-up", measure=list(measure)), list(cells), seeds)


def kill_once(run: Path) -> None:
    """What a crash looks like: the process is gone. Only for the row `Killed`, and only the first time."""
    marker = run.parent.parent / "killed"
    if run.name.startswith("killed") and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def break_down(run: Path) -> None:
    """An error that no user can put right, for the row `Broken`."""
    if run.name.startswith("broken"):
        raise ZeroDivisionError("one by\nnothing")


def stop_the_grid(run: Path) -> None:
    """The main process is asked to stop, and this one waits to be told, the first time."""
    marker = run.parent.parent / "stopped"
    if not marker.exists():
        marker.touch()
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()
