"""Executors run the cells of a grid: in worker processes on this machine, or on the nodes of a Ray cluster.

A worker that is killed or crashes loses one cell, not the grid. This module imports nothing heavy: a worker process
chooses its GPU before it imports torch.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from diffaug.cluster import Engine, WorkerPool
from diffaug.experiments.data import TaskFiles
from diffaug.experiments.grid import Grid
from diffaug.experiments.results import Cell, Result
from diffaug.training.signals import StopRequest, be_patient

# A forked process could not use CUDA.
_PROCESSES = multiprocessing.get_context("spawn")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Orders:
    """What all workers of a grid need.

    Attributes:
        grid: its folder.
        tasks: what models are scored on.
        jobs: how many cells run at the same time on this machine.
        keep_models: keep models after they are scored.
        alone: one process per cell, which finds nothing loaded or trained: for measurements of time and memory.
        measure: what else is measured, as named in the specification.
        plugins: modules or .py files that every worker imports.
        force: continue unfinished runs even if their inputs have changed.
    """

    grid: Path
    tasks: TaskFiles
    jobs: int
    keep_models: bool = True
    alone: bool = False
    measure: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True)
class Outcome:
    """The end of a cell: a result, a failure (a sentence, then a traceback), or neither if it was interrupted."""

    cell: Cell
    result: Result | None = None
    failure: str | None = None


class Executor(ABC):
    """Runs cells, as a context manager: at its end, all that still run are killed.

    Attributes:
        capacity: how many cells may run at the same time.
    """

    capacity: int

    def __enter__(self) -> Executor:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @property
    @abstractmethod
    def running(self) -> list[Cell]:
        """The cells that run."""

    @abstractmethod
    def prepare(self, count: int) -> None:
        """Get ready for this many cells."""

    @abstractmethod
    def submit(self, cell: Cell) -> None:
        """Run a cell; there must be fewer `running` than `capacity`."""

    @abstractmethod
    def wait(self, timeout: float) -> list[Outcome]:
        """The outcomes of cells that have ended, as soon as there is one; empty after ``timeout`` seconds."""

    @abstractmethod
    def stop(self) -> None:
        """Ask running cells to save their state and end; `wait` returns their outcomes."""


@dataclass
class _WorkerProcess:
    process: BaseProcess
    connection: Connection
    slot: int
    cell: Cell | None = None


@dataclass
class LocalExecutor(Executor):
    """Worker processes on this machine. Where there are several GPUs, each job has its own, in turn.

    Attributes:
        orders: for all workers.
        log: the file for their output.
        stopping: whether the grid was asked to stop, by a signal that may have reached its workers too.
    """

    orders: Orders
    log: Path
    stopping: StopRequest = field(default_factory=StopRequest)
    _workers: list[_WorkerProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.capacity = self.orders.jobs

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()

    @property
    def running(self) -> list[Cell]:
        return [worker.cell for worker in self._workers if worker.cell is not None]

    def prepare(self, count: int) -> None:
        for _ in range(min(count, self.capacity) - len(self._workers)):
            self._start()

    def submit(self, cell: Cell) -> None:
        free = [worker for worker in self._workers if worker.cell is None]
        for worker in free:
            if not worker.process.is_alive():  # not because of this cell
                self._remove(worker)
        worker = next((worker for worker in free if worker in self._workers), None) or self._start()
        worker.cell = cell
        with suppress(OSError):  # the process has died; `wait` will notice
            worker.connection.send(cell)

    def wait(self, timeout: float) -> list[Outcome]:
        found = []
        busy = {worker.connection: worker for worker in self._workers if worker.cell is not None}
        for connection in wait(list(busy), timeout):
            worker = busy[connection]  # type: ignore[index]
            assert worker.cell is not None
            try:
                outcome, reusable = worker.connection.recv()
            except (EOFError, OSError):
                outcome, reusable = self._died(worker, worker.cell), False
            worker.cell = None
            if not reusable:
                self._remove(worker)
            found.append(outcome)
        return found

    def stop(self) -> None:
        for worker in self._workers:
            if worker.cell is not None:
                worker.process.terminate()

    def _start(self) -> _WorkerProcess:
        ours, theirs = _PROCESSES.Pipe()
        taken = {worker.slot for worker in self._workers}
        slot = next(number for number in range(self.capacity + 1) if number not in taken)
        process = _PROCESSES.Process(target=_work, args=(theirs, self.orders, self.log, gpu_of(slot)))
        process.start()
        theirs.close()  # so that the connection ends when the process does
        self._workers.append(_WorkerProcess(process, ours, slot))
        return self._workers[-1]

    def _remove(self, worker: _WorkerProcess) -> None:
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join()

    def _died(self, worker: _WorkerProcess, cell: Cell) -> Outcome:
        worker.process.join()
        code = worker.process.exitcode or 0
        # A signal to all processes ends a worker that is not training, perhaps before the grid has noticed it.
        if self.stopping or -code in (signal.SIGINT, signal.SIGTERM):
            return Outcome(cell)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return Outcome(cell, failure=f"the worker process {how}; see {self.log} for its last output")


class RayExecutor(Executor):
    """Workers on the nodes of a Ray cluster, which share the grid's folder. More jobs than GPUs share them.

    Args:
        orders: for all workers.
        jobs: cells that run at the same time; None: one per GPU of the cluster, or per core if it has none.
        stopping: as in `LocalExecutor`.
    """

    def __init__(self, orders: Orders, jobs: int | None, stopping: StopRequest) -> None:
        # The number of threads of a worker is that of the cores that Ray has reserved for it.
        self._pool = WorkerPool[Cell, tuple[Outcome, bool]](partial(_ray_worker, replace(orders, jobs=1)), jobs)
        self._stopping = stopping
        self._not_begun: list[Cell] = []
        self.capacity = self._pool.size

    def __exit__(self, *error: object) -> None:
        self._pool.__exit__(*error)

    @property
    def running(self) -> list[Cell]:
        return [*self._pool.running, *self._not_begun]

    def prepare(self, count: int) -> None:
        pass  # a worker starts with its first cell

    def submit(self, cell: Cell) -> None:
        self._pool.submit(cell)

    def wait(self, timeout: float) -> list[Outcome]:
        found, self._not_begun = [Outcome(cell) for cell in self._not_begun], []
        for done in self._pool.wait(timeout):
            if done.result is None:
                failure = None if self._stopping else str(done.error)
                found.append(Outcome(done.item, failure=failure))
                continue
            outcome, reusable = done.result
            if not reusable:
                self._pool.retire(done.worker)
            found.append(outcome)
        return found

    def stop(self) -> None:
        self._not_begun = self._pool.stop()


def open_executor(engine: Engine, orders: Orders, jobs: int | None, stopping: StopRequest) -> Executor:
    """The executor of an engine; ``jobs`` None: 1 on this machine, as many as fit on a cluster."""
    if engine == "ray":
        return RayExecutor(orders, jobs, stopping)
    return LocalExecutor(orders, orders.grid / "workers.log", stopping)


def _ray_worker(orders: Orders) -> Callable[[Cell], tuple[Outcome, bool]]:
    """Called in the process of a worker; the lock ends with the process."""
    be_patient()
    from diffaug.experiments.worker import Worker  # imports torch

    lock = Grid.worker_lock(orders.grid)
    lock.__enter__()
    worker = Worker(orders)

    def run(cell: Cell, _: object = lock) -> tuple[Outcome, bool]:
        return worker.run(cell)

    return run


def gpu_of(slot: int) -> str | None:
    """The GPU of a job, as CUDA_VISIBLE_DEVICES takes it; None: leave it as it is."""
    if (visible := os.environ.get(_VISIBLE)) is not None:
        gpus = [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    else:  # without torch, whose import takes seconds
        folder = Path("/proc/driver/nvidia/gpus")
        gpus = [str(number) for number, _ in enumerate(folder.iterdir())] if folder.is_dir() else []
    return gpus[slot % len(gpus)] if len(gpus) > 1 else None


def _work(connection: Connection, orders: Orders, log: Path, gpu: str | None) -> None:
    """The main function of a worker process."""
    # Ctrl-C and SIGTERM may reach all processes, and the main process sends them as well. A run that is asked to stop
    # twice would end without saving; the main process kills it if necessary.
    be_patient()
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C only reaches the main process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if gpu is not None:
        os.environ[_VISIBLE] = gpu
    _redirect_output(log)
    threading.Thread(target=end_with_parent, daemon=True).start()
    from diffaug.experiments.worker import Worker  # imports torch, after the GPU is chosen

    with Grid.worker_lock(orders.grid), suppress(EOFError, OSError):  # the main process has ended
        worker = Worker(orders)
        reusable = True
        while reusable:
            outcome, reusable = worker.run(connection.recv())
            connection.send((outcome, reusable))


def end_with_parent() -> None:
    """Save and end when the main process has ended for any reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _redirect_output(log: Path) -> None:
    """Send bars and warnings of workers to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable(2)
