"""The tables of pages: made from kept grids, between two comments."""

from __future__ import annotations

from pathlib import Path

import pytest
from published_fixtures import few_grid, main_grid

from diffaug.errors import DiffaugError
from diffaug.experiments.grid import Grid
from diffaug.experiments.publish import checked, filled, page_table, read, refresh, write
from diffaug.experiments.results import AVERAGE
from diffaug.experiments.summary import summarise
from diffaug.experiments.tables import parts
from diffaug.tabular import markdown

START = "<!-- from results/reproduce-main-small.json: overview -->"


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return main_grid(tmp_path / "grids" / "mine", tmp_path / "machine")


@pytest.fixture
def root(tmp_path: Path, grid: Grid) -> Path:
    """A repository with a kept grid, and two pages that show it."""
    write(checked(grid.folder), tmp_path / "results" / "reproduce-main-small.json")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"# Title\n\n{START}\nold\n<!-- end -->\n\nText.\n", "utf-8")
    (tmp_path / "docs" / "a.md").write_text(f"{START}\n<!-- end -->\n", "utf-8")
    return tmp_path


def test_the_overview_of_methods(grid: Grid, tmp_path: Path) -> None:
    lines = page_table(read(write(checked(grid.folder), tmp_path / "x.json")), "overview")
    untrained, simcse, diffaug = summarise(grid).entries
    average = {entry.row: entry.values[AVERAGE] for entry in (untrained, simcse, diffaug)}
    assert diffaug.test is not None
    lead, one, other = diffaug.test.average.difference, average["SimCSE, sup"], average["DiffAug, sup"]
    assert lines[:9] == [
        "**Overview**",
        "",
        "| row | labels | average of 3 of 7 | against | STS-B dev | tried |",
        "| :-- | :-- | --: | --: | --: | --: |",
        "| *unsupervised* |  |  |  |  |  |",
        f"| No training, [CLS] | none | {average['No training, [CLS]'].mean:.2f} | baseline | 40.00 | 1 |",
        "| *supervised: against SimCSE, sup* |  |  |  |  |  |",
        f"| SimCSE, sup | triplets | {one.mean:.2f} ±{one.deviation:.2f} | baseline | 71.50 ±0.71 | 2 |",
        f"| DiffAug, sup | triplets | **{other.mean:.2f} ±{other.deviation:.2f}** | {lead:+.2f}\\* | 76.75 ±1.06 | 2 |",
    ]
    assert "sample standard deviation (n - 1) over up to 2 seeds" in lines[-1]
    assert "3 of the 7 tasks" in lines[-1]
    assert "the 95 % interval of a paired bootstrap" in lines[-1]


def test_the_overview_of_columns(tmp_path: Path) -> None:
    grid = few_grid(tmp_path / "few")
    lines = page_table(read(write(checked(grid.folder), tmp_path / "x.json")), "overview")
    found = {(entry.row, entry.column): entry for entry in summarise(grid).entries}
    cells = {place: f"{e.values[AVERAGE].mean:.2f} ±{e.values[AVERAGE].deviation:.2f}" for place, e in found.items()}
    assert lines[:7] == [
        "**Average of 3 of 7 by labelled examples**",
        "",
        "| row | 2,756 | 27,560 |",
        "| :-- | --: | --: |",
        "| *supervised* |  |  |",
        f"| SimCSE, sup | {cells['SimCSE, sup', '2,756']}° | {cells['SimCSE, sup', '27,560']}° |",
        f"| DiffAug, sup | **{cells['DiffAug, sup', '2,756']}↑** | **{cells['DiffAug, sup', '27,560']}↑** |",
    ]
    assert "° the baseline" in lines[-1].replace(":", "")


def test_other_tables_are_the_librarys_own(tmp_path: Path) -> None:
    grid = few_grid(tmp_path / "few")
    kept = read(write(checked(grid.folder), tmp_path / "x.json"))
    keys = [part.key for part in parts(summarise(grid))]
    assert keys == ["scores", "tests", "lead", "settings"]
    for part in parts(summarise(grid)):
        assert page_table(kept, part.key)[:-2] == markdown(part.section)
    with pytest.raises(DiffaugError, match="no table 'rows'; it has overview, scores, tests, lead, settings"):
        page_table(kept, "rows")


def test_a_grid_with_gaps_says_so_wherever_it_is_shown(grid: Grid, tmp_path: Path) -> None:
    (grid.folder_of(grid.more[0]) / "result.json").unlink()
    kept = read(write(checked(grid.folder, gaps=True), tmp_path / "x.json"))
    for table in ("overview", "scores", "settings"):
        assert page_table(kept, table)[0].startswith(
            "**Not complete.** 1 planned run not finished: simcse-sup_setting1"
        )
    assert any(line.startswith("| SimCSE, sup† | ") for line in page_table(kept, "overview"))


def test_blocks_are_filled_and_the_rest_stays(root: Path) -> None:
    changed = refresh(root)
    assert changed == [root / "README.md", root / "docs" / "a.md"]
    table = page_table(read(root / "results" / "reproduce-main-small.json"), "overview")
    link = "From [`reproduce-main-small.json`]({}results/reproduce-main-small.json)."
    assert (root / "README.md").read_text("utf-8").splitlines() == [
        *("# Title", "", START, "", *table, "", link.format(""), "", "<!-- end -->", "", "Text.")
    ]
    assert link.format("../") in (root / "docs" / "a.md").read_text("utf-8")
    assert refresh(root) == []


def test_a_number_that_was_typed_is_put_right(root: Path) -> None:
    refresh(root)
    page = root / "docs" / "a.md"
    text = page.read_text("utf-8")
    page.write_text(text.replace("71.50", "81.50"), "utf-8")
    assert filled(page, root) == text != page.read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (START, "a.md, line 2: the table has no end"),
        (f"{START}\n{START}\n<!-- end -->", "line 2: another table begins"),
        ("<!-- from results/none.json: overview -->\n<!-- end -->", "none.json is not a published grid"),
        ("<!-- from results/reproduce-main-small.json: lead -->\n<!-- end -->", "no table 'lead'"),
    ],
)
def test_a_block_that_cannot_be_made(text: str, words: str, root: Path) -> None:
    (root / "docs" / "a.md").write_text(f"\n{text}\n", "utf-8")
    before = (root / "README.md").read_text("utf-8")
    with pytest.raises(DiffaugError, match=words):
        refresh(root)
    assert (root / "README.md").read_text("utf-8") == before
