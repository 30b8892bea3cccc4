"""Encode shards in this process or in several worker processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers about copied modules
        model = pickle.dumps(encoder)
    workers = [_Worker.start(model, str(device), threads) for device in devices]
    try:
        yield from _results(workers, tasks, advance, ordered)
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.connection.close()


def _results(
    workers: list[_Worker], tasks: Iterator[Task], advance: Callable[[int], None], ordered: bool
) -> Iterator[tuple[Any, int]]:
    started: list[int] = []  # shards in order whose results have not been yielded
    done: dict[int, tuple[Any, int]] = {}
    following = next(tasks, None)
    while following is not None or started:
        free = [worker for worker in workers if worker.shard is None]
        if following is not None and free and len(started) < 2 * len(workers):
            free[0].send(following)
            started.append(following[0])
            following = next(tasks, None)
            continue
        busy = {worker.connection: worker for worker in workers if worker.shard is not None}
        for connection in wait(list(busy)):
            worker = busy[connection]  # type: ignore[index]
            shard, message = worker.shard, worker.receive()
            if isinstance(message, int):
                advance(message)
            elif shard is not None:
                done[shard] = message
        for shard in list(started):
            if shard in done:
                started.remove(shard)
                yield done.pop(shard)
            elif ordered:
                break


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
                f"a worker process {how} in shard {self.shard}; the same command goes on (with fewer --workers, if "
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
