"""What the bootstrap gave is kept, and never outlives the similarities it was drawn from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_grids import PAIRS, again, begin, finish, make_cell

from diffaug.evaluation.statistics import Floats
from diffaug.experiments import paired
from diffaug.experiments.grid import Grid
from diffaug.experiments.paired import RESAMPLES, resample_key
from diffaug.experiments.results import Summary
from diffaug.experiments.summary import summarise

BASELINE, METHOD = make_cell("SimCSE, sup", baseline=True), make_cell("DiffAug, sup", recipe="diffaug-sup")
ONE_ROW = len(PAIRS)
"""Bootstraps: one for each task."""


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    """Two rows with a run each."""
    grid = begin(tmp_path / "grid", [BASELINE, METHOD])
    for cell, noise in ((BASELINE, 2.0), (METHOD, 1.5)):
        finish(grid, cell, noise)
    return grid


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[Grid], tuple[Summary, int]]:
    """Summarises a grid, and says how many bootstraps that took."""
    calls: list[str] = []
    real = paired.bootstrap

    def counting(statistic: paired.MeanSpearman, name: str, resamples: int, seed: int) -> Floats:
        calls.append(name)
        return real(statistic, name, resamples, seed)

    monkeypatch.setattr(paired, "bootstrap", counting)

    def summarised(grid: Grid) -> tuple[Summary, int]:
        before = len(calls)
        return summarise(grid, resamples=100), len(calls) - before

    return summarised


Drawn = Callable[[Grid], tuple[Summary, int]]


def test_nothing_is_drawn_twice(grid: Grid, drawn: Drawn) -> None:
    first, count = drawn(grid)
    assert count == 2 * ONE_ROW
    again_, count = drawn(Grid.open(grid.folder))
    assert count == 0
    assert again_ == first
    assert first.entries[1].test is not None


def test_a_cell_that_changes_has_its_row_drawn_again(grid: Grid, drawn: Drawn) -> None:
    before, _ = drawn(grid)
    finish(grid, METHOD, 3.0)
    after, count = drawn(grid)
    assert count == ONE_ROW
    assert after.entries[1].test != before.entries[1].test
    (grid.folder / RESAMPLES).unlink()
    assert drawn(grid) == (after, 2 * ONE_ROW)


def test_a_new_cell_has_its_row_drawn_again(grid: Grid, drawn: Drawn) -> None:
    drawn(grid)
    grid.add([again(METHOD, 2)])
    assert drawn(grid)[1] == 0  # as long as it has no result
    finish(grid, again(METHOD, 2), 3.0)
    after, count = drawn(grid)
    assert count == ONE_ROW
    with np.load(grid.folder / RESAMPLES) as kept:
        assert len(kept.files) == 2  # what the row's one run had given is gone
    (grid.folder / RESAMPLES).unlink()
    assert drawn(grid)[0] == after


@pytest.mark.parametrize("text", [b"", b"nonsense", b"PK\x03\x04 but no more"])
def test_a_damaged_file_costs_time_alone(grid: Grid, drawn: Drawn, text: bytes) -> None:
    expected, _ = drawn(grid)
    (grid.folder / RESAMPLES).write_bytes(text)
    assert drawn(grid) == (expected, 2 * ONE_ROW)
    assert drawn(grid) == (expected, 0)


def test_a_file_that_cannot_be_written_costs_time_alone(grid: Grid, drawn: Drawn) -> None:
    (grid.folder / RESAMPLES / "in the way").mkdir(parents=True)
    expected, _ = drawn(grid)
    assert drawn(grid) == (expected, 2 * ONE_ROW)
    assert list(grid.folder.glob("*.npz")) == [grid.folder / RESAMPLES]  # and no temporary file


def test_who_gives_up_half_way_keeps_what_there_is(
    tmp_path: Path, drawn: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_cell("PromptBERT, sup")
    grid = begin(tmp_path / "grid", [BASELINE, METHOD, other])
    for cell in grid.cells:
        finish(grid, cell, 2.0)
    drawn(grid)
    finish(grid, METHOD, 2.5)

    def give_up(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(paired, "compare", give_up)
        with pytest.raises(KeyboardInterrupt):
            drawn(grid)  # with the first test, before the third row was asked for
    assert drawn(grid)[1] == 0


def test_a_resample_key_is_of_everything_that_goes_in() -> None:
    one, two = np.arange(4, dtype=np.float32), np.arange(1, 5, dtype=np.float32)
    kept = resample_key([{"a": one, "b": two}], {"a": one, "b": one}, ["a", "b"], 100, 0)
    others = [
        resample_key([{"a": two, "b": two}], {"a": one, "b": one}, ["a", "b"], 100, 0),
        resample_key([{"a": one, "b": two}], {"a": one, "b": two}, ["a", "b"], 100, 0),
        resample_key([{"a": one, "b": two}] * 2, {"a": one, "b": one}, ["a", "b"], 100, 0),
        resample_key([{"a": one, "b": two}], {"a": one, "b": one}, ["a"], 100, 0),
        resample_key([{"a": one, "b": two}], {"a": one, "b": one}, ["a", "b"], 99, 0),
        resample_key([{"a": one, "b": two}], {"a": one, "b": one}, ["a", "b"], 100, 1),
        resample_key([{"x": one, "b": two}], {"x": one, "b": one}, ["x", "b"], 100, 0),
    ]
    assert len({kept, *others}) == 1 + len(others)
    assert kept == resample_key([{"a": one.copy(), "b": two}], {"b": one, "a": one}, ["a", "b"], 100, 0)
