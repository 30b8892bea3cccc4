"""Progress bars on a terminal; no output in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_MIN_TOTAL = 2_000  # shorter work needs no bar


@contextmanager
def progress_bar(what: str, total: int, show: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a bar on standard error; ``show=None``: only on a terminal and for long work."""
    if show is None:
        show = sys.stderr.isatty() and total >= _MIN_TOTAL
    if not show:
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda n: progress.advance(task, n)
