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

from diffaug.experiments import executor
from diffaug.experiments.data import TaskFiles
from diffaug.experiments.executor import LocalExecutor, Orders, Outcome
from diffaug.experiments.results import Result

CELL = made_up_cell("A")
RESULT = Result({"average": 70.0}, 1.0, 0.5)


def obey(connection: Connection, orders: Orders, log: Path, gpu: str | None) -> None:
    """A worker to which a cell's row says how it ends: by a signal, or well."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        cell = connection.recv()
        if cell.row.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[cell.row])
        connection.send((Outcome(cell, RESULT), True))


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalExecutor]:
    monkeypatch.setattr(executor, "_PROCESSES", multiprocessing.get_context("fork"))
    monkeypatch.setattr(executor, "_work", obey)
    with LocalExecutor(Orders(tmp_path, TaskFiles(()), 2), tmp_path / "log") as found:
        yield found


def outcome(crew: LocalExecutor) -> Outcome:
    """The next one, however long it takes."""
    while True:
        for found in crew.wait(60):
            return found


def test_who_died_waiting_takes_no_cell_along(crew: LocalExecutor) -> None:
    crew.prepare(1)
    (idle,) = crew._workers
    idle.process.kill()
    idle.process.join()
    crew.submit(CELL)
    assert outcome(crew) == Outcome(CELL, RESULT)
    # The one that took its place is kept.
    (new,) = crew._workers
    crew.submit(CELL)
    assert outcome(crew) == Outcome(CELL, RESULT)
    assert crew._workers == [new]


def test_a_crash_is_a_failure_and_a_request_to_stop_is_none(crew: LocalExecutor) -> None:
    crew.submit(made_up_cell("SIGKILL"))
    failure = outcome(crew).failure
    assert failure is not None
    assert failure.startswith("the worker process was killed by SIGKILL")
    for name in ("SIGTERM", "SIGINT"):
        crew.submit(made_up_cell(name))
        assert outcome(crew) == Outcome(made_up_cell(name))
    assert crew.running == []


def test_who_ends_with_a_grid_that_is_stopped_has_not_failed(crew: LocalExecutor) -> None:
    """The same signal reaches all processes, and a worker may be gone before it was told by the main process."""
    crew.submit(made_up_cell("SIGKILL"))
    crew.stopping.signal = signal.SIGTERM
    assert outcome(crew) == Outcome(made_up_cell("SIGKILL"))


def report_gpu(connection: Connection, orders: Orders, log: Path, gpu: str | None) -> None:
    """A worker that says which GPU it has."""
    cell = connection.recv()
    connection.send((Outcome(cell, failure=str(gpu)), False))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("2,GPU-x", {"2", "GPU-x"}), ("7", {"None"}), ("", {"None"})],
    ids=["several", "one", "none"],
)
def test_each_job_has_its_own_gpu_where_there_are_several(
    crew: LocalExecutor, monkeypatch: pytest.MonkeyPatch, visible: str, expected: set[str]
) -> None:
    monkeypatch.setattr(executor, "_work", report_gpu)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for _ in range(2):  # a worker that has ended leaves its GPU to the next
        for row in ("A", "B"):
            crew.submit(made_up_cell(row))
        assert {outcome(crew).failure for _ in range(2)} == expected
