"""Progress on standard error: a bar on a terminal; in a log nothing, or one line per minute."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

_MIN_TOTAL = 2_000  # shorter work needs no bar
_LOG_SECONDS = 60.0


@contextmanager
def progress_bar(what: str, total: int, show: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a bar on standard error; ``show=None``: only on a terminal and for long work."""
    if show is None:
        show = sys.stderr.isatty() and total >= _MIN_TOTAL
    if not show:
        yield lambda n: None
        return
    with _bar(what, total) as advance:
        yield advance


@contextmanager
def rate_progress(
    what: str, unit: str, total: int | None, done: int = 0, show: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Like `progress_bar`, with a rate and, in a log, one line per minute.

    Args:
        what: what is done, such as "encoding".
        unit: what is counted, such as "sentences".
        total: about how many there are; None if that is unknown.
        done: how many of them were done earlier.
        show: whether to show anything; default: a bar on a terminal for long work, lines otherwise.
    """
    if show is False:
        yield lambda n: None
    elif sys.stderr.isatty() and (show or total is None or total >= _MIN_TOTAL):
        with _bar(what, total, unit, done) as advance:
            yield advance
    else:
        yield _LogLines(what, unit, total, done)


@contextmanager
def _bar(what: str, total: int | None, unit: str | None = None, done: int = 0) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: object) -> Text:
            speed = getattr(task, "speed", None)
            return Text("" if speed is None else f"{speed:,.0f} {unit}/s")

    columns = [TextColumn(what), BarColumn(), MofNCompleteColumn(), *([Rate()] if unit else []), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total, completed=done)
        yield lambda n: progress.advance(task, n)


class _LogLines:
    """Prints how far the work is, once a minute."""

    def __init__(self, what: str, unit: str, total: int | None, done: int) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._before = self._done = done
        self._start = self._last = time.monotonic()

    def __call__(self, n: int) -> None:
        self._done += n
        now = time.monotonic()
        if now - self._last < _LOG_SECONDS:
            return
        self._last = now
        rate = (self._done - self._before) / (now - self._start)
        line = f"{self._what}: {self._done:,}"
        if self._total is not None:
            line += f" of about {self._total:,}"
        line += f" {self._unit}, {rate:,.0f} per second"
        if self._total is not None:
            line += f", about {duration(max(0, self._total - self._done) / rate)} left"
        print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """A time in words: 40 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def run_progress(run: Path) -> str | None:
    """Stage, step and time left of a training run in another process, as far as it has written them to its folder."""
    try:
        found = json.loads((run / "progress.json").read_text("utf-8"))
        left = timedelta(seconds=round(found["seconds_left"]))
        return f"{found['stage']}, step {found['step']:,} of {found['steps']:,}, {left} left of the stage"
    except (OSError, ValueError, KeyError, TypeError):
        return None
