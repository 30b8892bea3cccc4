"""Figures of reproduced experiments show the grid's values, name what is missing, and never change by themselves."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import matplotlib
import numpy as np
import pytest
from figure_grids import SEEDS, cells_of, jitter, make_grid, scored, stage1_record, write_metrics
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from plan_data import plan

from diffaug.errors import DiffaugError
from diffaug.experiments import figures
from diffaug.experiments.data import DataFiles
from diffaug.experiments.figures import draw
from diffaug.experiments.grid import Grid
from diffaug.experiments.results import Cell, Result
from diffaug.experiments.spec import experiment_names
from diffaug.experiments.style import look_of, save, styled
from diffaug.experiments.summary import summarise
from diffaug.training.stopping import CompatibilityCurves

LENGTHS = {"2": 85.0, "4": 85.6, "8": 86.3, "16": 86.0}
DIFFAUG = ("DiffAug, semi", "diffaug-semi", "semi-supervised", False)
DROPOUT = ("Dropout", "simcse-unsup", "semi-supervised", True)


def lengths_result(cell: Cell) -> Result:
    return scored(LENGTHS.get(cell.column, 82.5) + jitter(cell, 0.3))


@pytest.fixture
def lengths(tmp_path: Path) -> Grid:
    """Prefix lengths, with dropout as a reference."""
    cells = cells_of([DIFFAUG], list(LENGTHS)) + cells_of([DROPOUT])
    return make_grid(tmp_path / "grid", "prefix-length", cells, lengths_result)


def by_hand(grid: Grid, row: str, column: str, score: str = "STS-B dev") -> tuple[float, float]:
    """Mean and deviation of the runs of a row at a column."""
    found = [result.scores[score] for cell, result in grid.results() if (cell.row, cell.column) == (row, column)]
    return float(np.mean(found)), float(np.std(found, ddof=1))


def drawn(grid: Grid) -> Figure:
    """The figure of an experiment."""
    summary = summarise(grid, resamples=0)
    with styled():
        return figures.figure(summary, *summary.spec.drawings(summary.columns))


def errorbars(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y and the bars' half lengths of a line with a label."""
    (found,) = [c for c in axes.containers if isinstance(c, ErrorbarContainer) and c.get_label() == label]
    line, _, (bars,) = found.lines
    ends = np.array(bars.get_segments())  # (points, 2, 2)
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    return x, y, np.ptp(ends, axis=1).max(axis=-1) / 2


def note(figure: Figure) -> str:
    """The small print."""
    return " ".join(figure.get_supxlabel().split())


def texts(axes: Axes) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in axes.texts]


# --- one figure after the other -------------------------------------------------------------------------------------


def test_prefix_length_shows_means_and_deviations(lengths: Grid) -> None:
    (axes,) = drawn(lengths).axes
    x, y, bars = errorbars(axes, "DiffAug, semi")
    expected = [by_hand(lengths, "DiffAug, semi", column) for column in LENGTHS]
    assert list(x) == [2, 4, 8, 16]
    np.testing.assert_allclose(y, [mean for mean, _ in expected])
    np.testing.assert_allclose(bars, [deviation for _, deviation in expected])
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == list(LENGTHS)


def test_prefix_length_has_dropout_as_reference_and_names_its_best(lengths: Grid) -> None:
    (axes,) = drawn(lengths).axes
    (reference,) = [line for line in axes.lines if line.get_label() == "Dropout"]
    mean, _ = by_hand(lengths, "Dropout", "")
    assert list(reference.get_ydata()) == pytest.approx([mean, mean])
    best = max(by_hand(lengths, "DiffAug, semi", column)[0] for column in LENGTHS)
    assert set(texts(axes)) == {"Dropout", "DiffAug, semi", f"{best:.1f}"}


def test_a_zero_stands_behind_a_break_of_the_axis(tmp_path: Path) -> None:
    columns = ["0", "0.0001", "0.001", "0.01"]
    grid = make_grid(tmp_path, "aux-weight", cells_of([DIFFAUG], columns), lambda cell: scored(80.0))
    (axes,) = drawn(grid).axes
    x, _, _ = errorbars(axes, "DiffAug, semi")
    np.testing.assert_allclose(np.log10(x), [-5, -4, -3, -2])
    assert [label.get_text() for label in axes.get_xticklabels()] == columns
    assert "//" in texts(axes)


LOW_ROWS = [
    ("SimCSE, joint", "simcse-joint", "semi-supervised", True),
    ("SimCSE, sup-unsup", "simcse-sup-unsup", "semi-supervised", True),
    ("DiffAug, semi", "diffaug-semi", "semi-supervised", False),
    ("SimCSE, sup", "simcse-sup", "supervised", True),
    ("DiffAug, sup", "diffaug-sup", "supervised", False),
]


@pytest.fixture
def low(tmp_path: Path) -> Grid:
    """Three label counts, two settings of labels, five rows."""
    columns = ["2,756", "27,560", "53,142"]
    base = {row[0]: 70.0 + 3 * place for place, row in enumerate(LOW_ROWS)}
    base["SimCSE, sup-unsup"] = 60.0
    return make_grid(
        tmp_path / "low",
        "low-label",
        cells_of(LOW_ROWS, columns),
        lambda cell: scored(base[cell.row] + columns.index(cell.column) + jitter(cell, 0.2)),
        "labelled examples",
    )


def test_low_label_has_a_panel_a_setting_and_a_line_a_row(low: Grid) -> None:
    figure = drawn(low)
    panels = figure.axes
    assert figure.get_suptitle() == "Mean of 2 STS tasks, Spearman × 100"
    assert [axes.get_title(loc="left") for axes in panels] == ["Semi-supervised", "Supervised"]
    for axes, group in zip(panels, ("semi-supervised", "supervised"), strict=True):
        assert axes.get_xscale() == "log"
        rows = [row for row, _, inside, _ in LOW_ROWS if inside == group]
        assert [c.get_label() for c in axes.containers] == rows
        for row in set(rows) - {"SimCSE, sup-unsup"}:
            x, y, bars = errorbars(axes, row)
            expected = [by_hand(low, row, column, "average") for column in ("2,756", "27,560", "53,142")]
            assert list(x) == [2756, 27560, 53142]
            np.testing.assert_allclose(y, [mean for mean, _ in expected])
            np.testing.assert_allclose(bars, [deviation for _, deviation in expected])
    assert panels[-1].get_xlabel() == "Labelled examples"


def test_an_average_over_some_tasks_names_them(low: Grid) -> None:
    assert "Tasks: STS12, STS-B" in note(drawn(low))


def test_places_with_too_few_runs_are_hollow(low: Grid) -> None:
    short = [cell for cell in low.cells if cell.row == "DiffAug, sup" and cell.column == "27,560"][2:]
    for cell in short:
        (low.folder_of(cell) / "result.json").unlink()
    figure = drawn(low)
    axes = figure.axes[1]
    (hollow,) = [line for line in axes.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert list(hollow.get_xdata()) == [27560]
    np.testing.assert_allclose(hollow.get_ydata(), [by_hand(low, "DiffAug, sup", "27,560", "average")[0]])
    assert "Hollow markers are incomplete: DiffAug, sup at 27,560 (2 of 3 runs)" in note(figure)


def test_parts_and_counts_of_labels_are_no_scale(tmp_path: Path) -> None:
    columns = ["2,756", "27,560", "100 %"]
    grid = make_grid(
        tmp_path, "low-label", cells_of(LOW_ROWS[-2:], columns), lambda cell: scored(80.0), "labelled examples"
    )
    assert drawn(grid).axes[0].get_xlabel() == "Labelled examples (not to scale)"


def test_lines_that_meet_stand_beside_each_other(tmp_path: Path) -> None:
    grid = make_grid(tmp_path, "low-label", cells_of(LOW_ROWS[-2:], ["10", "100"]), lambda cell: scored(80.0))
    figure = drawn(grid)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    first, second = (container.lines[0] for container in axes.containers)
    assert list(first.get_xdata()) == list(second.get_xdata())
    apart = second.get_transform().transform((10, 77))[0] - first.get_transform().transform((10, 77))[0]
    assert apart == pytest.approx(5 * figure.dpi / 72)


def test_low_label_brings_the_best_variant_of_a_method_to_the_front(low: Grid) -> None:
    figure = drawn(low)
    axes = figure.axes[0]
    widths = {c.get_label(): c.lines[0].get_linewidth() for c in axes.containers}
    assert widths["SimCSE, sup-unsup"] < widths["SimCSE, joint"] == widths["DiffAug, semi"]
    named = {text.get_text().replace("\n", " "): text.xy[1] for text in axes.texts}
    assert named == {
        row: pytest.approx(by_hand(low, row, "53,142", "average")[0]) for row in ("SimCSE, joint", "DiffAug, semi")
    }
    assert "the others are thin" in note(figure)


def test_labels_beside_a_panel_do_not_cover_each_other(tmp_path: Path) -> None:
    rows = [(f"{name}, sup", f"{name.lower()}-sup", "supervised", True) for name in ("SimCSE", "PromptBERT", "DiffAug")]
    # The means are all but equal, so that every label wants the same place.
    grid = make_grid(
        tmp_path, "low-label", cells_of(rows, ["10", "100"]), lambda cell: scored(80 + jitter(cell, 0.001))
    )
    figure = drawn(grid)
    figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent() for text in figure.axes[0].texts), key=lambda box: box.y0)
    assert len(boxes) == 3
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in pairwise(boxes))


@pytest.fixture
def curves(tmp_path: Path) -> Grid:
    """delta and kappa of three runs."""
    grid = make_grid(tmp_path / "curves", "divergence", cells_of([DIFFAUG]), lambda cell: scored(80.0))
    for cell in grid.cells:
        record = stage1_record(2500, noise=Random(cell.seed))
        write_metrics(grid.folder_of(cell), [*record, {"stage": 1, "step": 0, "dropout_delta": 1.5 + 0.1 * cell.seed}])
    return grid


def recorded(seed: int, name: str) -> dict[int, float]:
    return {int(e["step"]): e[name] for e in stage1_record(2500, noise=Random(seed)) if name in e}


@pytest.mark.parametrize(("panel", "name"), [(0, "delta"), (1, "kappa")])
def test_divergence_shows_the_mean_over_seeds_with_a_band(curves: Grid, panel: int, name: str) -> None:
    axes = drawn(curves).axes[panel]
    (line,) = [line for line in axes.lines if line.get_label() == "DiffAug, semi"]
    runs = [recorded(seed, name) for seed in SEEDS]
    values = np.array([list(run.values()) for run in runs])
    assert list(line.get_xdata()) == list(runs[0])
    np.testing.assert_allclose(line.get_ydata(), values.mean(0))
    corners = axes.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(corners[:, 1].max(), (values.mean(0) + values.std(0, ddof=1)).max())
    np.testing.assert_allclose(corners[:, 1].min(), (values.mean(0) - values.std(0, ddof=1)).min())


def automatic_end(seed: int) -> int:
    readiness = CompatibilityCurves()
    delta, kappa = recorded(seed, "delta"), recorded(seed, "kappa")
    for step in delta:
        readiness.add(step, delta[step], kappa[step])
        if readiness.stop_reason():
            return step
    raise AssertionError("the curves of this test meet the rule")


def test_divergence_marks_where_auto_ends_and_how_far_dropout_goes(curves: Grid) -> None:
    top, bottom = drawn(curves).axes
    ends = [automatic_end(seed) for seed in SEEDS]
    for axes in (top, bottom):
        (ring,) = [line for line in axes.lines if line.get_label() == "auto"]
        assert list(ring.get_xdata()) == [statistics.fmean(ends)]
    assert texts(bottom) == [f"auto: step {statistics.fmean(ends):,.0f} ({min(ends):,} to {max(ends):,})"]
    (dropout,) = [line for line in top.lines if line.get_label() == "dropout"]
    assert dropout.get_ydata()[0] == pytest.approx(statistics.fmean(1.5 + 0.1 * seed for seed in SEEDS))
    assert dropout.get_linestyle() == "--"
    assert texts(top) == ["dropout"]


def test_divergence_says_what_was_not_recorded_or_met(tmp_path: Path) -> None:
    grid = make_grid(tmp_path, "divergence", cells_of([DIFFAUG], seeds=[42]), lambda cell: scored(80.0))
    with pytest.raises(DiffaugError, match="recorded delta and kappa"):
        drawn(grid)
    write_metrics(grid.folder_of(grid.cells[0]), stage1_record(300))
    figure = drawn(grid)
    assert "No run recorded the reference dropout" in note(figure)
    assert "auto is not met" in note(figure)
    assert not [line for line in figure.axes[0].lines if line.get_label() in ("auto", "dropout")]


def test_stage1_steps_shows_dev_and_loss_and_marks_auto(tmp_path: Path) -> None:
    taken = dict(zip(SEEDS, (700, 800, 930), strict=True))

    def result(cell: Cell) -> Result:
        steps = taken[cell.seed] if cell.column == "auto" else int(cell.column.replace(",", ""))
        return replace(scored(80 + jitter(cell, 1.0)), steps={"1": steps} if steps else {})

    grid = make_grid(tmp_path, "stage1-steps", cells_of([DIFFAUG], ["0", "500", "1,000", "auto"]), result)
    losses: dict[str, list[float]] = {}
    for cell, left in grid.results():
        if "1" in left.steps:
            record = stage1_record(left.steps["1"], every=10, noise=Random(cell.name))
            write_metrics(grid.folder_of(cell), [*record, {"stage": 2, "step": left.steps["1"], "loss": 99.0}])
            last = [e["loss"] for e in record if "loss" in e and e["step"] > 0.9 * left.steps["1"]]
            losses.setdefault(cell.column, []).append(statistics.fmean(last))
    figure = drawn(grid)
    top, bottom = figure.axes
    x, y, _ = errorbars(top, "DiffAug, semi")
    assert list(x) == [0, 500, 1000]
    np.testing.assert_allclose(y, [by_hand(grid, "DiffAug, semi", column)[0] for column in ("0", "500", "1,000")])
    x, y, bars = errorbars(bottom, "DiffAug, semi")
    assert list(x) == [500, 1000]  # no stage 1, no loss: that is nothing to complain about
    np.testing.assert_allclose(y, [statistics.fmean(losses[column]) for column in ("500", "1,000")])
    np.testing.assert_allclose(bars, [statistics.stdev(losses[column]) for column in ("500", "1,000")])
    for axes, mean in ((top, by_hand(grid, "DiffAug, semi", "auto")[0]), (bottom, statistics.fmean(losses["auto"]))):
        x, y, _ = errorbars(axes, "auto")
        assert (x[0], y[0]) == (pytest.approx(810), pytest.approx(mean))
    assert texts(top)[-1] == "auto (810)"
    assert note(figure) == "Mean and standard deviation of 3 runs."


def test_stage1_steps_names_runs_without_a_record(tmp_path: Path) -> None:
    grid = make_grid(tmp_path, "stage1-steps", cells_of([DIFFAUG], ["500"]), lambda cell: scored(80.0))
    assert "Without a recorded loss: DiffAug, semi at 500" in note(drawn(grid))


@pytest.mark.parametrize(("unit", "factor"), [("minutes", 60.0), ("seconds", 1.0)])
def test_cost_has_bars_with_their_values(tmp_path: Path, unit: str, factor: float) -> None:
    rows = [(f"{name}, sup", f"{name.lower()}-sup", "", True) for name in ("SimCSE", "PromptBERT", "DiffAug")]
    times, memory = {"SimCSE, sup": 36.0, "PromptBERT, sup": 48.0, "DiffAug, sup": 65.0}, 10.25

    def result(cell: Cell) -> Result:
        left = scored(80.0, seconds=factor * times[cell.row] + cell.seed - SEEDS[1], gib=memory)
        return replace(left, machine={"device": "a GPU"})

    figure = drawn(make_grid(tmp_path, "cost", cells_of(rows), result))
    top, bottom = figure.axes
    assert top.get_title(loc="left") == f"Training time, {unit}"
    np.testing.assert_allclose([bar.get_width() for bar in top.patches], list(times.values()))
    np.testing.assert_allclose([bar.get_width() for bar in bottom.patches], [memory] * 3)
    assert texts(top) == ["36.0", "48.0", "65.0"]
    assert texts(bottom) == ["10.2"] * 3
    assert [label.get_text() for label in top.get_yticklabels()] == ["SimCSE", "PromptBERT", "DiffAug"]
    assert [to_hex(bar.get_facecolor()) for bar in top.patches] == [look_of(recipe).colour for _, recipe, *_ in rows]
    assert note(figure) == "Mean and standard deviation of 3 runs. Measured on a GPU."


def test_main_has_a_dot_a_row_and_its_best_in_bold(tmp_path: Path) -> None:
    values = {"No training, mean": 40.0, "SimCSE, unsup": 75.0, "SimCSE, sup": 80.0, "DiffAug, sup": 82.0}
    rows = [
        ("No training, mean", "untrained-mean", "unsupervised", True),
        ("SimCSE, unsup", "simcse-unsup", "unsupervised", True),
        ("SimCSE, sup", "simcse-sup", "supervised", True),
        ("DiffAug, sup", "diffaug-sup", "supervised", False),
    ]
    cells = [cell for cell in cells_of(rows) if cell.recipe != "untrained-mean" or cell.seed == SEEDS[0]]
    grid = make_grid(tmp_path, "main", cells, lambda cell: scored(values[cell.row] + jitter(cell, 0.3)))
    figure = drawn(grid)
    (axes,) = figure.axes
    for row in list(values)[1:]:
        x, _, bars = errorbars(axes, row)
        np.testing.assert_allclose((x[0], bars[0]), by_hand(grid, row, "", "average"))
    # Far below the others: at the edge, and its value beside it.
    (far,) = [line for line in axes.lines if line.get_label() == "No training, mean"]
    assert far.get_marker() == "<"
    assert min(axes.get_xlim()) > 70
    mean = next(result.scores["average"] for cell, result in grid.results() if cell.recipe == "untrained-mean")
    (said,) = [text for text in axes.texts if text.get_text() == f"{mean:.1f}"]
    assert said.get_fontweight() == "normal"
    bold = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
    best = [by_hand(grid, row, "", "average") for row in ("SimCSE, unsup", "DiffAug, sup")]
    assert bold == [*(f"{mean:.1f} ± {deviation:.1f}" for mean, deviation in best), "Unsupervised", "Supervised"]
    assert "Mean and standard deviation of 3 runs" in note(figure)


def test_a_row_that_is_near_to_others_stays_on_the_axis(tmp_path: Path) -> None:
    """However far it is below the best one, and whichever group that is in."""
    values = {"A": 75.0, "B": 58.0, "C": 56.0, "D": 40.0}
    rows = [(name, "simcse-unsup", "unsupervised", True) for name in values]
    cells = cells_of(rows)
    grid = make_grid(tmp_path, "main", cells, lambda cell: None if cell is cells[-1] else scored(values[cell.row]))
    figure = drawn(grid)
    (axes,) = figure.axes
    assert [container.get_label() for container in axes.containers] == ["A", "B", "C"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B", "C", "D†"]
    assert "† Incomplete: D (2 of 3 runs)" in note(figure)


def test_ablation_shows_the_dev_score(tmp_path: Path) -> None:
    def result(cell: Cell) -> Result:
        return Result({"STS-B dev": 86.0 + jitter(cell, 0.1), "average": 50.0}, seconds=1.0, gib=1.0)

    grid = make_grid(tmp_path, "ablation", cells_of([("Prefix, different", "diffaug-semi", "", False)]), result)
    (axes,) = drawn(grid).axes
    x, _, _ = errorbars(axes, "Prefix, different")
    assert x[0] == pytest.approx(by_hand(grid, "Prefix, different", "")[0])
    assert axes.get_title(loc="left") == "STS-B dev, Spearman × 100"


# --- what is missing ------------------------------------------------------------------------------------------------


def test_only_the_chosen_setting_counts(tmp_path: Path) -> None:
    cells = cells_of([DIFFAUG], ["8"])
    tried = [cells[0], replace(cells[0], setting=1), *cells[1:]]
    grid = make_grid(tmp_path, "prefix-length", tried, lambda cell: scored(70.0 if cell.setting else 80.0))
    (axes,) = drawn(grid).axes
    assert list(errorbars(axes, "DiffAug, semi")[1]) == [80.0]


def test_the_note_names_what_is_missing(tmp_path: Path) -> None:
    def result(cell: Cell) -> Result | None:
        gone = cell.column == "4" or (cell.column == "8" and cell.seed == SEEDS[2])
        return None if gone else lengths_result(cell)

    grid = make_grid(tmp_path, "prefix-length", cells_of([DIFFAUG], list(LENGTHS)), result)
    figure = drawn(grid)
    assert note(figure) == (
        "Mean and standard deviation of 2 to 3 runs. Without a result: DiffAug, semi at 4. "
        "Hollow markers are incomplete: DiffAug, semi at 8 (2 of 3 runs)."
    )
    assert list(errorbars(figure.axes[0], "DiffAug, semi")[0]) == [2, 8, 16]


def test_of_much_that_is_missing_the_first_are_named(tmp_path: Path) -> None:
    columns = [str(length) for length in range(1, 12)]
    grid = make_grid(
        tmp_path,
        "prefix-length",
        cells_of([DIFFAUG], columns),
        lambda cell: scored(80.0) if cell.column == "1" else None,
    )
    assert note(drawn(grid)).endswith("semi at 7 and 4 more.")


@pytest.mark.parametrize("experiment", experiment_names())
def test_a_grid_without_results_says_so(tmp_path: Path, experiment: str) -> None:
    grid = make_grid(tmp_path / "grid", experiment, cells_of([DIFFAUG], ["8"]), lambda cell: None)
    with pytest.raises(DiffaugError, match="nothing to draw"):
        draw(grid, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_one_run_is_called_one(tmp_path: Path) -> None:
    cells = cells_of([DIFFAUG], list(LENGTHS), seeds=[42])
    grid = make_grid(tmp_path, "prefix-length", cells, lengths_result)
    figure = drawn(grid)
    assert note(figure) == "One run each."
    assert errorbars(figure.axes[0], "DiffAug, semi")[2].max() == 0


def test_a_damaged_record_is_named_with_its_line(curves: Grid) -> None:
    path = curves.folder_of(curves.cells[1]) / "metrics.jsonl"
    path.write_text('{"stage": 1, "step": 0, "delta": 1.0}\n{"stage": 1, "st', "utf-8")
    with pytest.raises(DiffaugError, match=rf"{re.escape(str(path))}, line 2: not a JSON object"):
        drawn(curves)


def test_the_figure_of_a_grid_of_ones_own(tmp_path: Path) -> None:
    """Lines for columns that are numbers, dots otherwise."""
    for columns, kind in ((["0.03", "0.05"], "DiffAug, semi"), (["short", "long"], None)):
        grid = make_grid(tmp_path / columns[0], "mine", cells_of([DIFFAUG], columns), lambda cell: scored(80.0))
        (axes,) = drawn(grid).axes
        assert axes.get_title(loc="left") == "Mean of 2 STS tasks, Spearman × 100"
        named = [label.get_text() for label in (axes.get_xticklabels() if kind else axes.get_yticklabels())]
        assert named == (columns if kind else [f"DiffAug, semi {column}" for column in columns])


# --- files ----------------------------------------------------------------------------------------------------------


def test_files_are_the_same_every_time_whatever_the_settings_of_the_user(lengths: Grid, tmp_path: Path) -> None:
    first = draw(lengths, tmp_path / "first")
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "black"}):
        second = draw(Grid.open(lengths.folder), tmp_path / "second")
        assert matplotlib.rcParams["font.size"] == 30
    assert [path.name for path in first] == ["prefix-length.png", "prefix-length.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_files_carry_no_date_and_svg_keeps_its_text(lengths: Grid, tmp_path: Path) -> None:
    png, svg = draw(lengths, tmp_path)
    drawing = svg.read_text("utf-8")
    assert ">Prefix length (vectors a view)</text>" in drawing
    assert "DejaVu Sans" in drawing
    assert "date" not in drawing.lower()
    assert "matplotlib.org" not in drawing
    assert b"Software" not in png.read_bytes()
    width = int.from_bytes(png.read_bytes()[16:20], "big")
    assert width == 1120  # twice what a page shows


@pytest.mark.parametrize("experiment", experiment_names())
def test_every_plan_has_its_figure(experiment: str, tmp_path: Path, data_files: dict[str, str]) -> None:
    """Rows and columns as the plans name them, cell for cell, with made-up results."""
    files = DataFiles(triplets=data_files["nli"], sentences=data_files["unlabelled"], dev=data_files["dev"])
    columns = ("0 %", "10 %", "100 %") if experiment == "low-label" else ()
    made = plan(experiment, files, "small", encoder="E", seeds=SEEDS[:1], draws=1, columns=columns, generator="G")
    first = [cell for cell in made.cells if cell.setting == 0]
    cells = [*first, *(other for cell in first for other in made.more(cell))]

    def result(cell: Cell) -> Result:
        return replace(scored(80 + jitter(cell, 0.5)), steps={"1": 700})

    grid = make_grid(tmp_path / "grid", experiment, cells, result, made.columns_are)
    for cell in grid.cells:
        write_metrics(grid.folder_of(cell), stage1_record(700, noise=Random(cell.name)))
    files_made = draw(grid, tmp_path / "figures")
    assert [path.stat().st_size > 5_000 for path in files_made] == [True, True]
    drawing = files_made[1].read_text("utf-8")
    assert "Without a result" not in drawing
    assert "Incomplete" not in drawing


def test_families_differ_in_colour_and_marker() -> None:
    recipes = ["diffaug-sup", "promptbert-sup", "simcse-sup", "diffcse", "consert-joint", "sbert", "sbert-flow-nli"]
    looks: Sequence[Any] = [look_of(recipe) for recipe in [*recipes, "untrained-mean", "my-own"]]
    assert len({look.colour for look in looks}) == len(looks) == len({look.marker for look in looks})
    assert look_of("diffaug-semi-aux") == look_of("diffaug-sup")
    assert look_of("bert-flow-target") == look_of("sbert-flow-nli")


def test_saving_makes_the_folder(tmp_path: Path) -> None:
    with styled():
        files = save(Figure(), tmp_path / "new" / "empty")
    assert all(path.is_file() for path in files)
