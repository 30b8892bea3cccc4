"""Workers that end at a bad moment: whose fault it was, and who takes over."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from grid_work import made_up_cell

from diffaug.reproduce import workers
from diffaug.reproduce.cell import Result
from diffaug.reproduce.workers import Crew, Orders, Outcome

CELL = made_up_cell("A")
RESULT = Result({"average": 70.0}, 1.0, 0.5)


def obey(connection: Connection, orders: Orders, log: Path) -> None:
    """A worker to which a cell's row says how it ends: by a signal, or well."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        cell = connection.recv()
        if cell.row.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[cell.row])
        connection.send((Outcome(cell, RESULT), True))


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    monkeypatch.setattr(workers, "_PROCESSES", multiprocessing.get_context("fork"))
    monkeypatch.setattr(workers, "_work", obey)
    with Crew(Orders(tmp_path, tmp_path, 2), tmp_path / "log") as found:
        yield found


def outcome(crew: Crew) -> Outcome:
    """The next one, however long it takes."""
    while True:
        for found in crew.outcomes(60):
            return found


def test_who_died_waiting_takes_no_cell_along(crew: Crew) -> None:
    crew.start(1)
    (idle,) = crew._workers
    idle.process.kill()
    idle.process.join()
    crew.give(CELL)
    assert outcome(crew) == Outcome(CELL, RESULT)
    # The one that took its place is kept.
    (new,) = crew._workers
    crew.give(CELL)
    assert outcome(crew) == Outcome(CELL, RESULT)
    assert crew._workers == [new]


def test_a_crash_is_a_failure_and_a_request_to_stop_is_none(crew: Crew) -> None:
    crew.give(made_up_cell("SIGKILL"))
    failure = outcome(crew).failure
    assert failure is not None
    assert failure.startswith("the process that ran it was killed by SIGKILL; its last words")
    for name in ("SIGTERM", "SIGINT"):
        crew.give(made_up_cell(name))
        assert outcome(crew) == Outcome(made_up_cell(name))
    assert crew.running == []


def test_who_ends_with_a_grid_that_is_stopped_has_not_failed(crew: Crew) -> None:
    """The same signal reaches all processes, and a worker may be gone before it was told by the main process."""
    crew.give(made_up_cell("SIGKILL"))
    crew.stopping.signal = signal.SIGTERM
    assert outcome(crew) == Outcome(made_up_cell("SIGKILL"))
