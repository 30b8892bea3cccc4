"""Who computes: what an `Embedder` needs of a model, whichever library runs it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from queue import Queue
from threading import Lock, Thread
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from diffaug.data.collate import Collator, collator_for
from diffaug.errors import DiffaugError
from diffaug.models.batch import PaddedBatch
from diffaug.models.encoder import Encoder
from diffaug.models.io.fingerprint import fingerprint

Vectors = NDArray[np.float32]
Piece = TypeVar("Piece")

# Pieces of work that wait for each of several runners: enough that none is idle while more is made.
_AHEAD = 16


class Runner(ABC):
    """Token batches in, vectors out."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The length of a vector."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the model runs."""

    @property
    @abstractmethod
    def encoder(self) -> Encoder:
        """The model as a PyTorch module.

        Raises:
            DiffaugError: another library runs it.
        """

    @abstractmethod
    def move(self, device: str | torch.device | None) -> None:
        """Run there from now on; None: where this runner is at its best.

        Raises:
            DiffaugError: it cannot run there.
        """

    @abstractmethod
    def on(self, device: str | torch.device) -> Runner:
        """The same model on ``device``, for another thread, while this one stays where it is.

        Weights are shared if they are there already, and copied if not.

        Raises:
            DiffaugError: it cannot run there.
        """

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        """What reads sentences for this model."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash, in hex, of all that decides the vectors: see `diffaug.models.io.fingerprint`."""

    @abstractmethod
    def __call__(self, batch: PaddedBatch) -> Vectors:
        """(sequences, width): an array of the caller's own."""


class TorchRunner(Runner):
    """An encoder, run by PyTorch, for one thread at a time: others wait."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder.eval()
        # Views, and some of transformers' modules, keep something for the time of a forward.
        self._alone = Lock()

    def __reduce__(self) -> tuple[type[TorchRunner], tuple[Encoder]]:
        return TorchRunner, (self._encoder,)  # a copy has a lock of its own

    @property
    def width(self) -> int:
        return self._encoder.width

    @property
    def device(self) -> torch.device:
        return next(self._encoder.parameters()).device

    @property
    def encoder(self) -> Encoder:
        return self._encoder

    def move(self, device: str | torch.device | None) -> None:
        try:
            self._encoder.to(default_device() if device is None else device)
        except (RuntimeError, AssertionError) as error:  # no such device, and none that this build of torch knows
            raise DiffaugError(f"the model cannot run on the device {str(device)!r}: {str(error)[:200]}") from error

    def on(self, device: str | torch.device) -> Runner:
        # Always modules of its own: some of ours and of transformers keep something for the time of a forward.
        weights = chain(self._encoder.parameters(), self._encoder.buffers()) if str(device) == str(self.device) else ()
        runner = TorchRunner(copy.deepcopy(self._encoder, {id(tensor): tensor for tensor in weights}))
        runner.move(device)
        return runner

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        return collator_for(self._encoder, tokenizer)

    def fingerprint(self) -> str:
        return fingerprint(self._encoder)

    @torch.inference_mode()
    def __call__(self, batch: PaddedBatch) -> Vectors:
        with self._alone:
            vectors: Vectors = self._encoder(batch.to(self.device)).float().cpu().numpy()
        return vectors


def share_out(pieces: Iterable[Piece], runners: Sequence[Runner], do: Callable[[Runner, Piece], None]) -> None:
    """Have every piece of work done by one of the runners, by whichever is free next.

    Each of several runners has a thread, which ends before this returns; this thread makes the pieces meanwhile. The
    threads that PyTorch computes with on the CPU are divided among the runners there.

    Raises:
        BaseException: whatever a runner, or what makes the pieces, raised first; work that waits is then left undone.
    """
    if len(runners) == 1:
        for piece in pieces:
            do(runners[0], piece)
        return
    waiting: Queue[Piece | None] = Queue(_AHEAD * len(runners))
    failures: list[BaseException] = []
    threads = torch.get_num_threads()
    on_cpu = sum(runner.device.type == "cpu" for runner in runners)

    def serve(runner: Runner) -> None:
        try:
            if runner.device.type == "cpu":
                torch.set_num_threads(max(1, threads // on_cpu))  # of this thread, and of those that begin later
            elif runner.device.type == "cuda":
                torch.cuda.set_device(runner.device)  # of this thread
        except BaseException as error:
            failures.append(error)
        # To the end even after a failure, or who fills the queue would wait for ever.
        while (piece := waiting.get()) is not None:
            if not failures:
                try:
                    do(runner, piece)
                except BaseException as error:
                    failures.append(error)

    workers = [Thread(target=serve, args=(each,), name=f"diffaug on {each.device}", daemon=True) for each in runners]
    for worker in workers:
        worker.start()
    try:
        for piece in pieces:
            if failures:
                break
            waiting.put(piece)
    except BaseException as error:
        failures.append(error)
    for _ in workers:
        waiting.put(None)
    for worker in workers:
        worker.join()
    torch.set_num_threads(threads)  # for threads that begin later
    if failures:
        raise failures[0]


def default_device() -> str:
    """The GPU if there is one."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
