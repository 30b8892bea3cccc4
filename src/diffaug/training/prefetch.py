"""Work done ahead: while a GPU computes a step, a thread prepares the next ones."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Steps prepared ahead: one in hand while another is made.
_STEPS = 2


class Ahead(Generic[Item]):
    """Calls ``make`` with one number after another, some numbers before they are asked for.

    Args:
        make: a function of the number alone.
        end: the numbers end before this one.
    """

    def __init__(self, make: Callable[[int], Item], end: int) -> None:
        self._make = make
        self._end = end
        self._thread = ThreadPoolExecutor(1, "ahead")
        self._waiting: dict[int, Future[Item]] = {}

    def __call__(self, number: int) -> Item:
        """What ``make`` makes of the number, or its error."""
        for wanted in range(number, min(number + 1 + _STEPS, self._end)):
            if wanted not in self._waiting:
                self._waiting[wanted] = self._thread.submit(self._make, wanted)
        return self._waiting.pop(number).result()

    def close(self) -> None:
        """Give up what was not asked for."""
        self._thread.shutdown(cancel_futures=True)
