"""Ctrl-C and SIGTERM: finish the step, save, leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Whether this process leaves it to its parent to lose patience.
_patient = False


def be_patient() -> None:
    """From now on a second signal changes nothing either: for processes whose parent kills them if it cannot wait.

    They may well get two, since some systems ask all processes of a job to stop, and then the parent asks as well.
    """
    global _patient
    _patient = True


class StopRequest:
    """Whether somebody asked the run to stop, and how."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; a second one of the kind acts at once, as it always does.

    Unless this process was told to `be_patient`.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return
    # The handlers until now, by signal: known before the first can arrive.
    before: dict[int, Any] = {watched: signal.getsignal(watched) for watched in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = number
        if not _patient:
            signal.signal(number, before[number])

    try:
        for watched in before:
            signal.signal(watched, note)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
