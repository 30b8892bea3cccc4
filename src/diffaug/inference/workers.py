"""Encode shards in this process, in several worker processes, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch

from diffaug.cluster import WorkerPool
from diffaug.data.collate import Collator
from diffaug.data.documents import Documents
from diffaug.errors import DiffaugError
from diffaug.inference.encode import encode_texts
from diffaug.inference.outputs import Writer
from diffaug.inference.quantize import Precision, quantize
from diffaug.inference.runner import Runner

Task = tuple[int, Documents]
"""The number of a shard and its rows."""

# A forked process could not use CUDA.
_PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class ShardEncoder:
    """Encodes and writes one shard: the unit of work of every engine. It can be sent to other processes."""

    collator: Collator
    runners: Sequence[Runner]
    writer: Writer
    precision: Precision
    normalize: bool
    batch_size: int | None
    width: int

    def __call__(self, task: Task, advance: Callable[[int], None]) -> tuple[Any, int]:
        """Encode a shard; return what the writer returned, and the number of truncated sentences."""
        index, documents = task
        vectors, truncated = encode_texts(
            documents.sentences,
            self.collator,
            self.runners,
            self.batch_size,
            normalize=self.normalize,
            width=self.width,
            advance=advance,
        )
        return self.writer(index, documents, quantize(vectors, self.precision)), truncated


def encode_here(
    encoder: ShardEncoder, tasks: Iterator[Task], advance: Callable[[int], None]
) -> Generator[tuple[Any, int]]:
    """Encode the shards one after the other in this process."""
    for task in tasks:
        yield encoder(task, advance)


def encode_in_processes(
    encoder: ShardEncoder,
    tasks: Iterator[Task],
    advance: Callable[[int], None],
    devices: Sequence[str | torch.device],
    *,
    ordered: bool,
) -> Generator[tuple[Any, int]]:
    """Encode shards in one process per entry of ``devices``; results come in order only if ``ordered``.

    At most two shards per process are in memory.

    Raises:
        DiffaugError: a process failed or was killed.
    """
    threads = max(1, torch.get_num_threads() // len(devices))
    model = _pickled(encoder)
    workers = [_Worker.start(model, str(device), threads) for device in devices]
    try:
        yield from _results(_Processes(workers, advance), tasks, ordered)
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.connection.close()


def encode_on_ray(
    encoder: ShardEncoder, tasks: Iterator[Task], advance: Callable[[int], None], workers: int | None, *, ordered: bool
) -> Generator[tuple[Any, int]]:
    """Encode shards on a Ray cluster, in one worker per GPU or core if ``workers`` is None; otherwise as in processes.

    Raises:
        DiffaugError: a worker failed, or there is no cluster.
    """
    model = _pickled(replace(encoder, runners=[encoder.runners[0].on("cpu")]))  # nodes may have no GPU
    with WorkerPool[Task, tuple[Any, int]](partial(_load_encoder, model), workers) as pool:
        yield from _results(_OnRay(pool, advance), tasks, ordered)


class _Pool(Protocol):
    """Workers that encode shards."""

    size: int

    def full(self) -> bool: ...

    def submit(self, task: Task) -> None: ...

    def wait(self) -> list[tuple[int, tuple[Any, int]]]:
        """Shards that are finished, with the results of their encoder."""


def _results(pool: _Pool, tasks: Iterator[Task], ordered: bool) -> Iterator[tuple[Any, int]]:
    started: list[int] = []  # shards in order whose results have not been yielded
    done: dict[int, tuple[Any, int]] = {}
    following = next(tasks, None)
    while following is not None or started:
        if following is not None and not pool.full() and len(started) < 2 * pool.size:
            pool.submit(following)
            started.append(following[0])
            following = next(tasks, None)
            continue
        done.update(pool.wait())
        for shard in list(started):
            if shard in done:
                started.remove(shard)
                yield done.pop(shard)
            elif ordered:
                break


class _OnRay:
    def __init__(self, pool: WorkerPool[Task, tuple[Any, int]], advance: Callable[[int], None]) -> None:
        self.size, self.submit = pool.size, pool.submit
        self._pool, self._advance = pool, advance

    def full(self) -> bool:
        return len(self._pool.running) >= self.size

    def wait(self) -> list[tuple[int, tuple[Any, int]]]:
        found = []
        for done in self._pool.wait(1.0):
            if done.error is not None:
                raise done.error
            assert done.result is not None
            index, documents = done.item
            self._advance(len(documents))
            found.append((index, done.result))
        return found


def _load_encoder(model: bytes) -> Callable[[Task], tuple[Any, int]]:
    encoder: ShardEncoder = pickle.loads(model)
    for runner in encoder.runners:
        runner.move(None)
    return partial(encoder, advance=lambda count: None)


def _pickled(encoder: ShardEncoder) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers about copied modules
        return pickle.dumps(encoder)


class _Processes:
    def __init__(self, workers: Sequence[_Worker], advance: Callable[[int], None]) -> None:
        self.size = len(workers)
        self._workers, self._advance = workers, advance

    def full(self) -> bool:
        return all(worker.shard is not None for worker in self._workers)

    def submit(self, task: Task) -> None:
        next(worker for worker in self._workers if worker.shard is None).send(task)

    def wait(self) -> list[tuple[int, tuple[Any, int]]]:
        found = []
        busy = {worker.connection: worker for worker in self._workers if worker.shard is not None}
        for connection in wait(list(busy)):
            worker = busy[connection]  # type: ignore[index]
            shard, message = worker.shard, worker.receive()
            if isinstance(message, int):
                self._advance(message)
            elif shard is not None:
                found.append((shard, message))
        return found


@dataclass
class _Worker:
    process: Any
    connection: Connection
    shard: int | None = None

    @classmethod
    def start(cls, model: bytes, device: str, threads: int) -> _Worker:
        ours, theirs = _PROCESSES.Pipe()
        process = _PROCESSES.Process(target=_work, args=(theirs, model, device, threads), daemon=True)
        process.start()
        theirs.close()  # so that the connection ends when the process does
        return cls(process, ours)

    def send(self, task: Task) -> None:
        self.shard = task[0]
        with suppress(OSError):  # the process has died; `receive` will notice
            self.connection.send(task)

    def receive(self) -> Any:
        """A number of encoded sentences, or the result of the shard."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError) as error:
            self.process.join()
            code = self.process.exitcode or 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            raise DiffaugError(
                f"a worker process {how} in shard {self.shard}; the same command continues (with fewer --workers, if "
                "memory was short)"
            ) from error
        if isinstance(message, BaseException):
            raise message
        if not isinstance(message, int):
            self.shard = None
        return message


def _work(connection: Connection, model: bytes, device: str, threads: int) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends its workers
    torch.set_num_threads(threads)
    with suppress(EOFError, OSError):  # the main process has ended
        try:
            encoder: ShardEncoder = pickle.loads(model)
            for runner in encoder.runners:
                runner.move(device)
            if torch.device(device).type == "cuda":
                torch.cuda.set_device(device)
            while True:
                connection.send(encoder(connection.recv(), connection.send))
        except (EOFError, OSError):
            raise
        except DiffaugError as error:
            connection.send(error)
        except Exception as error:
            connection.send(RuntimeError(f"worker process {os.getpid()}: {type(error).__name__}: {error}"))
