"""The interface between `Embedder` and the library that runs the model, and its implementation in PyTorch."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from queue import Queue
from threading import Event, Lock, Thread
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from diffaug.data.collate import Collator, collator_for
from diffaug.errors import DiffaugError
from diffaug.kernels.onednn import fast_products
from diffaug.models.backbone import with_transformers
from diffaug.models.batch import PaddedBatch
from diffaug.models.encoder import Encoder
from diffaug.models.io.fingerprint import fingerprint
from diffaug.models.plain_bert import PlainBert

Vectors = NDArray[np.float32]
Item = TypeVar("Item")

_PREFETCH = 16  # queued items per runner
_NOTICE = 0.5  # seconds after which Ctrl-C is noticed, if it came just before a wait
_MAX_SPLIT = 16  # runners that share the CPU; each needs memory for the activations of a batch


class Runner(ABC):
    """Runs a model on batches of tokens."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The length of a vector."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the model."""

    @property
    @abstractmethod
    def encoder(self) -> Encoder:
        """The model as a PyTorch module.

        Raises:
            DiffaugError: another library runs the model.
        """

    @abstractmethod
    def move(self, device: str | torch.device | None) -> None:
        """Move the model to a device; None: the default device of this runner.

        Raises:
            DiffaugError: the model cannot run on this device.
        """

    @abstractmethod
    def on(self, device: str | torch.device) -> Runner:
        """A runner of the same model on ``device``, for another thread; this one is not moved.

        Weights that are already on the device are shared, otherwise copied.

        Raises:
            DiffaugError: the model cannot run on this device.
        """

    def split(self, count: int) -> list[Runner]:
        """At most ``count`` runners of the same model that share its CPU threads; this one alone if it has none."""
        return [self]

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        """The collator of this model."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash, in hex, of everything that determines the vectors, see `diffaug.models.io.fingerprint`."""

    @abstractmethod
    def __call__(self, batch: PaddedBatch) -> Vectors:
        """Encode a batch: a new array of shape (sequences, width)."""


class TorchRunner(Runner):
    """Runs an encoder in PyTorch; concurrent calls are serialised by a lock."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder.eval()
        # Views and some modules of transformers have state during a forward pass.
        self._lock = Lock()

    def __reduce__(self) -> tuple[Callable[[Encoder], TorchRunner], tuple[Encoder]]:
        return _unpickled, (self._encoder,)  # a copy gets its own lock

    @property
    def width(self) -> int:
        return self._encoder.width

    @property
    def device(self) -> torch.device:
        return next(self._encoder.parameters()).device

    @property
    def encoder(self) -> Encoder:
        with self._lock:
            self._encoder.backbone = with_transformers(self._encoder.backbone)
        return self._encoder

    def move(self, device: str | torch.device | None) -> None:
        try:
            self._encoder.to(default_device() if device is None else device)
        except (RuntimeError, AssertionError) as error:  # unknown device, or torch was built without it
            raise DiffaugError(f"the model cannot run on the device {str(device)!r}: {str(error)[:200]}") from error

    def on(self, device: str | torch.device) -> Runner:
        # Always new modules, since some have state during a forward pass; weights on the same device are shared.
        weights = chain(self._encoder.parameters(), self._encoder.buffers()) if str(device) == str(self.device) else ()
        runner = TorchRunner(copy.deepcopy(self._encoder, {id(tensor): tensor for tensor in weights}))
        runner.move(device)
        return runner

    def split(self, count: int) -> list[Runner]:
        # One thread per batch instead of all threads for one: they never wait for each other, and operations that are
        # too small for several threads use all cores.
        count = min(count, torch.get_num_threads(), _MAX_SPLIT) if self.device.type == "cpu" else 1
        return [self, *(self.on(self.device) for _ in range(count - 1))]

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        return collator_for(self._encoder, tokenizer)

    def fingerprint(self) -> str:
        return fingerprint(self._encoder)

    @torch.inference_mode()
    def __call__(self, batch: PaddedBatch) -> Vectors:
        # While the batch is on the CPU: on a GPU such an id would end the process.
        known = self._encoder.backbone.get_input_embeddings().num_embeddings
        if batch.input_ids.numel() and (largest := int(batch.input_ids.max())) >= known:
            raise DiffaugError(
                f"the tokenizer gives the token id {largest}, but the model has only {known:,} embeddings; the "
                "tokenizer belongs to another model"
            )
        with self._lock, fast_products():
            vectors: Vectors = self._encoder(batch.to(self.device)).float().cpu().numpy()
        return vectors


def _unpickled(encoder: Encoder) -> TorchRunner:
    if not isinstance(encoder.backbone, PlainBert):
        import diffaug.models.attention  # noqa: F401  registers the attention that the backbone may use
    return TorchRunner(encoder)


def run_parallel(items: Iterable[Item], runners: Sequence[Runner], do: Callable[[Runner, Item], None]) -> None:
    """Process each item on the next free runner.

    With several runners, each has a thread that ends before this function returns; the calling thread produces the
    items. Runners on the CPU share PyTorch's CPU threads.

    Raises:
        BaseException: the first exception of a runner or of the iterable; queued items are then skipped.
    """
    if len(runners) == 1:
        for item in items:
            do(runners[0], item)
        return
    queue: Queue[Item | None] = Queue(_PREFETCH * len(runners))
    failures: list[BaseException] = []
    threads = torch.get_num_threads()
    on_cpu = sum(runner.device.type == "cpu" for runner in runners)

    def work(runner: Runner, ended: Event) -> None:
        try:
            if runner.device.type == "cpu":
                torch.set_num_threads(max(1, threads // on_cpu))  # for this thread and for threads started later
            elif runner.device.type == "cuda":
                torch.cuda.set_device(runner.device)  # for this thread
        except BaseException as error:
            failures.append(error)
        # Empty the queue even after a failure, otherwise the producer would block forever.
        while (item := queue.get()) is not None:
            if not failures:
                try:
                    do(runner, item)
                except BaseException as error:
                    failures.append(error)
        ended.set()

    workers = {Event(): runner for runner in runners}
    for ended, runner in workers.items():
        Thread(target=work, args=(runner, ended), name=f"diffaug on {runner.device}", daemon=True).start()

    def finish() -> None:
        for _ in workers:
            queue.put(None)
        for ended in workers:  # Thread.join is not safe after Ctrl-C in an earlier one before Python 3.13
            while not ended.wait(_NOTICE):
                pass

    try:
        for item in items:
            if failures:
                break
            queue.put(item)
        finish()
    except BaseException as error:  # of the iterable, or KeyboardInterrupt
        failures.append(error)  # the runners skip what is queued
        finish()
    finally:
        torch.set_num_threads(threads)  # for threads started later
    if failures:
        raise failures[0]


def default_device() -> str:
    """The GPU if there is one."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
