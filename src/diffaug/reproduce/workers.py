"""Worker processes: each runs one cell after the other, and keeps what it has loaded.

A worker that is killed or crashes takes one cell with it, not the grid. This module imports nothing heavy: workers
start by reading it.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from diffaug.errors import DiffaugError
from diffaug.reproduce.cell import Cell, Result
from diffaug.reproduce.grid import SHARED, Grid
from diffaug.training.signals import StopRequest, be_patient

if TYPE_CHECKING:
    from diffaug.evaluation.folder import Folders
    from diffaug.reproduce.score import StsTasks

# A fork would inherit the state of CUDA, which does not survive it.
_PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Orders:
    """What every worker is told once.

    Attributes:
        grid: the grid's folder.
        data: the folders with the tasks that models are scored on.
        jobs: how many workers share the machine.
        keep_models: models stay when they are scored.
        fresh: a worker leaves after one cell, so that none finds anything loaded, trained or warm.
        record: what else to measure of a run, given its folder; a function that can be imported by its name.
    """

    grid: Path
    data: Folders
    jobs: int
    keep_models: bool = True
    fresh: bool = False
    record: Callable[[Path], None] | None = None


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: with a result, with a failure (a sentence, then a traceback), or, with neither, interrupted."""

    cell: Cell
    result: Result | None = None
    failure: str | None = None


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    cell: Cell | None = None


@dataclass
class Crew:
    """The workers of a grid, as a context: when it ends, so do they.

    Attributes:
        orders: for all of them.
        log: the file their output goes to.
        stopping: whether the grid was asked to stop, by a signal that may have reached its workers, too.
    """

    orders: Orders
    log: Path
    stopping: StopRequest = field(default_factory=StopRequest)
    _workers: list[_Worker] = field(default_factory=list)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        # Whoever still has a cell is not asked to save it: somebody is in a hurry.
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()

    @property
    def running(self) -> list[Cell]:
        """The cells that are being run."""
        return [worker.cell for worker in self._workers if worker.cell is not None]

    def start(self, count: int) -> None:
        """Let up to that many workers get ready, before there is work."""
        for _ in range(min(count, self.orders.jobs) - len(self._workers)):
            self._hire()

    def give(self, cell: Cell) -> None:
        """Have a free worker run a cell; there must be fewer `running` than jobs."""
        free = [worker for worker in self._workers if worker.cell is None]
        for worker in free:
            if not worker.process.is_alive():  # whatever became of it, it was not this cell's fault
                self._dismiss(worker)
        worker = next((worker for worker in free if worker in self._workers), None) or self._hire()
        worker.cell = cell
        with suppress(OSError):  # it has died meanwhile, which `outcomes` will find
            worker.connection.send(cell)

    def outcomes(self, timeout: float) -> list[Outcome]:
        """How cells ended, as soon as one does; none if the time is up before."""
        found = []
        busy = {worker.connection: worker for worker in self._workers if worker.cell is not None}
        for connection in wait(list(busy), timeout):
            worker = busy[connection]  # type: ignore[index]
            assert worker.cell is not None
            try:
                outcome, stays = worker.connection.recv()
            except (EOFError, OSError):
                outcome, stays = self._died(worker, worker.cell), False
            worker.cell = None
            if not stays:
                self._dismiss(worker)
            found.append(outcome)
        return found

    def stop(self) -> None:
        """Have all that run save their state and leave; `outcomes` tells when they have."""
        for worker in self._workers:
            if worker.cell is not None:
                worker.process.terminate()

    def _hire(self) -> _Worker:
        ours, theirs = _PROCESSES.Pipe()
        process = _PROCESSES.Process(target=_work, args=(theirs, self.orders, self.log))
        process.start()
        theirs.close()  # so that the end of the process is the end of the connection
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join()

    def _died(self, worker: _Worker, cell: Cell) -> Outcome:
        worker.process.join()
        code = worker.process.exitcode or 0
        # Where all processes are asked to stop, one that is not training just ends, perhaps before the grid knows.
        if self.stopping or -code in (signal.SIGINT, signal.SIGTERM):
            return Outcome(cell)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return Outcome(cell, failure=f"the process that ran it {how}; its last words may be in {self.log}")


def _work(connection: Connection, orders: Orders, log: Path) -> None:
    """A worker's life."""
    # Ctrl-C, and many a SIGTERM, reach all processes of a group or of a job, and the main process passes them on. A run
    # that is asked twice ends without saving its state, unless it is patient; the main process kills it if need be.
    be_patient()
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the main process alone
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _redirect_output(log)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    with Grid.join_lock(orders.grid), suppress(EOFError, OSError):  # the main process has gone
        bench = _Bench(orders)
        stays = True
        while stays:
            outcome, stays = bench.run(connection.recv())
            connection.send((outcome, stays))


class _Bench:
    """Where a worker runs its cells. Whatever is heavy is imported here."""

    def __init__(self, orders: Orders) -> None:
        import torch

        from diffaug.training.run_cache import RunCache

        self._orders = orders
        self._kept = None if orders.fresh else RunCache(orders.grid / SHARED)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, min(torch.get_num_threads(), cores // orders.jobs)))

    @cached_property
    def _tasks(self) -> StsTasks:
        from diffaug.reproduce.score import StsTasks

        return StsTasks.load(self._orders.data)

    def run(self, cell: Cell) -> tuple[Outcome, bool]:
        """Run a cell; how that went, and whether this process is fit for another."""
        from diffaug.reproduce.work import carry_out
        from diffaug.training.loop import TrainingInterrupted

        orders, fit = self._orders, not self._orders.fresh
        folder = orders.grid / "cells" / cell.name
        try:
            result = carry_out(
                cell, folder, self._tasks, self._kept, record=orders.record, keep_model=orders.keep_models
            )
            return Outcome(cell, result), fit
        except TrainingInterrupted:
            return Outcome(cell), False
        except DiffaugError as error:
            return Outcome(cell, failure=_words(error)), fit
        except Exception as error:
            # Memory may be short from now on, or CUDA beyond repair: a new process takes over.
            return Outcome(cell, failure=_words(error)), False
        finally:
            _free_memory()


def _words(error: Exception) -> str:
    """A sentence, and where it happened."""
    kind = "" if isinstance(error, DiffaugError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())}\n\n{''.join(traceback.format_exception(error))}"


def _free_memory() -> None:
    """Give back what a cell has left: others share the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _leave_with_parent() -> None:
    """Once the main process is gone, whatever happened to it, save and leave."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _redirect_output(log: Path) -> None:
    """Bars and warnings of many processes on one terminal would be of no use: they go to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable(2)
