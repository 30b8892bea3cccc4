"""Runs are found and read, in whatever state they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report.made_runs import write_grid, write_run

from diffaug.cli.report import report
from diffaug.errors import DiffaugError
from diffaug.experiments.grid import Grid, write_result
from diffaug.experiments.results import DEV, Cell, Result
from diffaug.report import build
from diffaug.report.colours import COLOURS, FAMILIES, assign
from diffaug.report.grids import read_grid
from diffaug.report.runs import Run, failure_message, find_folders, read_run


def test_runs_are_found_at_any_depth_in_the_order_people_count(tmp_path: Path) -> None:
    for name in ("seed10", "seed9", "deep/er/a", ".hidden/b", "seed9/best/inner", "seed9/checkpoints/inner"):
        write_run(tmp_path / name)
    grids, runs = find_folders(tmp_path)
    assert grids == []
    assert [str(run.relative_to(tmp_path)) for run in runs] == ["deep/er/a", "seed9", "seed10"]
    assert find_folders(tmp_path / "seed9") == ([], [tmp_path / "seed9"])


def test_a_grid_is_not_taken_apart(tmp_path: Path) -> None:
    write_grid(tmp_path / "all" / "main")
    write_run(tmp_path / "all" / "mine")
    assert find_folders(tmp_path / "all") == ([tmp_path / "all" / "main"], [tmp_path / "all" / "mine"])


def test_a_finished_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a"), "a")
    assert (run.state, run.detail, run.seconds) == ("finished", "", 125.0)
    assert run.scores["dev"] == 60.0
    assert run.before["dev"] == 40.0
    assert run.best_at == {"stage": 2, "step": 15}
    assert run.model is None


def test_a_run_that_goes_on_may_have_half_a_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"stage": 2, "st')
    assert read_run(folder, "a").detail == "stage 2, step 20"
    (folder / "checkpoints" / "stage2-step0000020").mkdir(parents=True)
    run = read_run(folder, "a")
    assert (run.state, run.detail) == ("unfinished", "stage 2, step 20, can be resumed")
    (folder / "metrics.jsonl").unlink()
    assert read_run(folder, "a").detail == "nothing logged yet, can be resumed"


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    (tmp_path / "failure.txt").write_text("the disk is full\n\nTraceback (most recent call last):\n  ...\nOSError\n")
    run = read_run(tmp_path, "a")
    assert (run.state, run.detail) == ("failed", "the disk is full")
    assert failure_message("Traceback (most recent call last):\n  x\nValueError: no\n") == "ValueError: no"
    assert failure_message("\n") == "unknown error"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("recipe.yaml", "a: [", "recipe.yaml is not valid YAML"),
        ("recipe.yaml", "just text", "recipe.yaml holds no settings"),
        ("recipe.yaml", "[" * 100_000, "recipe.yaml is nested"),
        ("recipe.yaml", "data: [a]", "data must be a group of settings"),
        ("summary.json", "{", "summary.json is not valid JSON"),
        ("metrics.jsonl", "nonsense\n{}\n", "metrics.jsonl, line 1"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    folder = write_run(tmp_path / "a")
    (folder / name).write_text(text)
    with pytest.raises(DiffaugError, match=message):
        read_run(folder, "a")


def test_a_grid_has_a_run_for_every_cell(tmp_path: Path) -> None:
    found = read_grid(write_grid(tmp_path / "grid").folder)
    assert [(run.name, run.state, run.shown) for run in found.runs] == [
        ("SimCSE, sup · setting 0 · seed 42", "finished", True),
        ("SimCSE, sup · setting 1 · seed 42", "finished", False),
        ("DiffAug, sup · setting 0 · seed 42", "finished", True),
        ("PromptBERT, sup · setting 0 · seed 42", "unfinished", False),
        ("SBERT · setting 0 · seed 42", "waiting", False),
        ("DiffAug, sup · setting 0 · seed 43", "failed", False),
    ]
    assert found.runs[-1].detail.startswith("the loss is not a finite number")
    assert found.runs[0].scores["STS-B"] == found.runs[0].result.scores["STS-B"]  # type: ignore[union-attr]


def test_colours_are_those_of_the_methods_and_no_two_families_share_one(tmp_path: Path) -> None:
    names = ["simcse-sup", "simcse-unsup", "diffaug-sup", "promptbert-sup", "other"]
    runs = [Run(tmp_path, name, "finished", recipe={"name": name}, family=name) for name in names]
    looks = assign(runs)
    assert looks[0] == (FAMILIES.index("simcse"), 0)
    assert looks[2] == (FAMILIES.index("diffaug"), 0)
    assert looks[4] == (COLOURS - 1, 0)
    assert len({colour for colour, _ in looks}) == 5
    cells = [Cell("DiffAug", column, "diffaug-sup", ()) for column in ("1 %", "10 %", "100 %", "1 %")]
    row = assign([Run(tmp_path, cell.column, "finished", cell=cell, family=cell.row) for cell in cells])
    assert row == [(0, 2), (0, 1), (0, 0), (0, 2)]
    many = assign([Run(tmp_path, str(i), "finished", recipe={"name": "diffaug"}, family=str(i)) for i in range(30)])
    assert len(set(many)) == 30


def test_no_method_takes_the_colour_of_another(tmp_path: Path) -> None:
    """With more rows than colours and dashes: the main table has thirty."""
    names = [f"{method}-{i}" for method in (*FAMILIES, "other") for i in range(8)]
    runs = [Run(tmp_path, name, "finished", recipe={"name": name}, family=name) for name in names]
    for name, (colour, _) in zip(names, assign(runs), strict=True):
        assert colour == (COLOURS - 1 if name.startswith("other") else FAMILIES.index(name[:-2])), name
    for run in runs:
        run.shown = run.name[-1] in "1357"
    drawn = [look for run, look in zip(runs, assign(runs), strict=True) if run.shown]
    assert len(set(drawn)) == len(drawn), "what is drawn at first can be told apart"


@pytest.mark.parametrize("start", [0, 1])
def test_of_many_rows_the_method_and_the_best_baselines_are_shown(tmp_path: Path, start: int) -> None:
    """All at the same column, the last one, in whatever order the runs were added."""
    columns = ["10", "100"]
    rows = [("DiffAug", False), *((f"Baseline {i:02}", True) for i in range(20))]
    cells = [
        Cell(row, column, "simcse-sup", (), group="ab"[i % 2], baseline=baseline)
        for i, (row, baseline) in enumerate(rows)
        for column in columns
    ]
    grid = Grid.begin(tmp_path / "grid", {"experiment": "low-label"}, {}, cells)
    later = [replace(cell, seed=43) for cell in cells]
    grid.add([*later[start::2], *later[1 - start :: 2]])
    for cell in grid.cells:
        score = 50.0 if cell.row == "DiffAug" else 60.0 + int(cell.row[-2:])
        write_result(grid.folder_of(cell), Result({DEV: score, "average": score}, 1.0, 1.0))
    shown = [run.cell for run in read_grid(grid.folder).runs if run.shown]
    assert {(cell.column, cell.seed) for cell in shown if cell} == {("100", 42)}
    assert [cell.row for cell in shown if cell] == ["DiffAug", *(f"Baseline {i:02}" for i in range(9, 20))]


def test_a_run_of_another_grid_says_so(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid")
    (grid.folder_of(grid.cells[0]) / "taken-over.txt").write_text("/some/where/main/cells/simcse-sup\n", "utf-8")
    assert [run.detail for run in read_grid(grid.folder).runs[:2]] == ["copied from main", ""]


def test_colours_are_those_of_the_figures() -> None:
    from diffaug.experiments.figures import style

    assert tuple(style._FAMILIES) == FAMILIES


def test_no_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match="there are no runs in"):
        build(tmp_path, tmp_path / "report.html")
    with pytest.raises(DiffaugError, match="does not exist; give a folder"):
        build(tmp_path / "nowhere", tmp_path / "report.html")
    with pytest.raises(DiffaugError, match="is a folder; name the file"):
        build(tmp_path, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run")
    report(tmp_path / "run", tmp_path / "out" / "r.html")
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'r.html'}   (0.1 MB)\n"
