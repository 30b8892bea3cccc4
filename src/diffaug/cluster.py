"""Workers on the nodes of a Ray cluster, for ``engine="ray"``. Needs the extra ``ray``.

Nodes may be lost at any time: what their workers were doing is done again elsewhere. If the head node is lost, Ray ends
this process after a minute, without an error that Python could catch. The pool therefore asks the head node itself, and
raises an error before that.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import ceil
from typing import Any, Generic, Literal, TypeVar, get_args

from diffaug.errors import DiffaugError

Engine = Literal["local", "ray"]
Item = TypeVar("Item")
Result = TypeVar("Result")

# How often the same work may lose its worker: it may be the work that kills it.
_MOST_LOSSES = 3
# Seconds between looks at the head node, and without an answer until it is given up: less than the minute of Ray.
_LOOK, _PATIENCE = 2.0, 20.0
# Settings of the user that a worker on another machine would not know.
_SETTINGS = ("DIFFAUG_", "HF_", "TRANSFORMERS_")


def check_engine(engine: str) -> None:
    """Raise an error if there is no such engine."""
    if engine not in get_args(Engine):
        raise DiffaugError(f"engine must be one of {', '.join(get_args(Engine))}, got {engine!r}")


class WorkerLost(DiffaugError):  # noqa: N818 - the work may be what ends its workers
    """Work is given up, since its worker was lost again and again, or after `WorkerPool.stop`."""


@dataclass(frozen=True)
class Done(Generic[Item, Result]):
    """Work that has ended, with a result or an error.

    Attributes:
        item: what was submitted.
        result: of the function.
        error: what it raised, or `WorkerLost`.
        worker: for `WorkerPool.retire`.
    """

    item: Item
    result: Result | None = None
    error: Exception | None = None
    worker: Any = None


@dataclass(eq=False)
class _Work(Generic[Item]):
    item: Item
    losses: int = 0


@dataclass(eq=False)
class _Worker(Generic[Item]):
    """An actor; ``call`` is what it does now (None: nothing), ``place`` its node and process, once it has started."""

    actor: Any
    call: Any
    place: tuple[str, int] | None = None
    work: _Work[Item] | None = None


class WorkerPool(Generic[Item, Result]):
    """A context manager: connects to the cluster, starts workers as they are needed, and ends them.

    The cluster is the one that is connected already, that of the environment variable RAY_ADDRESS, one that runs on
    this machine, or else a new one on this machine.

    Args:
        make: returns the function that does a piece of work; called once in the process of each worker. It is pickled
            by name, so that every node needs the same package. Workers use the working directory of this process.
        size: the number of workers; None: one per GPU of the cluster, or per core if it has none. More workers than
            GPUs share them.

    Raises:
        DiffaugError: ray is not installed, there is no cluster, it has no resources, or its head node is lost.
    """

    def __init__(self, make: Callable[[], Callable[[Item], Result]], size: int | None = None) -> None:
        self._stack = ExitStack()
        self._ray = self._stack.enter_context(connected())
        try:
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            self.gpus = int(sum(node.get("GPU", 0) for node in nodes))
            self.size, options = _shares(nodes, size)
            self._actor = self._ray.remote(_Actor).options(**options)
            self._setup = self._ray.put((pickle.dumps(make), os.getcwd(), _settings()))
        except BaseException:
            self._stack.close()
            raise
        self._head = _head(self._ray)
        self._looked = self._answered = time.monotonic()
        self._workers: list[_Worker[Item]] = []
        self._queue: list[_Work[Item]] = []
        self._failed_starts = 0
        self._stopped = False

    def __enter__(self) -> WorkerPool[Item, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._workers):
            self.retire(worker)
        self._stack.close()

    @property
    def running(self) -> list[Item]:
        """What was submitted and has not ended."""
        works = [worker.work for worker in self._workers if worker.work is not None]
        return [work.item for work in [*works, *self._queue]]

    def submit(self, item: Item) -> None:
        """Do a piece of work on the next free worker."""
        self._queue.append(_Work(item))
        self._assign()

    def wait(self, timeout: float) -> list[Done[Item, Result]]:
        """Work that has ended, as soon as there is some; empty after ``timeout`` seconds.

        Raises:
            DiffaugError: the head node is lost, or workers cannot start.
        """
        begin = time.monotonic()
        self._assign()
        calls = {worker.call: worker for worker in self._workers if worker.call is not None}
        errors = self._ray.exceptions
        found: list[Done[Item, Result]] = []
        try:
            ready = self._ray.wait(list(calls), timeout=timeout)[0] if calls else []
            for worker in [calls[call] for call in ready]:
                try:
                    result = self._ray.get(worker.call, timeout=_PATIENCE)
                except errors.GetTimeoutError:
                    continue
                except errors.RayTaskError as error:
                    if worker.work is None:
                        raise _reason(error) from None
                    found.append(Done(worker.work.item, error=_reason(error), worker=worker))
                except errors.RayError as error:
                    found += self._lost(worker, error)
                    continue
                else:
                    if worker.work is None:
                        worker.place, self._failed_starts = result, 0
                    else:
                        found.append(Done(worker.work.item, result, worker=worker))
                worker.call = worker.work = None
        except ConnectionError as error:  # of a cluster with an address of the kind ray://
            raise _head_lost(str(error)) from error
        if not self._answers() and time.monotonic() - self._answered > _PATIENCE:
            raise _head_lost(f"no answer from {self._head}")
        self._assign()
        if not found and (rest := timeout - (time.monotonic() - begin)) > 0:
            time.sleep(min(rest, 0.05))  # after the loss of a node, `ray.wait` may return early
        return found

    def retire(self, worker: _Worker[Item]) -> None:
        """End a worker; another one takes its place when it is needed."""
        self._workers.remove(worker)
        if self._answers():  # otherwise Ray would wait
            with suppress(Exception):
                self._ray.kill(worker.actor)

    def stop(self) -> list[Item]:
        """Send SIGTERM to busy workers, whose results `wait` returns; also return what no worker has begun."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

        self._stopped = True
        for worker in self._workers:
            if worker.work is not None and worker.place is not None:
                node, process = worker.place
                terminate = self._ray.remote(_terminate).options(num_cpus=0, scheduling_strategy=OnNode(node, False))
                terminate.remote(process)
        waiting, self._queue = [work.item for work in self._queue], []
        return waiting

    def _assign(self) -> None:
        for worker in self._workers:
            if self._queue and worker.call is None:
                worker.work = self._queue.pop(0)
                worker.call = worker.actor.do.remote(worker.work.item)
        starting = sum(worker.work is None for worker in self._workers)
        for _ in range(min(len(self._queue) - starting, self.size - len(self._workers))):
            if self._answers():
                actor = self._actor.remote(self._setup)
                self._workers.append(_Worker(actor, actor.start.remote()))

    def _lost(self, worker: _Worker[Item], error: Exception) -> list[Done[Item, Result]]:
        """A worker has died, perhaps with its node. Its work goes to another one."""
        self.retire(worker)
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
        work = worker.work
        if work is None:
            self._failed_starts += 1
            if self._failed_starts > _MOST_LOSSES + self.size:
                raise DiffaugError(f"the workers on the Ray cluster end as soon as they start: {reason}")
            return []
        work.losses += 1
        if self._stopped or work.losses >= _MOST_LOSSES:
            message = f"the worker on the Ray cluster was lost {work.losses} times: {reason}"
            return [Done(work.item, error=WorkerLost(message), worker=worker)]
        warnings.warn(f"a worker on the Ray cluster was lost, its work is done again: {reason}", stacklevel=3)
        self._queue.insert(0, work)
        return []

    def _answers(self) -> bool:
        """Whether the head node answered when it was last asked."""
        if self._head is not None and (now := time.monotonic()) - self._looked > _LOOK:
            self._looked = now
            if _reachable(self._head):
                self._answered = now
        return self._answered >= self._looked or self._head is None


class _Actor:
    """Runs in the process of a worker; Ray calls its methods in the main thread."""

    def __init__(self, setup: tuple[bytes, str, Mapping[str, str]]) -> None:
        self._setup = setup

    def start(self) -> tuple[str, int]:
        """Not in the constructor: an error there would lose its type."""
        import ray

        make, folder, settings = self._setup
        os.environ.update(settings)
        try:
            os.chdir(folder)
        except OSError as error:
            raise DiffaugError(
                f"{socket.gethostname()} has no folder {folder}; run the command in a folder that all nodes share"
            ) from error
        self._do = pickle.loads(make)()
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def do(self, item: Any) -> Any:
        return self._do(item)


def _terminate(process: int) -> None:
    with suppress(OSError):
        os.kill(process, signal.SIGTERM)


@contextmanager
def connected() -> Iterator[Any]:
    """The module ray, connected to a cluster; a connection that is made here ends with the block.

    Raises:
        DiffaugError: ray is not installed, or there is no connection.
    """
    try:
        import ray
    except ImportError as error:
        raise DiffaugError("the engine ray needs the package ray: pip install 'diffaug[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS", "")
    where = f"the Ray cluster at {address} (RAY_ADDRESS)" if address else "a Ray cluster"
    # Ray itself would try for minutes, and may end the process.
    if ":" in address and not _reachable(address.rpartition("/")[2]):
        raise DiffaugError(f"{where} does not answer; start it, or correct RAY_ADDRESS")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray has many kinds
        raise DiffaugError(f"no connection to {where}: {' '.join(str(error).split())[:300]}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has set its own


def _shares(nodes: Sequence[Mapping[str, float]], size: int | None) -> tuple[int, dict[str, float]]:
    """The number of workers, and what Ray reserves for each: a GPU or a part of one, or else cores."""
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if gpus:
        size = size or gpus
        return size, {"num_cpus": 0, "num_gpus": 1 / ceil(size / gpus)}
    cores = [int(node.get("CPU", 0)) for node in nodes]
    size = size or sum(cores)
    if not size:
        raise DiffaugError("the Ray cluster has no cores and no GPUs for workers; add a node")
    fit = (share for share in range(max(cores), 0, -1) if sum(count // share for count in cores) >= size)
    return size, {"num_cpus": next(fit, 1)}


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}


def _head(ray: Any) -> str | None:
    """The address of the head node's server; None for a client, whose connection notices the loss itself."""
    return None if ray.util.client.ray.is_connected() else str(ray.get_runtime_context().gcs_address)


def _reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except (OSError, ValueError):
        return False
    return True


def _head_lost(reason: str) -> DiffaugError:
    return DiffaugError(
        f"the Ray cluster has lost its head node ({reason[:200]}); finished work is stored, and the same command "
        "continues when the cluster is back"
    )


def _reason(error: Any) -> Exception:
    """What a worker raised."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, DiffaugError):
        return cause
    return RuntimeError(f"a worker on the Ray cluster failed: {str(error).strip().splitlines()[-1]}")
