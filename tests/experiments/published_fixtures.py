"""Tiny grids for the tests of publishing, and what must hold of any published file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from experiments.made_grids import again, begin, finish, make_cell

from diffaug.experiments.grid import TAKEN_OVER, Grid
from diffaug.experiments.publish import machine_paths, read
from diffaug.experiments.results import GIB, MINUTES, Cell, Spread


def main_grid(folder: Path, machine: Path) -> Grid:
    """A finished grid with two settings and two seeds a row; encoder and data lie on a ``machine``."""
    encoder, data = str(machine / "models" / "small"), machine / "data"
    common = (f"model.backbone={encoder}", f"data.dev={data / 'STSB.dev.tsv'}")
    untrained = Cell("No training, [CLS]", "", "untrained-cls", (*common, "seed=1"), seed=1, group="unsupervised")
    tuned = [
        make_cell(row, recipe=recipe, setting=setting, group="supervised", baseline=row.startswith("SimCSE"))
        for row, recipe in (("SimCSE, sup", "simcse-sup"), ("DiffAug, sup", "diffaug-sup"))
        for setting in (0, 1)
    ]
    tuned = [replace(cell, changes=(*common, f"data.nli={data / 'triplets.csv.xz'}", *cell.changes)) for cell in tuned]
    files = {"folder": str(data), "triplets": str(data / "triplets.csv.xz"), "dev": str(data / "STSB.dev.tsv")}
    request = {
        "experiment": "main",
        "encoder": encoder,
        "data": files,
        "seeds": [1, 2],
        "draws": 1,
        "changes": ["loop.eval_every=50"],
        "budget": {"name": "small"},
    }
    about = {"title": "A table", "columns_are": "", "notes": ["Made by hand"]}
    grid = Grid.begin(folder, request, about, [replace(untrained, baseline=True), *tuned])
    finish(grid, untrained, 3.0, dev=40.0)
    for cell, dev in zip(tuned, (70.0, 72.0, 76.0, 75.0), strict=True):
        finish(grid, cell, 2.0 if cell.baseline else 1.0, dev)
    grid.add([again(tuned[1], 2), again(tuned[2], 2)])
    finish(grid, again(tuned[1], 2), 2.0, dev=71.0)
    finish(grid, again(tuned[2], 2), 1.0, dev=77.5)
    (grid.folder_of(tuned[0]) / TAKEN_OVER).write_text(f"{machine / 'grids' / 'other' / 'cells' / 'x'}\n", "utf-8")
    return grid


def few_grid(folder: Path) -> Grid:
    """A finished grid of few labels, with an encoder that the paper has figures for."""
    rows = (("SimCSE, sup", "simcse-sup", True), ("DiffAug, sup", "diffaug-sup", False))
    cells = [
        make_cell(row, column, recipe, group="supervised", baseline=baseline)
        for row, recipe, baseline in rows
        for column in ("2,756", "27,560")
    ]
    grid = begin(
        folder, cells, "low-label", encoder="bert-base-uncased", seeds=(1, 2), draws=1, columns_are="labelled examples"
    )
    grid.add(again(cell, 2) for cell in cells)
    for cell in grid.cells:
        noise = (1.0 if cell.column == "2,756" else 0.5) + (1.5 if cell.baseline else 0.0)
        finish(grid, cell, noise, dev=70.0 - noise)
    return grid


def check_file(file: Path) -> None:
    """Means, differences and choices are those of the runs beside them, and no path of a machine is published."""
    values = json.loads(file.read_text("utf-8"))
    assert list(machine_paths(values)) == []
    summary = read(file).summary
    for entry in summary.entries:
        runs = [{**run.result.scores, MINUTES: run.result.seconds / 60, GIB: run.result.gib} for run in entry.runs]
        for name, value in entry.values.items():
            found = Spread.of([run[name] for run in runs if name in run])
            assert (value.mean, value.count) == (pytest.approx(found.mean, abs=1e-5), found.count), entry.place
            assert (value.deviation is None) == (found.deviation is None), entry.place
            assert value.deviation == (found.deviation and pytest.approx(found.deviation, abs=1e-5)), entry.place
    for entry in values["entries"]:
        tried = [setting["dev"] for setting in entry["settings"] if setting["dev"] is not None]
        if entry["chosen"] is not None:
            assert entry["settings"][entry["chosen"]]["dev"] == max(tried), entry["row"]
    means = {(e["group"], e["row"], e["column"]): e["scores"] for e in values["entries"]}
    for entry in (e for e in values["entries"] if e["test"] is not None):
        against = entry["test"]["against"]
        for name, found in entry["test"]["scores"].items():
            mine = means[entry["group"], entry["row"], entry["column"]][name]["mean"]
            theirs = means[entry["group"], against["row"], against["column"]][name]["mean"]
            assert found["difference"] == pytest.approx(mine - theirs, abs=1e-5), entry["row"]
