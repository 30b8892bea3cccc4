"""A grid's folder: what is asked for again is continued, and what is in it decides what is chosen."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from grid_work import ABOUT, finish, made_up_cell

from diffaug.errors import DiffaugError
from diffaug.experiments.grid import Grid
from diffaug.experiments.results import Cell

REQUEST = {"experiment": "main", "encoder": "embedded", "seeds": (42, 43), "changes": ()}


@pytest.fixture
def cells() -> list[Cell]:
    return [
        made_up_cell(row, column, setting) for row in ("A", "B, sup") for column in ("", "1 %") for setting in (0, 1)
    ]


@pytest.fixture
def grid(tmp_path: Path, cells: list[Cell]) -> Grid:
    return Grid.begin(tmp_path / "grid", REQUEST, ABOUT, cells)


def test_what_was_written_is_read(grid: Grid, cells: list[Cell]) -> None:
    more = [made_up_cell("A", seed=43), made_up_cell("A", seed=44)]
    assert grid.add(more) == more
    assert grid.add(more) == []
    found = Grid.open(grid.folder)
    assert found.first == cells
    assert found.more == more
    assert found.cells == [*cells, *more]
    assert found.plan_info == {**REQUEST, "seeds": [42, 43], "changes": [], **ABOUT}


def test_the_same_again_continues_and_anything_else_says_what_differs(grid: Grid, cells: list[Cell]) -> None:
    grid.add([made_up_cell("A", seed=43)])
    again = Grid.begin(grid.folder, REQUEST, ABOUT, list(reversed(cells)))
    assert len(again.more) == 1
    with pytest.raises(DiffaugError, match=r"another grid: encoder was \"embedded\", is \"x\"; draws was null, is 2"):
        Grid.begin(grid.folder, {**REQUEST, "encoder": "x", "draws": 2}, ABOUT, cells)
    with pytest.raises(DiffaugError, match=r"other cells .* a_setting7_draw0_seed42"):
        Grid.begin(grid.folder, REQUEST, ABOUT, [*cells[1:], made_up_cell("A", setting=7)])


def test_a_grid_that_was_moved_finds_what_it_made_and_goes_on(tmp_path: Path) -> None:
    def cells(folder: Path) -> list[Cell]:
        made, elsewhere = folder / "data" / "target.txt", tmp_path / "other" / "data" / "nli.csv"
        changes = (f"data.unlabelled={made}", f"data.nli={elsewhere}")
        return [replace(made_up_cell("A"), changes=changes)]

    before, after = tmp_path / "before", tmp_path / "after"
    (before / "data").mkdir(parents=True)
    (before / "data" / "target.txt").write_text("A sentence.\n")
    Grid.begin(before, REQUEST, ABOUT, cells(before)).add([replace(cells(before)[0], seed=43)])
    before.rename(after)
    moved = Grid.begin(after, REQUEST, ABOUT, cells(after))
    assert moved.first == cells(after)
    assert moved.more == [replace(cells(after)[0], seed=43)]


def test_how_a_cell_differs_is_said(grid: Grid, cells: list[Cell]) -> None:
    other = replace(cells[0], changes=("stage2.steps=300",))
    then = " ".join(sorted(cells[0].changes))
    with pytest.raises(DiffaugError, match=rf"{cells[0].name}, {re.escape(then)} then, stage2.steps=300 now\)"):
        Grid.begin(grid.folder, REQUEST, ABOUT, [other, *cells[1:]])


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, cells: list[Cell]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DiffaugError, match="is not empty and holds no grid"):
        Grid.begin(tmp_path, REQUEST, ABOUT, cells)
    with pytest.raises(DiffaugError, match="is a file"):
        Grid.begin(tmp_path / "notes.txt", REQUEST, ABOUT, cells)
    with pytest.raises(DiffaugError, match=r"holds no grid"):
        Grid.open(tmp_path)


def test_data_that_a_plan_has_made_there_may_be_in_the_folder(tmp_path: Path, cells: list[Cell]) -> None:
    (tmp_path / "data").mkdir()
    assert Grid.begin(tmp_path, REQUEST, ABOUT, cells).first == cells


CELL = '{"row": ["a"], "column": "", "recipe": "diffaug-sup", "changes": []}'


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format_version": 1}',
        '{"format_version": 2}',
        "[" * 100_000,
        f'{{"format_version": 1, "request": {{}}, "about": {{}}, "first": [{CELL}], "more": []}}',
    ],
)
def test_a_damaged_folder_is_an_error_in_words(grid: Grid, text: str) -> None:
    (grid.folder / "grid.json").write_text(text, "utf-8")
    with pytest.raises(DiffaugError, match=r"damaged|format version 2"):
        Grid.open(grid.folder)


@pytest.mark.parametrize(
    "text",
    [
        '{"scores": {"STS-B',
        "[]",
        "null",
        "[" * 100_000,
        '{"scores": 5, "seconds": 1, "gib": 1}',
        '{"scores": {}, "seconds": 1, "gib": 1}',
        '{"scores": {"STS-B dev": "high"}, "seconds": 1, "gib": 1}',
        '{"scores": {"STS-B dev": 1}, "seconds": null, "gib": 1}',
        '{"scores": {"STS-B dev": 1}, "seconds": 1, "gib": 1, "machine": []}',
    ],
)
def test_a_damaged_result_is_named(grid: Grid, cells: list[Cell], text: str) -> None:
    finish(grid, cells[0], 80)
    path = grid.folder_of(cells[0]) / "result.json"
    path.write_text(text, "utf-8")
    with pytest.raises(DiffaugError, match=r"result\.json is damaged"):
        grid.results()


def test_two_cells_in_one_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DiffaugError, match="a-b_setting0"):
        Grid.begin(tmp_path / "grid", REQUEST, ABOUT, [made_up_cell("A b"), made_up_cell("a-B")])


def test_the_best_setting_on_dev_is_chosen_once_all_are_over(grid: Grid, cells: list[Cell]) -> None:
    a0, a1, *_, b0, b1 = cells
    finish(grid, a0, 70.0)
    assert grid.chosen() == {}
    finish(grid, a1, 71.0)
    assert grid.chosen() == {("A", ""): 1}
    assert grid.best(("A", "")) == a1
    finish(grid, b0, 60.0)
    grid.fail(b1, "too hot\n\nTraceback ...")
    assert grid.chosen() == {("A", ""): 1, ("B, sup", "1 %"): 0}
    assert grid.failures() == [(b1, "too hot\n\nTraceback ...\n")]
    assert [cell for cell, _ in grid.results()] == [a0, a1, b0]
    grid.forget_failure(b1)
    assert grid.chosen() == {("A", ""): 1}
    finish(grid, b1, 60.0)
    assert grid.chosen()["B, sup", "1 %"] == 0, "of equal ones the first"


def test_a_cell_that_finished_after_all_is_no_failure(grid: Grid, cells: list[Cell]) -> None:
    grid.fail(cells[0], "no luck")
    finish(grid, cells[0], 70.0)
    assert grid.failures() == []


def test_where_all_settings_failed_none_is_chosen(grid: Grid, cells: list[Cell]) -> None:
    for cell in cells[:2]:
        grid.fail(cell, "no luck")
    assert grid.chosen() == {}


def test_one_process_at_a_time(grid: Grid) -> None:
    with (
        grid.locked(),
        pytest.raises(DiffaugError, match="another process is working"),
        Grid.open(grid.folder).locked(),
    ):
        pass
    # A worker that outlives its parent keeps others away, too.
    with Grid.worker_lock(grid.folder), pytest.raises(DiffaugError, match="another process"), grid.locked():
        pass
    with grid.locked(), Grid.worker_lock(grid.folder):
        pass


def test_of_two_that_begin_together_one_grid_is_there(
    tmp_path: Path, cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found the folder empty; the other one writes its grid before this one does."""
    folder, mkdir = tmp_path / "grid", Path.mkdir
    other = {**REQUEST, "encoder": "x"}

    def late(path: Path, *arguments: object, **named: object) -> None:
        if path == folder and not folder.exists():
            mkdir(folder)
            Grid.begin(folder, other, ABOUT, cells)
        mkdir(path, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", late)
    with pytest.raises(DiffaugError, match="another grid: encoder was"):
        Grid.begin(folder, REQUEST, ABOUT, cells)
    assert Grid.open(folder).request["encoder"] == "x"


def test_a_grid_that_is_being_run_is_not_begun_anew(tmp_path: Path, cells: list[Cell]) -> None:
    grid = Grid.begin(tmp_path / "grid", REQUEST, ABOUT, cells)
    with grid.locked():
        (grid.folder / "grid.json").unlink()
        with pytest.raises(DiffaugError, match="another process is working"):
            Grid.begin(grid.folder, {**REQUEST, "encoder": "x"}, ABOUT, cells)


def test_who_comes_in_knows_what_was_done_since_the_grid_was_read(grid: Grid, cells: list[Cell]) -> None:
    late = Grid.open(grid.folder)
    more = [made_up_cell("A", seed=43)]
    with grid.locked():
        grid.add(more)
    with late.locked():
        assert late.more == more
        late.add([made_up_cell("A", seed=44)])
    assert Grid.open(grid.folder).more == [*more, made_up_cell("A", seed=44)]
    changed = json.loads((grid.folder / "grid.json").read_text("utf-8"))
    changed["request"]["encoder"] = "x"
    (grid.folder / "grid.json").write_text(json.dumps(changed), "utf-8")
    with pytest.raises(DiffaugError, match="another grid: encoder was"), late.locked():
        pytest.fail("the block must not run")


def test_a_result_holds_numbers_only(grid: Grid, cells: list[Cell]) -> None:
    with pytest.raises(ValueError, match="JSON"):
        finish(grid, cells[0], float("nan"))
    assert grid.result(cells[0]) is None
    finish(grid, cells[0], 1.5)
    assert json.loads((grid.folder_of(cells[0]) / "result.json").read_text())["scores"]["STS-B"] == 0.5
