"""`diffaug grid`: a grid of one's own recipes, data and tasks."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from diffaug.cli import app
from diffaug.errors import DiffaugError
from diffaug.experiments import executor
from diffaug.experiments.grid import Grid
from diffaug.experiments.results import Summary
from diffaug.experiments.summary import summarise
from diffaug.experiments.tables import to_dict


@pytest.fixture
def spec(tiny_bert: Path, data_files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two recipe files that differ in their template, two temperatures, one's own dev pairs and task."""
    monkeypatch.setattr(executor, "_PROCESSES", multiprocessing.get_context("fork"))
    for name, template in (("short", "{} [MASK]"), ("long", 'This sentence: "{}" means [MASK].')):
        recipe = {
            "extends": "promptbert-sup",
            "name": name,
            "model": {"backbone": str(tiny_bert), "template": template},
            "data": {"nli": data_files["nli"], "max_length": 16},
            "stage2": {"steps": 2, "batch_size": 8},
            "loop": {"eval_every": 2},
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    path = tmp_path / "templates.yaml"
    values = {
        "title": "Templates",
        "data": {"dev": data_files["dev"]},
        "tasks": {"Mine": data_files["dev"], "Other": data_files["dev"]},
        "seeds": 1,
        "rows": [
            {"name": "Short", "recipe": str(tmp_path / "short.yaml")},
            {"name": "Long", "recipe": str(tmp_path / "long.yaml"), "baseline": False},
        ],
        "columns": {"setting": "stage2.temperature", "values": [0.05, 0.5], "name": "temperature"},
    }
    path.write_text(yaml.safe_dump(values), "utf-8")
    return path


def run(spec: Path, *arguments: str, code: int = 0) -> str:
    out = str(spec.parent / "grid")
    done = CliRunner().invoke(app, ["grid", str(spec), "--out", out, *arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def change(spec: Path, **values: object) -> None:
    spec.write_text(yaml.safe_dump({**yaml.safe_load(spec.read_text("utf-8")), **values}), "utf-8")


def test_own_recipes_at_several_values_of_a_setting_on_own_tasks(spec: Path) -> None:
    output = run(spec, "--quiet")
    grid = Grid.open(spec.parent / "grid")
    results = {cell.place: (cell, result) for cell, result in grid.results()}
    assert list(results) == [(row, column) for row in ("Short", "Long") for column in ("0.05", "0.5")]
    for (_, column), (cell, result) in results.items():
        assert f"stage2.temperature={column}" in cell.changes
        assert result.scores["Mine"] == result.scores["average"] == pytest.approx(result.scores["STS-B dev"], abs=0.01)
    assert "Average by temperature" in output
    assert "The average is over Mine, Other." in output.replace("\n", " ")
    assert "temperature: against Short" in output
    assert "STS-B" not in output, "the dev pairs are one's own"
    assert (grid.folder / "tables" / "templates.md").is_file()
    assert (grid.folder / "figures" / "templates.png").is_file()
    assert "4 finished, 0 failed, 0 to do." in run(spec, "--dry-run")
    # Everything that is shown can be read from the table's file.
    written = json.loads((grid.folder / "tables" / "templates.json").read_text("utf-8"))
    again = Summary.from_dict(written)
    assert again.spec == summarise(grid).spec
    assert to_dict(again)["entries"] == written["entries"]

    # Another row may be added to the grid, and its runs alone are left to do.
    rows = yaml.safe_load(spec.read_text("utf-8"))["rows"]
    change(spec, rows=[*rows, {**rows[0], "name": "Third", "changes": ["stage2.steps=1"]}])
    assert "4 finished, 0 failed, 2 to do." in run(spec, "--dry-run")
    # Rows that were run cannot be changed.
    change(spec, rows=[{**rows[0], "changes": ["stage2.steps=1"]}, rows[1]])
    with pytest.raises(DiffaugError, match="started with other cells"):
        run(spec)


def test_only_the_rows_that_were_asked_for_are_run_and_shown(spec: Path) -> None:
    output = run(spec, "--only", "Long", "--column", "0.05", "--quiet")
    assert "Short" not in output
    grid = Grid.open(spec.parent / "grid")
    assert [cell.place for cell, _ in grid.results()] == [("Long", "0.05")]
    assert {cell.row for cell in grid.first} == {"Short", "Long"}
    table = (grid.folder / "tables" / "templates.md").read_text("utf-8")
    assert "Long" in table
    assert "Short" not in table


def test_columns_may_be_parts_of_the_labels(spec: Path) -> None:
    change(spec, columns={"labels": ["25 %", "100 %"]}, draws=2)
    output = run(spec, "--dry-run")
    assert "Short  25 %" in output
    assert "There are 40 labelled examples." in output
    assert "6 runs: 4 to try every setting once, 2 to repeat" in output


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rows": []}, "at least one row"),
        ({"row": []}, "did you mean 'rows'"),
        ({"rows": [{"name": "A", "recipe": "sbert"}] * 2}, "two rows are called 'A'"),
        ({"rows": [{"name": "A", "recipe": "sbrt"}]}, "no recipe 'sbrt'; did you mean 'sbert'"),
        ({"rows": [{"name": "A", "recipe": "sbert", "changes": ["seed"]}]}, "must be key=value"),
        ({"columns": {"values": [1]}}, "either setting and values, or labels"),
        ({"columns": {"setting": "stage2.temperatur", "values": [1]}}, "did you mean 'temperature'"),
        ({"tables": ["score"]}, "does not fit"),
        ({"seeds": 0}, "must be at least 1"),
        ({"tasks": {"STS12": "x.tsv"}}, "needs another name"),
        ({"tasks": {}}, "no task to score models on: none of STS12, .* was given"),
        ({"measure": ["weight"]}, "or module:function, got 'weight'"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(values: dict[str, object], words: str, spec: Path) -> None:
    change(spec, **values)
    with pytest.raises(DiffaugError, match=words):
        run(spec)
    assert not (spec.parent / "grid" / "cells").exists()
