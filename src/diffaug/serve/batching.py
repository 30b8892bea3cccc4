"""Dynamic batching: one thread owns a model and encodes the sentences of all waiting requests together.

There is no waiting time: a batch is what has arrived while the last one was computed. Requests take turns, so that a
long one does not hold up the others.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread

import numpy as np

from diffaug.embedder import Embedder
from diffaug.inference.encode import token_budget, unit
from diffaug.inference.runner import Vectors
from diffaug.serve.metrics import Metrics
from diffaug.serve.web import ApiError


@dataclass(frozen=True)
class Encoded:
    """The sentences of a request.

    Attributes:
        vectors: float32 of length 1, (number of sentences, width).
        tokens: the number of tokens, with those of the template.
        truncated: the indices of sentences that were too long for the model.
    """

    vectors: Vectors
    tokens: int
    truncated: list[int]


@dataclass(eq=False)
class _Job:
    texts: Sequence[str]
    vectors: Vectors
    future: Future[Encoded] = field(default_factory=Future)
    ids: list[list[int]] = field(default_factory=list)
    truncated: list[int] = field(default_factory=list)
    taken: int = 0  # sentences that are in a batch, or were


class Batcher:
    """A model and its thread.

    Args:
        name: the name of the model for clients.
        embedder: the model.
        queue_limit: how many sentences may wait. A request beyond it is refused, unless nothing waits.
        metrics: counts sentences, tokens, batches and refused requests.
    """

    def __init__(self, name: str, embedder: Embedder, queue_limit: int, metrics: Metrics) -> None:
        self.name, self.embedder = name, embedder
        self.waiting = 0
        self._limit, self._metrics = queue_limit, metrics
        self._arrived: deque[_Job] = deque()
        self._changed = Condition()
        self._closed = False
        self._rate = 100.0  # sentences per second, a running mean
        self._thread = Thread(target=self._work, name=f"diffaug serve {name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Encode what is queued, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def submit(self, texts: Sequence[str]) -> Future[Encoded]:
        """Queue the sentences of a request.

        Raises:
            ApiError: the queue is full, or the server is shutting down.
        """
        job = _Job(texts, np.empty((len(texts), self.embedder.width), np.float32))
        with self._changed:
            if self._closed:
                raise ApiError(503, "the server is shutting down")
            if self.waiting and self.waiting + len(texts) > self._limit:
                self._metrics.add("rejected", self.name)
                seconds = math.ceil(self.waiting / self._rate)
                raise ApiError(
                    429,
                    f"{self.waiting:,} sentences are waiting, and the limit is {self._limit:,}; try again later",
                    code="rate_limit_exceeded",
                    headers={"retry-after": str(min(max(seconds, 1), 60))},
                )
            self.waiting += len(texts)
            self._arrived.append(job)
            self._changed.notify()
        return job.future

    def _work(self) -> None:
        active: list[_Job] = []
        while True:
            with self._changed:
                while not (self._arrived or active or self._closed):
                    self._changed.wait()
                arrived = list(self._arrived)
                self._arrived.clear()
            if not (arrived or active):
                return
            try:
                self._tokenise(arrived)
                active += arrived
                self._encode(active)
            except Exception as error:
                # Which request is to blame is not known; all that took part in the batch fail.
                active = list(dict.fromkeys((*active, *arrived)))
                for job in active:
                    self._finish(job, error)
                active = []
            for job in [job for job in active if job.taken == len(job.texts)]:
                active.remove(job)
                self._finish(job)

    def _tokenise(self, jobs: list[_Job]) -> None:
        collator = self.embedder.collator
        ids, truncated = collator.ids([text for job in jobs for text in job.texts])
        start = 0
        for job in jobs:
            job.ids = ids[start : start + len(job.texts)]
            start += len(job.texts)
            if truncated:  # the collator counts them; which ones they are is asked only if there are any
                longest = [i for i, row in enumerate(job.ids) if len(row) == collator.max_length]
                job.truncated = [i for i in longest if collator.ids([job.texts[i]])[1]]

    def _encode(self, active: list[_Job]) -> None:
        """Encode about one batch: one sentence of each request in turn."""
        around, left = len(self.embedder.collator.template), token_budget([self.embedder.device])
        chosen: list[tuple[_Job, int]] = []
        turn = deque(job for job in active if job.taken < len(job.texts))
        while turn and left > 0:
            job = turn.popleft()
            chosen.append((job, job.taken))
            left -= len(job.ids[job.taken]) + around
            job.taken += 1
            if job.taken < len(job.texts):
                turn.append(job)
        started = time.perf_counter()
        ids = [job.ids[i] for job, i in chosen]
        for batch in self.embedder.batches([len(row) for row in ids]):
            rows = self.embedder.collator.rows([ids[i] for i in batch])
            found = unit(self.embedder.runner(rows)[:, : self.embedder.width])
            for vector, i in zip(found, batch, strict=True):
                job, place = chosen[i]
                job.vectors[place] = vector
            self._metrics.add("batches", self.name)
        rate = len(chosen) / max(time.perf_counter() - started, 1e-6)
        self._rate += 0.1 * (rate - self._rate)

    def _finish(self, job: _Job, error: Exception | None = None) -> None:
        tokens = sum(map(len, job.ids)) + len(job.ids) * len(self.embedder.collator.template)
        self._metrics.add("sentences", self.name, len(job.texts))
        self._metrics.add("tokens", self.name, tokens)
        with self._changed:
            self.waiting -= len(job.texts)
        with suppress(InvalidStateError):  # the request was cancelled
            if error is None:
                job.future.set_result(Encoded(job.vectors, tokens, job.truncated))
            else:
                job.future.set_exception(error)
