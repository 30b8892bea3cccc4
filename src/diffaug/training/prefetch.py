"""Prefetching: while a GPU computes a step, a thread prepares the next batches."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Batches prepared ahead: one ready, one in preparation.
_DEPTH = 2


class Prefetcher(Generic[Item]):
    """Calls ``make`` with consecutive numbers, some of them ahead of time.

    Args:
        make: a function of the number alone.
        end: all numbers are below this one.
    """

    def __init__(self, make: Callable[[int], Item], end: int) -> None:
        self._make = make
        self._end = end
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._waiting: dict[int, Future[Item]] = {}

    def __call__(self, number: int) -> Item:
        """The result of ``make`` for this number, or its exception."""
        for wanted in range(number, min(number + 1 + _DEPTH, self._end)):
            if wanted not in self._waiting:
                self._waiting[wanted] = self._thread.submit(self._make, wanted)
        return self._waiting.pop(number).result()

    def close(self) -> None:
        """Cancel what was not asked for."""
        self._thread.shutdown(cancel_futures=True)
