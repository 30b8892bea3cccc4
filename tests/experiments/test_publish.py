"""Publishing a grid: what is kept is what was found, says what it lacks, and tells nothing about a machine."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published_fixtures import check_file, few_grid, main_grid

from diffaug.errors import DiffaugError
from diffaug.experiments.data import change
from diffaug.experiments.grid import Grid
from diffaug.experiments.publish import (
    base_name,
    checked,
    incomplete,
    machine_paths,
    publish,
    publish_figure,
    read,
    unpack,
    without_paths,
    write,
)
from diffaug.experiments.results import DEV, Spread
from diffaug.experiments.summary import summarise
from diffaug.experiments.tables import render, to_dict


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return main_grid(tmp_path / "grids" / "mine", tmp_path / "machine")


def kept(grid: Grid, folder: Path) -> Path:
    """The file of a grid that is complete."""
    return write(checked(grid.folder), folder / "kept.json")


def test_all_tables_can_be_made_again(tmp_path: Path) -> None:
    for grid in (main_grid(tmp_path / "mine", tmp_path / "machine"), few_grid(tmp_path / "few")):
        text = render(summarise(grid), "markdown")
        again = render(read(kept(grid, tmp_path)).summary, "markdown")
        for path, name in ((tmp_path / "machine/models/small", "small"), (tmp_path / "machine/grids/other", "other")):
            text = text.replace(str(path), name)
        assert again == text
        assert ("| paper |" in text) == (grid.request["experiment"] == "low-label")


def test_everything_found_is_there(tmp_path: Path) -> None:
    grid = few_grid(tmp_path / "few")
    summary = read(kept(grid, tmp_path)).summary
    mine, theirs = to_dict(summary), to_dict(summarise(grid))
    for entry in (*mine["entries"], *theirs["entries"]):
        for run in entry["runs"]:  # the commands can be put together from what is kept, but are not kept
            del run["changes"], run["command"]
    for part in ("entries", "leads"):  # differences of numbers with six places may differ in the last
        assert _rounded(mine[part]) == _rounded(theirs[part])
    assert mine["machines"] == theirs["machines"]
    assert len(mine["leads"]) == 1


def test_several_folders_and_files_are_named_one_by_one(grid: Grid, tmp_path: Path) -> None:
    data = tmp_path / "machine" / "data"
    files = [str(data / name) for name in ("snli_1.0_train.jsonl", "multinli_1.0_train.jsonl.gz")]
    grid.request["data"] |= {"folder": [str(data), str(tmp_path / "machine" / "more")], "pairs": files}
    grid.first[1] = replace(grid.first[1], changes=(*grid.first[1].changes, change("data.nli", files)))
    grid._write()
    values = checked(grid.folder, "a toy")
    assert "--data data --data more" in values["command"]
    assert "--pairs snli_1.0_train.jsonl --pairs multinli_1.0_train.jsonl.gz" in values["command"]
    assert list(machine_paths(values)) == []


def _rounded(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _rounded(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_rounded(value) for value in values]
    return round(values, 4) if isinstance(values, float) else values


def test_the_file_says_how_it_was_made_and_what_was_tried(grid: Grid, tmp_path: Path) -> None:
    values = checked(grid.folder, "a toy")
    assert json.loads(kept(grid, tmp_path).read_text("utf-8")) == {**values, "about": ""}
    assert values["about"] == "a toy"
    assert shlex.split(values["command"]) == [
        *("diffaug", "reproduce", "main", "--encoder", "small", "--data", "data"),
        *("--triplets", "triplets.csv.xz", "--dev", "STSB.dev.tsv", "--seeds", "2", "--draws", "1"),
        *("--budget", "small", "--set", "loop.eval_every=50", "--out", "mine", "--reuse", "other"),
    ]
    assert values["incomplete"] == []
    assert values["machines"] == [{"device": "cpu", "torch": "2.13.0"}]
    assert values["taken_over"] == {"other": 1}
    assert values["notes"] == ["Made by hand"]
    untrained, simcse, diffaug = values["entries"]
    assert [entry["labels"] for entry in values["entries"]] == [None, "triplets", "triplets"]
    assert simcse["recipe"] == "simcse-sup"
    assert simcse["changes"] == ["model.backbone=small", "data.dev=STSB.dev.tsv", "data.nli=triplets.csv.xz"]
    assert simcse["settings"] == [
        {"changes": "stage2.learning_rate=1e-5", "dev": 70.0},
        {"changes": "stage2.learning_rate=2e-5", "dev": 72.0},
    ]
    assert (simcse["chosen"], diffaug["chosen"], untrained["chosen"]) == (1, 0, 0)
    assert [(run["seed"], run["draw"], run["scores"][DEV]) for run in diffaug["runs"]] == [(1, 0, 76.0), (2, 0, 77.5)]
    assert diffaug["scores"][DEV]["mean"] == Spread.of([76.0, 77.5]).mean
    assert diffaug["test"]["against"] == {"row": "SimCSE, sup", "column": ""}


def test_a_kept_file_holds_together_and_one_that_was_edited_does_not(grid: Grid, tmp_path: Path) -> None:
    file = kept(grid, tmp_path)
    check_file(file)
    text = file.read_text("utf-8")
    for was, becomes in (
        ('"mean": 76.75', '"mean": 77.75'),
        ('"dev": 70.0', '"dev": 80.0'),
        ('"data.nli=', '"data.nli=/x/'),
    ):
        assert was in text
        file.write_text(text.replace(was, becomes), "utf-8")
        with pytest.raises(AssertionError):
            check_file(file)


def test_several_grids_are_published_together(grid: Grid, tmp_path: Path) -> None:
    few, root = few_grid(tmp_path / "few"), tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    for page in ("README.md", "docs/a.md"):
        (root / page).write_text("Text.\n", "utf-8")
    start = "<!-- from benchmarks/results/reproduce-main-tiny.json: overview -->"
    (root / "docs" / "a.md").write_text(f"{start}\n<!-- end -->\n", "utf-8")
    results = root / "benchmarks" / "results"
    files = [results / "reproduce-main-tiny.json", results / "reproduce-low-label-tiny.json"]
    assert publish([grid.folder, few.folder], "tiny", docs=True, root=root) == [*files, root / "docs" / "a.md"]
    assert publish([grid.folder, few.folder], root=root) == [
        results / "reproduce-main-small.json",
        results / "reproduce-low-label-bert-base-uncased.json",
    ]


def test_of_several_grids_one_that_is_refused_keeps_back_all(grid: Grid, tmp_path: Path) -> None:
    few, root = few_grid(tmp_path / "few"), tmp_path / "root"
    with pytest.raises(DiffaugError, match="would both be reproduce-main-small; give them different --name"):
        publish([grid.folder, grid.folder], root=root)
    _lose(few)
    with pytest.raises(DiffaugError, match="few is not complete"):
        publish([grid.folder, few.folder], root=root)
    assert not root.exists()
    assert len(publish([grid.folder, few.folder], gaps=True, root=root)) == 2


def test_a_name_for_files() -> None:
    assert base_name("sentence-transformers/All MiniLM_L6") == "all-minilm-l6"


def _fail(grid: Grid) -> None:
    cell = grid.more[0]
    (grid.folder_of(cell) / "result.json").unlink()
    grid.fail(cell, "it collapsed\nTraceback ...")


def _lose(grid: Grid) -> None:
    (grid.folder_of(grid.more[0]) / "result.json").unlink()


def _lose_a_setting(grid: Grid) -> None:
    cell = grid.first[1]
    (grid.folder_of(cell) / "result.json").unlink()
    grid.fail(cell, "it collapsed")


def _lose_similarities(grid: Grid) -> None:
    (grid.folder_of(grid.more[0]) / "similarities.npz").unlink()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_fail, "1 run failed: simcse-sup_setting1_draw0_seed2"),
        (_lose, "1 planned run not finished: simcse-sup_setting1_draw0_seed2"),
        (_lose, r"1 row with fewer runs than asked for: SimCSE, sup \(1 of 2\)"),
        (_lose_a_setting, r"1 row with settings that were not tried: SimCSE, sup \(1 of 2\)"),
        (_lose_similarities, "1 comparison not made: DiffAug, sup against SimCSE, sup"),
    ],
)
def test_a_grid_with_gaps_is_refused_unless_it_may_have_them(harm: Any, words: str, grid: Grid, tmp_path: Path) -> None:
    harm(grid)
    with pytest.raises(DiffaugError, match=words):
        checked(grid.folder)
    values = checked(grid.folder, gaps=True)
    assert values["incomplete"] == incomplete(summarise(grid)) != []
    assert render(unpack(values).summary, "markdown").count("†") == render(summarise(grid), "markdown").count("†")


def test_a_path_that_is_left_is_refused(grid: Grid, tmp_path: Path) -> None:
    cell = grid.more[0]
    (grid.folder_of(cell) / "result.json").unlink()
    grid.fail(cell, "the disk is full: /mnt/scratch/tmp")
    with pytest.raises(DiffaugError, match=r"failures\.0\.why would publish a path of this machine.*/mnt/scratch"):
        checked(grid.folder, gaps=True)


def test_known_paths_become_names_and_nothing_else_does(grid: Grid, tmp_path: Path) -> None:
    assert str(tmp_path) not in kept(grid, tmp_path).read_text("utf-8")
    known = {"/a/d": "d", "/a/d/x.txt": "x.txt", "sets/nli": "nli"}
    before = ["/a/d", "in /a/d/x.txt.", "k=/a/d/y", "/a/data", "b/a/d", {"/a/d": 1.5}, "hub/model", "my sets/nli"]
    after = ["d", "in x.txt.", "k=d/y", "/a/data", "b/a/d", {"d": 1.5}, "hub/model", "my nli"]
    assert without_paths(before, known) == after


@pytest.mark.parametrize(
    ("text", "is_path"),
    [
        ("/srv/x", True),
        ("k=/x", True),
        ('k="/x y"', True),
        ("in (/srv/a)", True),
        ("~/x", True),
        ("~me/x", True),
        ("C:\\x", True),
        ("see file:///x", True),
        ("owner/name", False),
        ("grids/main", False),
        ("and / or", False),
        ("https://example.org/x", False),
        ("hub:owner/name", False),
        ("3 of 7; 1e-5", False),
    ],
)
def test_what_a_path_of_a_machine_looks_like(text: str, is_path: bool) -> None:
    assert bool(list(machine_paths({"a": [text]}))) == is_path
    assert bool(list(machine_paths({text: 1}))) == is_path


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"format_version": 99}', "utf-8")
    with pytest.raises(DiffaugError, match="not a published grid"):
        read(tmp_path / "x.json")
    with pytest.raises(DiffaugError, match="not a published grid"):
        read(tmp_path / "none.json")


def test_the_figure_is_drawn_from_the_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = publish_figure(few_grid(tmp_path / "few").folder, tmp_path / "assets" / "x.png")
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in figure.parent.iterdir()] == [figure.name]
