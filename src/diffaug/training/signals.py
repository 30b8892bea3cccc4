"""Ctrl-C and SIGTERM: finish the step, save, leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """Whether somebody asked the run to stop, and how."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; a second one acts at once, as it always does."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return
    before: dict[int, Any] = {}  # the handlers until now, by signal

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = number
        signal.signal(number, before[number])

    for watched in (signal.SIGINT, signal.SIGTERM):
        before[watched] = signal.signal(watched, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
