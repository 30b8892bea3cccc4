"""The tables of grids made by hand, letter by letter."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_grids import Array, again, begin, finish, gold, keep, make_cell

from diffaug.config import load_recipe
from diffaug.errors import DiffaugError
from diffaug.experiments.grid import Grid
from diffaug.experiments.results import DEV, Cell
from diffaug.experiments.summary import summarise
from diffaug.experiments.tables import notes, parts, render
from diffaug.tabular import Section


def right(task: str) -> Array:
    """Cosines with a score of 100, on every resample."""
    return gold(task)


def wrong(task: str) -> Array:
    """Cosines with a score of -100."""
    return -gold(task)


@pytest.fixture(scope="module")
def main_grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """A row without training, a baseline with all its runs, a method of which a setting failed and a seed is left."""
    untrained = Cell(
        "No training, [CLS]", "", "untrained-cls", ("seed=1",), seed=1, group="unsupervised", baseline=True
    )
    simcse = [make_cell("SimCSE, sup", setting=i, group="supervised", baseline=True) for i in (0, 1)]
    diffaug = [make_cell("DiffAug, sup", recipe="diffaug-sup", setting=i, group="supervised") for i in (0, 1)]
    grid = begin(tmp_path_factory.mktemp("grids") / "main", [untrained, *simcse, *diffaug])
    finish(grid, untrained, right, dev=40.0)
    finish(grid, simcse[0], right, dev=70.0)
    finish(grid, simcse[1], wrong, dev=71.0)
    finish(grid, diffaug[0], right, dev=75.0)
    grid.fail(diffaug[1], "it collapsed\nTraceback ...")
    grid.add(again(cell, seed) for cell in (simcse[1], diffaug[0]) for seed in (2, 3))
    finish(grid, again(simcse[1], 2), wrong, dev=72.0)
    finish(grid, again(simcse[1], 3), right, dev=73.0)
    finish(grid, again(diffaug[0], 2), right, dev=77.0)
    return grid


SCORES_CAPTION = (
    "sample standard deviation (n - 1) over up to 3 seeds. Bold: the highest mean of its group. The average is over "
    "STS12, STS14, STS-B: 3 of the 7 tasks that papers average over."
)


def test_markdown(main_grid: Grid) -> None:
    text = render(summarise(main_grid), "markdown")
    scores, tests, settings = re.findall(r"^\*\*.*\n\n(?:\|.*\n)+", text, re.MULTILINE)
    assert (
        scores
        == """\
**Scores by task**

| row | STS12 | STS14 | STS-B | average |
| :-- | --: | --: | --: | --: |
| *unsupervised* |  |  |  |  |
| No training, [CLS] | 100.00 | 100.00 | 100.00 | 100.00 |
| *supervised* |  |  |  |  |
| SimCSE, sup | -33.33 ±115.47 | -33.33 ±115.47 | -33.33 ±115.47 | -33.33 ±115.47 |
| DiffAug, sup† | **100.00 ±0.00** | **100.00 ±0.00** | **100.00 ±0.00** | **100.00 ±0.00** |
"""
    )
    assert (
        tests
        == """\
**Against the strongest baseline**

| row | difference | 95 % | p | runs ± | runs ahead |
| :-- | --: | --: | --: | --: | --: |
| *supervised: against SimCSE, sup* |  |  |  |  |  |
| DiffAug, sup† | +133.33 | +133.33 to +133.33 | 0.002 | 0.00 | 2 of 2 |
"""
    )
    assert (
        settings
        == """\
**Settings and runs**

| row | setting | tried | STS-B dev | runs |
| :-- | :-- | --: | --: | --: |
| *unsupervised* |  |  |  |  |
| No training, [CLS] | – | 1 of 1 | 40.00 | 1 of 1 |
| *supervised* |  |  |  |  |
| SimCSE, sup | stage2: learning_rate=2e-5 | 2 of 2 | 72.00 ±1.00 | 3 of 3 |
| DiffAug, sup | stage2: learning_rate=1e-5 | 1 of 2 | 76.00 ±1.41 | †2 of 3 |
"""
    )
    assert text.startswith("## A table\n\n**Scores by task**\n")
    assert f"\nSpearman x 100: mean ± {SCORES_CAPTION} †: fewer runs than asked for.\n" in text
    assert (
        "The strongest baseline of a group has the highest mean on STS-B dev; it is never chosen on a test task."
        in text
    )
    assert "Each row that has a choice tries 2 settings with the first seed and draw and keeps the best on" in text
    assert "0.002 is the smallest p that so many resamples can give" in text
    assert text.endswith("""
- Encoder: small
- Made by hand
- † Fewer runs than asked for: DiffAug, sup (2 of 3)
- Failed: DiffAug, sup, setting 1, draw 0, seed 1: it collapsed (cells/diffaug-sup_setting1_draw0_seed1)
- Not finished: 1 of the runs planned so far: DiffAug, sup, setting 0, draw 0, seed 3
- Measured on device cpu, torch 2.13.0
""")


def test_latex(main_grid: Grid) -> None:
    text = render(summarise(main_grid), "latex")
    low, high = " & ".join([r"$-$33.33 $\pm$115.47"] * 4), " & ".join([r"\textbf{100.00 $\pm$0.00}"] * 4)
    caption = rf"A table: Scores by task. Spearman x 100: mean $\pm$ {SCORES_CAPTION}"
    assert text.splitlines()[:18] == [
        r"% Needs \usepackage{booktabs}.",
        r"\begin{table*}[t]",
        r"\centering",
        r"\caption{" + caption + r" $^{\dagger}$: fewer runs than asked for.}",
        r"\label{tab:main-scores}",
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"row & STS12 & STS14 & STS-B & average \\",
        r"\midrule",
        r"\multicolumn{5}{l}{\emph{unsupervised}} \\",
        r"No training, {[}CLS{]} & 100.00 & 100.00 & 100.00 & 100.00 \\",
        r"\midrule",
        r"\multicolumn{5}{l}{\emph{supervised}} \\",
        rf"SimCSE, sup & {low} \\",
        r"DiffAug, sup$^{\dagger}$ & " + high + r" \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
    assert r"\label{tab:main-tests}" in text
    assert r"\label{tab:main-settings}" in text
    assert r"\item Failed: DiffAug, sup, setting 1, draw 0, seed 1: it collapsed (cells/diffaug-sup\_set" in text


@pytest.mark.parametrize("experiment", ["main", "low-label"])
def test_latex_is_well_formed(main_grid: Grid, low_label_grid: Grid, experiment: str) -> None:
    """What a compiler would stumble over: unbalanced braces and environments, bare signs, rows of unequal length."""
    text = render(summarise(main_grid if experiment == "main" else low_label_grid), "latex")
    open_ones: list[str] = []
    columns = 0
    for line in text.splitlines():
        if begun := re.match(r"\\begin\{(.+?)\}(?:\{([lr]+)\})?", line):
            open_ones.append(begun[1])
            columns = len(begun[2] or "")
        elif ended := re.match(r"\\end\{(.+?)\}", line):
            assert open_ones.pop() == ended[1]
        elif line.endswith(r"\\") and not line.startswith(r"\multicolumn"):
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
        bare = re.sub(r"\\.", "", line)  # without commands and escaped signs
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        assert not re.search(r"[_#]|[^\x00-\x7f]", bare)
        assert "%" not in bare[1:]
    assert open_ones == []


def test_terminal(main_grid: Grid) -> None:
    text = render(summarise(main_grid), "terminal", width=80, styled=False)
    assert text.startswith("""\
A table

 Scores by task
 row                    STS12           STS14           STS-B         average
 ─────────────────────────────────────────────────────────────────────────────
 unsupervised
 No training,          100.00          100.00          100.00          100.00
 [CLS]

 supervised
 SimCSE, sup   -33.33 ±115.47  -33.33 ±115.47  -33.33 ±115.47  -33.33 ±115.47
 DiffAug,        100.00 ±0.00    100.00 ±0.00    100.00 ±0.00    100.00 ±0.00
 sup†

Spearman x 100: mean ± sample standard deviation (n - 1) over up to 3 seeds.
""")
    assert (
        """
 Against the strongest baseline
 row            difference                95 %      p  runs ±  runs ahead
 ─────────────────────────────────────────────────────────────────────────
 supervised: against SimCSE, sup
 DiffAug, sup†     +133.33  +133.33 to +133.33  0.002    0.00      2 of 2
"""
        in text
    )
    assert text.endswith(
        "Not finished: 1 of the runs planned so far: DiffAug, sup, setting 0, draw 0,\nseed 3\n"
        "Measured on device cpu, torch 2.13.0\n"
    )


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_too_wide(low_label_grid: Grid, main_grid: Grid, width: int) -> None:
    for grid in (low_label_grid, main_grid):
        lines = render(summarise(grid, resamples=50), "terminal", width=width, styled=False).splitlines()
        assert max(map(len, lines)) <= width


def test_the_best_is_bold_on_a_terminal(main_grid: Grid) -> None:
    text = render(summarise(main_grid), "terminal", width=80)
    assert text.count("\x1b[1m100.00 ±0.00\x1b[0m") == 4
    assert "\x1b[1m-33.33" not in text


def test_json_has_everything(main_grid: Grid) -> None:
    values = json.loads(render(summarise(main_grid), "json"))
    assert list(values) == [
        "format_version", "diffaug_version", "experiment", "title", "plan", "tasks", "average_over_all_seven",
        "columns", "columns_are", "deviation", "bootstrap", "entries", "leads", "failures", "unfinished", "untested",
        "taken_over", "machines", "notes",
    ]  # fmt: skip
    assert values["plan"]["seeds"] == [1, 2, 3]
    assert values["machines"] == [{"device": "cpu", "torch": "2.13.0"}]
    untrained, simcse, diffaug = values["entries"]
    assert list(untrained) == list(simcse) == list(diffaug)
    assert simcse["scores"]["average"] == {
        "mean": -33.333333, "deviation": 115.470054, "count": 3, "best": False, "paper": None
    }  # fmt: skip
    assert simcse["settings"]["planned"] == ["stage2.learning_rate=1e-5", "stage2.learning_rate=2e-5"]
    assert (simcse["settings"]["chosen_number"], simcse["strongest_baseline"]) == (1, True)
    assert (diffaug["seeds"], diffaug["runs_asked"]) == ([1, 2], 3)
    assert diffaug["test"]["against"] == {"row": "SimCSE, sup", "column": ""}
    assert diffaug["test"]["scores"]["average"] == {
        "difference": 133.333333, "interval": [133.333333, 133.333333], "p_value": 0.001998, "shown": True
    }  # fmt: skip
    assert diffaug["test"]["by_run"]["differences"] == [200, 200]
    assert [run["seed"] for run in diffaug["runs"]] == [1, 2]
    assert values["failures"][0]["why"] == "it collapsed"
    assert values["unfinished"][0]["name"] == "diffaug-sup_setting0_draw0_seed3"


def test_commands_make_the_runs_again(main_grid: Grid) -> None:
    run = json.loads(render(summarise(main_grid), "json"))["entries"][1]["runs"][2]
    assert run["command"] == (
        "diffaug train --recipe simcse-sup --set stage2.learning_rate=2e-5 --set seed=3 "
        "--out simcse-sup_setting1_draw0_seed3"
    )
    recipe = load_recipe(run["recipe"], run["changes"])
    assert recipe.seed == run["seed"]


@pytest.fixture(scope="module")
def low_label_grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """Three rows of one seed; the method's run with all labels is left."""
    rows = (("SimCSE, sup", True), ("PromptBERT, sup", True), ("DiffAug, sup", False))
    cells = [
        make_cell(row, column, group="supervised", baseline=baseline)
        for row, baseline in rows
        for column in ("2,756", "27,560")
    ]
    folder = tmp_path_factory.mktemp("grids") / "low-label"
    grid = begin(folder, cells, "low-label", encoder="bert-base-uncased", seeds=[1], columns_are="labelled examples")
    for cell in cells[:5]:
        finish(
            grid, cell, wrong if cell.row == "SimCSE, sup" else right, dev=80.0 if cell.row == "SimCSE, sup" else 70.0
        )
    return grid


def section(grid: Grid, key: str) -> Section:
    (found,) = (part.section for part in parts(summarise(grid, resamples=50)) if part.key == key)
    return found


def test_columns_of_label_counts(low_label_grid: Grid) -> None:
    table = section(low_label_grid, "scores")
    assert table.title == "Average of 3 of 7 by labelled examples"
    assert table.columns == ["row", "2,756", "27,560"]
    assert table.rows == [
        ["SimCSE, sup", "-100.00", "-100.00"],
        ["  paper", "‡75.26 ±0.4", "‡79.04 ±0.2"],
        ["PromptBERT, sup", "100.00", "100.00"],
        ["  paper", "‡78.33 ±0.2", "‡80.01 ±0.1"],
        ["DiffAug, sup", "100.00", "–"],
        ["  paper", "‡80.18 ±0.6", "‡81.73 ±0.2"],
    ]
    assert table.bold == {(2, 1), (2, 2), (4, 1)}
    assert "No measurement yet for 1 of 6 places in the table: DiffAug, sup at 27,560" in notes(
        summarise(low_label_grid, resamples=50)
    )


def test_tests_and_leads_by_label_count(low_label_grid: Grid) -> None:
    tests = section(low_label_grid, "tests")
    assert tests.headings == {
        0: "supervised, 2,756 labelled examples: against SimCSE, sup",
        2: "supervised, 27,560 labelled examples: against SimCSE, sup",
    }
    assert [row[0:3] for row in tests.rows] == [
        ["PromptBERT, sup", "+200.00", "+200.00 to +200.00"],
        ["DiffAug, sup", "+200.00", "+200.00 to +200.00"],
        ["PromptBERT, sup", "+200.00", "+200.00 to +200.00"],
    ]
    leads = section(low_label_grid, "lead")
    assert leads.columns == ["ahead of", "2,756", "2,756 against 27,560"]
    assert leads.headings == {0: "supervised: lead of DiffAug, sup"}
    assert leads.rows == [["SimCSE, sup", "+200.00*", "+200.00*"], ["PromptBERT, sup", "+0.00", "+0.00"]]


def test_every_comparison_with_too_few_runs_is_marked(tmp_path: Path) -> None:
    """The method's row and the baseline each lack runs at one of the columns."""
    columns, seeds = ("10 %", "100 %"), (1, 2)
    rows = (("SimCSE, sup", True), ("DiffAug, sup", False))
    cells = [
        replace(make_cell(row, column, group="supervised", baseline=base), changes=(f"data.labels={column[:-2]}",))
        for row, base in rows
        for column in columns
    ]
    grid = begin(tmp_path / "grid", cells, "low-label", seeds=seeds, columns_are="labelled examples")
    lacking = {("DiffAug, sup", "10 %"), ("SimCSE, sup", "100 %")}
    for cell in cells:
        finish(grid, cell, right)
        if (cell.row, cell.column) not in lacking:
            grid.add([again(cell, 2)])
            finish(grid, again(cell, 2), right)
    tests, leads = section(grid, "tests"), section(grid, "lead")
    assert tests.headings == {
        0: "supervised, 10 % of the labelled examples: against SimCSE, sup",
        1: "supervised, 100 % of the labelled examples: against SimCSE, sup†",
    }
    assert [row[0] for row in tests.rows] == ["DiffAug, sup†", "DiffAug, sup"]
    assert leads.rows == [["SimCSE, sup", "†+0.00", "†+0.00", "†+0.00"]]
    assert [row[-1] for row in section(grid, "settings").rows] == ["2 of 2", "†1 of 2", "†1 of 2", "2 of 2"]
    text = render(summarise(grid, resamples=50), "latex")
    assert text.count(r"$^{\dagger}$: ") == 4, "below each table"


def test_long_settings_fit_into_a_terminal(tmp_path: Path) -> None:
    changes = (
        "stage2.batch_size=256",
        "stage2.learning_rate=1e-5",
        "stage2.role_learning_rates.projection=1e-3",
        "stage2.steps=600",
    )
    cells = [replace(make_cell("PromptBERT, sup-unsup", "2,756"), changes=changes)]
    cells.append(replace(cells[0], setting=1, changes=()))
    grid = begin(tmp_path / "grid", cells, "low-label", seeds=[1], columns_are="labelled examples")
    finish(grid, cells[0], right, dev=71.0)
    finish(grid, cells[1], right, dev=70.0)
    text = render(summarise(grid, resamples=0), "terminal", width=80, styled=False)
    assert text.count("Settings and runs") == 1, "one table, not several with a few columns each"
    assert "stage2: batch_size=256" in text
    assert "stage2.role_learning_rates:" in text
    assert [line for line in render(summarise(grid, resamples=0), "latex").splitlines() if "stage2" in line] == [
        r"PromptBERT, sup-unsup & 2,756 & stage2: batch\_size=256, learning\_rate=1e-5, steps=600; & 71.00 & 1 of 1 \\",
        r" &  & stage2.role\_learning\_rates: projection=1e-3 &  &  \\",
    ]


def test_runs_of_other_grids_are_counted(tmp_path: Path) -> None:
    cells = [make_cell("A"), make_cell("B"), make_cell("C")]
    grid = begin(tmp_path / "grid", cells, seeds=[1])
    for cell in cells:
        finish(grid, cell, right)
    for cell in cells[:2]:
        (grid.folder_of(cell) / "taken-over.txt").write_text(f"/grids/main/cells/{cell.name}\n", "utf-8")
    summary = summarise(grid, resamples=0)
    assert summary.taken_over == {"/grids/main": 2}
    assert "2 runs copied from /grids/main" in notes(summary)


def test_papers_averages_are_over_our_tasks_where_they_can_be(tmp_path: Path) -> None:
    cell = make_cell("DiffAug, sup", recipe="diffaug-sup", group="supervised")
    grid = begin(tmp_path / "grid", [cell], encoder="bert-base-uncased", seeds=[1])
    finish(grid, cell, right)
    # 76.92, 80.81 and 84.32 in the paper, whose own average, 82.42, is over seven tasks.
    assert section(grid, "scores").rows[1] == ["  paper", "76.92 ±0.7", "80.81 ±0.4", "84.32 ±0.5", "80.68"]
    assert "Its averages are over the same tasks as ours" in render(summarise(grid), "markdown")


def test_all_seven_tasks_have_the_papers_own_average(tmp_path: Path) -> None:
    cell = make_cell("DiffAug, sup", recipe="diffaug-sup", group="supervised")
    grid = begin(tmp_path / "grid", [cell], encoder="bert-base-uncased", seeds=[1])
    seven = ("SICK-R", "STS-B", "STS16", "STS15", "STS14", "STS13", "STS12")
    keep(grid, cell, {DEV: 80.0, **dict.fromkeys(seven, 75.0), "average": 75.0})
    table = section(grid, "scores")
    assert table.columns == ["row", "STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R", "average"]
    assert table.rows[1][-1] == "82.42 ±0.0"
    assert r"\begin{table*}[t]" in render(summarise(grid), "latex")
    assert "papers average over" not in render(summarise(grid), "markdown")


def test_what_the_paper_compares_on_dev(tmp_path: Path) -> None:
    cells = [make_cell("DiffAug, semi + aux", weight, "diffaug-semi-aux") for weight in ("0.001", "0.01")]
    grid = begin(tmp_path / "grid", cells, "aux-weight", encoder="bert-base-uncased", seeds=[1], columns_are="weight")
    for cell, dev in zip(cells, (81.0, 82.0), strict=True):
        finish(grid, cell, right, dev)
    table = section(grid, "dev")
    assert table.title == "STS-B dev by weight"
    assert table.rows == [["DiffAug, semi + aux", "81.00", "82.00"], ["  paper", "86.30", "84.80"]]
    assert table.bold == {(0, 2)}
    assert section(grid, "settings").columns == ["row", "at", "STS-B dev", "runs"]


def test_cost(tmp_path: Path) -> None:
    cells = [make_cell("SimCSE, sup", baseline=True), make_cell("DiffAug, sup", recipe="diffaug-sup")]
    grid = begin(tmp_path / "grid", cells, "cost", encoder="bert-base-uncased", seeds=[1, 2])
    grid.add([again(cells[0], 2)])
    for cell in grid.cells:
        finish(grid, cell, right)
    table = section(grid, "cost")
    assert table.columns == ["row", "minutes", "GiB"]
    assert table.rows == [
        ["SimCSE, sup", "1.50 ±0.71", "2.00 ±0.00"],
        ["  paper", "36.00", "10.00"],
        ["DiffAug, sup†", "1.00", "2.00"],
        ["  paper", "65.00", "15.00"],
    ]
    assert table.bold == {(0, 2), (2, 1), (2, 2)}  # what costs least


def test_stage_1(tmp_path: Path) -> None:
    cell = make_cell("DiffAug, stage 1", recipe="diffaug-semi")
    grid = begin(tmp_path / "grid", [cell], "divergence", seeds=[1, 2])
    grid.add([again(cell, 2)])
    for one, steps in zip(grid.cells, (1400, 1600), strict=True):
        scores = {DEV: 50.0, "STS-B": 50.0, "average": 50.0}
        keep(grid, one, scores, steps={"1": steps, "2": 1}, stage1_end="by delta and kappa")
    assert section(grid, "stage1").rows == [["DiffAug, stage 1", "by delta and kappa", "1500 ±141"]]


def test_nothing_has_run_yet(tmp_path: Path) -> None:
    summary = summarise(begin(tmp_path / "grid", [make_cell("SimCSE, sup")]))
    for form in ("terminal", "markdown", "latex"):
        text = render(summary, form)  # type: ignore[arg-type]
        assert "No measurement yet for 1 of 1 rows: SimCSE, sup" in text.replace("\n", " ")
    assert json.loads(render(summary, "json"))["entries"][0]["runs"] == []


def test_many_missing_rows_are_two_lines(tmp_path: Path) -> None:
    """As after a run of one row of many."""
    cells = [make_cell(f"Row {number}", setting=setting) for number in range(30) for setting in (0, 1)]
    grid = begin(tmp_path / "grid", cells, seeds=[1])
    for cell in (*cells[:2], cells[42]):
        finish(grid, cell, right)
    assert notes(summarise(grid, resamples=0))[2:-1] == [
        "No measurement yet for 29 of 30 rows: Row 21 (1 of 2 settings tried); Row 1; Row 2; Row 3; Row 4; Row 5 "
        "and 23 more",
        "Not finished: 57 of the runs planned so far: Row 1, setting 0, draw 0, seed 1; "
        "Row 1, setting 1, draw 0, seed 1; Row 2, setting 0, draw 0, seed 1; Row 2, setting 1, draw 0, seed 1; "
        "Row 3, setting 0, draw 0, seed 1; Row 3, setting 1, draw 0, seed 1 and 51 more",
    ]


def test_an_unknown_form_is_refused(main_grid: Grid) -> None:
    with pytest.raises(DiffaugError, match="terminal, markdown, latex, json, not as 'html'"):
        render(summarise(main_grid, resamples=0), "html")  # type: ignore[arg-type]


def test_every_change_is_below_every_table(main_grid: Grid) -> None:
    grid = Grid.open(main_grid.folder)
    grid.request["changes"] = ["stage2.steps=20", "model.template=It is {} : [MASK]"]
    summary = summarise(grid)
    count = len(list(parts(summary)))
    assert count == 3
    words = "Changed for all rows: --set stage2.steps=20 --set 'model.template=It is {} : [MASK]'."
    assert render(summary, "markdown").count(words) == count
    assert " ".join(render(summary, "terminal", width=120, styled=False).split()).count(words) == count
    assert render(summary, "latex").count(r"--set stage2.steps=20") == count
    assert json.loads(render(summary, "json"))["plan"]["changes"] == grid.request["changes"]
    assert "Changed" not in render(summarise(main_grid), "markdown")
