"""What a grid found, against numpy and scipy by hand."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from made_grids import PAIRS, again, begin, finish, gold, keep, make_cell
from numpy.typing import NDArray
from scipy.stats import spearmanr

from diffaug.errors import DiffaugError
from diffaug.experiments.grid import SIMILARITIES, Grid
from diffaug.experiments.results import DEV, Cell, Entry, Summary
from diffaug.experiments.summary import summarise

BASELINE, METHOD = make_cell("SimCSE, sup", baseline=True), make_cell("DiffAug, sup", recipe="diffaug-sup")


def entry(summary: Summary, row: str, column: str = "") -> Entry:
    (found,) = (one for one in summary.entries if (one.row, one.column) == (row, column))
    return found


def scores(average: float, dev: float = 70.0) -> dict[str, float]:
    return {DEV: dev, "STS12": average - 1, "STS-B": average + 1, "average": average}


def three_seeds(folder: Path, *cells: Cell, noises: dict[str, float]) -> Grid:
    """A finished grid without tuning."""
    grid = begin(folder, cells)
    grid.add(again(cell, seed) for cell in cells for seed in (2, 3))
    for cell in grid.cells:
        finish(grid, cell, noises[cell.row])
    return grid


def test_mean_and_deviation_over_seeds_and_draws(tmp_path: Path) -> None:
    first = make_cell("SimCSE, sup", "2,756", baseline=True)
    grid = begin(tmp_path / "grid", [first], "low-label", draws=2)
    grid.add(again(first, seed, draw) for draw in (0, 1) for seed in (1, 2, 3) if (seed, draw) != (1, 0))
    averages = [70.0, 71.5, 69.0, 73.0, 70.5, 72.25]
    for cell, average in zip(grid.cells, averages, strict=True):
        keep(grid, cell, scores(average))
    found = entry(summarise(grid), "SimCSE, sup", "2,756")
    value = found.values["average"]
    assert value.mean == pytest.approx(np.mean(averages))
    assert value.deviation == pytest.approx(np.std(averages, ddof=1))
    assert value.count == 6
    assert found.values["STS12"].mean == pytest.approx(np.mean(averages) - 1)
    assert found.values["minutes"].mean == pytest.approx(2.0)  # seconds: 60 for seed 1, 120, 180
    assert (found.asked, found.short) == (6, False)


def test_a_single_run_has_no_deviation(tmp_path: Path) -> None:
    grid = begin(tmp_path / "grid", [BASELINE])
    keep(grid, BASELINE, scores(70.0))
    found = entry(summarise(grid), "SimCSE, sup")
    assert found.values["average"].deviation is None
    assert (len(found.runs), found.asked, found.short) == (1, 3, True)


def resampled_by_hand(grid: Grid, cells: list[Cell], resamples: int) -> dict[str, NDArray[np.float64]]:
    """Each resample scored by scipy, run by run; the draws as `bootstrap` makes them for few rows."""
    found = {}
    for task, rows in PAIRS.items():
        rng = np.random.default_rng([0, zlib.crc32(task.encode())])
        drawn = rng.integers(rows, size=(resamples, rows))
        cosines = [np.load(grid.folder_of(cell) / SIMILARITIES)[f"{task}/cosine"] for cell in cells]
        found[task] = np.array(
            [np.mean([100 * spearmanr(cosine[i], gold(task)[i]).statistic for cosine in cosines]) for i in drawn]
        )
    found["average"] = np.mean(list(found.values()), axis=0)
    return found


def test_paired_test_against_scipy(tmp_path: Path) -> None:
    grid = three_seeds(tmp_path / "grid", BASELINE, METHOD, noises={"SimCSE, sup": 3.0, "DiffAug, sup": 2.0})
    resamples = 60
    summary = summarise(grid, resamples=resamples, confidence=0.9)
    test = entry(summary, "DiffAug, sup").test
    assert test is not None
    assert (test.row, test.column) == ("SimCSE, sup", "")
    sides = [[cell for cell in grid.cells if cell.row == row] for row in ("DiffAug, sup", "SimCSE, sup")]
    mine, theirs = (resampled_by_hand(grid, cells, resamples) for cells in sides)
    assert list(test.comparisons) == ["STS12", "STS14", "STS-B", "average"]
    means = [
        {name: np.mean([result.scores[name] for cell, result in grid.results() if cell in cells]) for name in mine}
        for cells in sides
    ]
    for name, comparison in test.comparisons.items():
        differences = mine[name] - theirs[name]
        assert [comparison.low, comparison.high] == pytest.approx(np.quantile(differences, [0.05, 0.95]))
        turned = min((differences <= 0).sum(), (differences >= 0).sum())
        assert comparison.p_value == pytest.approx(min(1, 2 * (turned + 1) / (resamples + 1)))
        assert comparison.difference == pytest.approx(means[0][name] - means[1][name])
    # The test must be able to see a difference, and not see one where there is none.
    assert test.average.shown
    assert 0 < test.comparisons["STS-B"].p_value < 1


def test_runs_of_the_same_seed_are_compared(tmp_path: Path) -> None:
    grid = begin(tmp_path / "grid", [BASELINE, METHOD])
    grid.add([again(BASELINE, 2), again(METHOD, 2), again(METHOD, 3)])
    results = {(cell.row, cell.seed): finish(grid, cell, 2.0).scores["average"] for cell in grid.cells}
    test = entry(summarise(grid), "DiffAug, sup").test
    assert test is not None
    by_hand = [results["DiffAug, sup", seed] - results["SimCSE, sup", seed] for seed in (1, 2)]
    assert test.by_run == pytest.approx(by_hand)
    assert test.runs_ahead == sum(difference > 0 for difference in by_hand)


def test_the_strongest_baseline_is_chosen_on_dev(tmp_path: Path) -> None:
    other = make_cell("PromptBERT, sup", baseline=True)
    elsewhere = make_cell("SBERT", baseline=True, group="another")
    grid = begin(tmp_path / "grid", [BASELINE, other, METHOD, elsewhere], seeds=[1])
    finish(grid, BASELINE, 3.0, dev=80.0)  # worse on the test tasks, better on dev
    finish(grid, other, 1.0, dev=75.0)
    finish(grid, METHOD, 2.0, dev=90.0)
    finish(grid, elsewhere, 2.0, dev=95.0)
    summary = summarise(grid, resamples=50)
    assert [one.row for one in summary.entries if one.strongest] == ["SimCSE, sup", "SBERT"]
    against = {one.row: one.test.row if one.test else None for one in summary.entries}
    assert against == {
        "SimCSE, sup": None, "PromptBERT, sup": "SimCSE, sup", "DiffAug, sup": "SimCSE, sup", "SBERT": None
    }  # fmt: skip


def test_a_baseline_without_columns_stands_beside_all(tmp_path: Path) -> None:
    lengths = [make_cell("DiffAug, semi", length, "diffaug-semi") for length in ("2", "4")]
    grid = begin(tmp_path / "grid", [BASELINE, *lengths], "prefix-length", seeds=[1])
    for cell in grid.cells:
        finish(grid, cell, 2.0)
    tests = [entry(summarise(grid, resamples=50), "DiffAug, semi", length).test for length in ("2", "4")]
    assert [test and (test.row, test.column) for test in tests] == [("SimCSE, sup", "")] * 2


def test_settings_in_words(tmp_path: Path) -> None:
    tries = [make_cell("SimCSE, sup", setting=setting, baseline=True) for setting in range(3)]
    grid = begin(tmp_path / "grid", tries)
    for cell, dev in zip(tries, (70.0, 72.0, 71.0), strict=True):
        keep(grid, cell, scores(60.0 + cell.setting, dev))
    grid.add([again(tries[1], 2)])
    keep(grid, again(tries[1], 2), scores(65.0))
    found = entry(summarise(grid), "SimCSE, sup")
    assert found.settings == tuple(f"stage2.learning_rate={number}e-5" for number in (1, 2, 3))
    assert (found.setting, found.chosen, found.tried) == (1, "stage2.learning_rate=2e-5", 3)
    assert found.values["average"].mean == pytest.approx((61.0 + 65.0) / 2)  # the chosen setting's runs alone
    assert (len(found.runs), found.asked) == (2, 3)


def test_what_failed_and_what_is_left_is_named(tmp_path: Path) -> None:
    tries = [make_cell("SimCSE, sup", setting=setting) for setting in range(2)]
    grid = begin(tmp_path / "grid", [*tries, METHOD])
    keep(grid, tries[0], scores(60.0))
    grid.fail(tries[1], "\nit collapsed\nTraceback ...")
    grid.add([again(tries[0], 2)])
    summary = summarise(grid)
    assert [(cell.name, why) for cell, why in summary.failures] == [(tries[1].name, "it collapsed")]
    assert [cell.name for cell in summary.unfinished] == [METHOD.name, again(tries[0], 2).name]
    left = entry(summary, "DiffAug, sup")
    assert (left.setting, left.chosen, left.runs, left.values) == (None, None, (), {})
    assert entry(summary, "SimCSE, sup").tried == 1


def test_an_untrained_row_needs_one_run(tmp_path: Path) -> None:
    cell = Cell("No training, mean", "", "untrained-mean", ("seed=1",), seed=1)
    grid = begin(tmp_path / "grid", [cell])
    keep(grid, cell, scores(50.0))
    found = entry(summarise(grid), "No training, mean")
    assert (found.asked, found.short) == (1, False)


def test_best_of_a_group(tmp_path: Path) -> None:
    rows = {"A": ("one", 71.001), "B": ("one", 71.004), "C": ("one", 70.0), "D": ("two", 60.0)}
    cells = [make_cell(row, group=group) for row, (group, _) in rows.items()]
    grid = begin(tmp_path / "grid", cells, seeds=[1])
    for cell in cells:
        keep(grid, cell, scores(rows[cell.row][1]))
    # Two that look the same are both the best; a row that is alone is not the best of anything.
    assert [one.row for one in summarise(grid).entries if "average" in one.best] == ["A", "B"]


def test_best_of_a_row_that_is_alone_in_its_group(tmp_path: Path) -> None:
    cells = [make_cell("DiffAug, semi", length, "diffaug-semi") for length in ("2", "4", "8")]
    grid = begin(tmp_path / "grid", cells, "prefix-length", seeds=[1])
    for cell, average in zip(cells, (70.0, 72.0, 71.0), strict=True):
        keep(grid, cell, scores(average, dev=80 - average))
    summary = summarise(grid)
    assert [one.column for one in summary.entries if "average" in one.best] == ["4"]
    assert [one.column for one in summary.entries if DEV in one.best] == ["2"]


def low_label(folder: Path) -> Grid:
    """DiffAug and two baselines, with labels in an order that is not that of their numbers."""
    columns = ("27,560", "2,756", "100 %")
    rows = (("SimCSE, sup", True), ("PromptBERT, sup", True), ("DiffAug, sup", False))
    cells = [make_cell(row, column, baseline=baseline) for row, baseline in rows for column in columns]
    everything = [Cell(c.row, c.column, c.recipe, ("seed=1",), seed=1, baseline=c.baseline) for c in cells]
    cells = [other if cell.column == "100 %" else cell for cell, other in zip(cells, everything, strict=True)]
    grid = begin(folder, cells, "low-label", seeds=[1], columns_are="labelled examples")
    noise = {"SimCSE, sup": 3.0, "PromptBERT, sup": 2.5, "DiffAug, sup": 1.5}
    for cell in cells:
        finish(grid, cell, noise[cell.row])
    return grid


def test_leads_with_few_labels(tmp_path: Path) -> None:
    grid = low_label(tmp_path / "grid")
    summary = summarise(grid, resamples=50)
    averages = {(cell.row, cell.column): result.scores["average"] for cell, result in grid.results()}
    assert [(lead.row, lead.baseline) for lead in summary.leads] == [
        ("DiffAug, sup", "SimCSE, sup"), ("DiffAug, sup", "PromptBERT, sup")
    ]  # fmt: skip
    for lead in summary.leads:
        found = {column: test.average.difference for column, test in lead.tests.items()}
        assert found == pytest.approx(
            {c: averages["DiffAug, sup", c] - averages[lead.baseline, c] for c in ("27,560", "2,756", "100 %")}
        )
        assert (lead.fewest, lead.most) == ("2,756", "100 %")
        assert lead.across is not None
        by_hand = averages["DiffAug, sup", "2,756"] - averages[lead.baseline, "100 %"]
        assert lead.across.average.difference == pytest.approx(by_hand)


def without_similarities(grid: Grid, cell: Cell) -> None:
    (grid.folder_of(cell) / SIMILARITIES).unlink()


def with_other_pairs(grid: Grid, cell: Cell) -> None:
    path = grid.folder_of(cell) / SIMILARITIES
    arrays = dict(np.load(path))
    # The same pairs in another order: the score is the same, and yet they must not be compared one by one.
    arrays |= {f"STS14/{name}": arrays[f"STS14/{name}"][::-1] for name in ("cosine", "gold")}
    np.savez(path, **arrays)  # type: ignore[arg-type]


def with_other_cosines(grid: Grid, cell: Cell) -> None:
    path = grid.folder_of(cell) / SIMILARITIES
    arrays = dict(np.load(path))
    arrays["STS12/cosine"] = -arrays["STS12/cosine"]
    np.savez(path, **arrays)  # type: ignore[arg-type]


def without_a_task(grid: Grid, cell: Cell) -> None:
    path = grid.folder_of(cell) / SIMILARITIES
    np.savez(path, **{name: array for name, array in np.load(path).items() if "STS-B" not in name})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without_similarities, "diffaug-sup_setting0_draw0_seed1 has no similarities.npz"),
        (with_other_pairs, "simcse-sup_setting0_draw0_seed1 were scored on different pairs of STS14"),
        (with_other_cosines, "on STS12, but its pairs give -"),
        (without_a_task, "was not scored on all tasks"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path: Path, spoil, words: str) -> None:  # type: ignore[no-untyped-def]
    grid = begin(tmp_path / "grid", [BASELINE, METHOD, make_cell("Third")], seeds=[1])
    for cell in grid.cells:
        finish(grid, cell, 1.0)
    spoil(grid, METHOD)
    summary = summarise(grid, resamples=50)
    assert entry(summary, "DiffAug, sup").test is None
    assert len(summary.untested) == 1
    assert words in summary.untested[0]
    assert entry(summary, "Third").test is not None


def test_a_damaged_file_is_the_users_to_repair(tmp_path: Path) -> None:
    grid = begin(tmp_path / "grid", [BASELINE, METHOD], seeds=[1])
    for cell in grid.cells:
        finish(grid, cell, 1.0)
    (grid.folder_of(METHOD) / SIMILARITIES).write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(DiffaugError, match=r"similarities\.npz is damaged"):
        summarise(grid)


def test_papers_figures_for_the_same_encoder_alone(tmp_path: Path) -> None:
    for encoder, wanted in (("models/bert-base-uncased", 82.42), ("small", None)):
        grid = begin(tmp_path / encoder.replace("/", "-"), [METHOD], encoder=encoder)
        figure = entry(summarise(grid), "DiffAug, sup").published.get("average")
        assert (figure.mean if figure else None) == wanted


def test_nothing_has_run_yet(tmp_path: Path) -> None:
    summary = summarise(begin(tmp_path / "grid", [BASELINE, METHOD]))
    assert (summary.tasks, summary.machines, summary.failures) == ((), [], ())
    assert [cell.name for cell in summary.unfinished] == [BASELINE.name, METHOD.name]
    assert all(not one.runs and one.asked == 3 for one in summary.entries)


@pytest.mark.parametrize("experiment", ["cost", "divergence"])
def test_no_tests_where_scores_are_not_the_point(tmp_path: Path, experiment: str) -> None:
    grid = begin(tmp_path / "grid", [BASELINE, METHOD], experiment)
    for cell in grid.cells:
        finish(grid, cell, 1.0)
    summary = summarise(grid)
    assert all(one.test is None and not one.strongest for one in summary.entries)
    assert entry(summary, "DiffAug, sup").values["minutes"].mean == 1.0
