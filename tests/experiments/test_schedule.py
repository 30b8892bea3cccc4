"""Which cell comes next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from grid_work import ABOUT, finish, made_up_cell

from diffaug.experiments.grid import Grid
from diffaug.experiments.results import Cell
from diffaug.experiments.schedule import Schedule

A0, A1, B0, B1 = (made_up_cell(row, setting=setting) for row in "AB" for setting in (0, 1))


def more(cell: Cell) -> list[Cell]:
    return [replace(cell, seed=seed) for seed in (43, 44)]


@pytest.fixture
def begin(tmp_path: Path) -> Callable[[], Grid]:
    return lambda: Grid.begin(tmp_path / "grid", {"experiment": "made-up"}, ABOUT, [A0, A1, B0, B1])


def drain(schedule: Schedule) -> list[Cell]:
    found = []
    while (cell := schedule.next()) is not None:
        found.append(cell)
    return found


def test_other_seeds_of_the_best_setting_follow_without_waiting_for_other_rows(begin: Callable[[], Grid]) -> None:
    grid = begin()
    schedule = Schedule(grid, more)
    assert (schedule.total, schedule.finished, schedule.waiting) == (8, 0, 4)
    # Settings of a row may share their stage 1, so they do not start side by side.
    assert drain(schedule) == [A0, B0, A1, B1]
    for cell, dev in ((A1, 70.0), (B0, 50.0), (A0, 60.0)):
        assert schedule.next() is None
        finish(grid, cell, dev)
        schedule.over(cell, finished=True)
    assert drain(schedule) == more(A1)
    assert Grid.open(grid.folder).more == more(A1)
    grid.fail(B1, "no luck")
    schedule.over(B1, finished=False)
    assert drain(schedule) == more(B0)
    for cell in (*more(A1), *more(B0)):
        finish(grid, cell, 1.0)
        schedule.over(cell, finished=True)
    assert schedule.next() is None
    assert schedule.finished == 7


def test_settings_that_end_together_are_followed_once(begin: Callable[[], Grid]) -> None:
    grid = begin()
    schedule = Schedule(grid, more, rows={"A"})
    assert drain(schedule) == [A0, A1]
    for cell, dev in ((A0, 60.0), (A1, 70.0)):  # both have written their results before either is reported
        finish(grid, cell, dev)
    schedule.over(A0, finished=True)
    assert schedule.next() == more(A1)[0]
    schedule.over(A1, finished=True)
    assert drain(schedule) == more(A1)[1:]
    assert schedule.finished == 2


def test_a_grid_goes_on_where_it_was(begin: Callable[[], Grid]) -> None:
    grid = begin()
    for cell, dev in ((A0, 60.0), (A1, 70.0), (B0, 50.0), (more(A1)[0], 70.0)):
        finish(grid, cell, dev)
    grid.fail(B1, "no luck")
    schedule = Schedule(begin(), more)
    # The failed cell is tried again before its row has a best setting.
    assert drain(schedule) == [B1, more(A1)[1]]
    assert (schedule.total, schedule.finished) == (8, 4)
    assert begin().failures() == []


def test_a_setting_that_failed_first_may_win_later(begin: Callable[[], Grid]) -> None:
    grid = begin()
    finish(grid, A0, 60.0)
    grid.add(more(A0))
    for cell in more(A0):
        finish(grid, cell, 60.0)
    schedule = Schedule(grid, more, rows={"A"})
    assert drain(schedule) == [A1]
    finish(grid, A1, 70.0)
    schedule.over(A1, finished=True)
    assert drain(schedule) == more(A1)
    assert grid.chosen() == {("A", ""): 1}


def test_only_some_rows(begin: Callable[[], Grid]) -> None:
    schedule = Schedule(begin(), more, rows={"B"})
    assert schedule.total == 4
    assert drain(schedule) == [B0, B1]


def test_where_nothing_succeeds_nothing_follows(begin: Callable[[], Grid]) -> None:
    grid = begin()
    schedule = Schedule(grid, more, rows={"A"})
    for cell in drain(schedule):
        grid.fail(cell, "no luck")
        schedule.over(cell, finished=False)
    assert schedule.next() is None
