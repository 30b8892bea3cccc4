"""What a run reports: one line of JSON per measurement; for people, one line per evaluation and a progress bar."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from diffaug.files import flush, write_errors

# Seconds between looks at the step and its loss: in a bar on a terminal, in lines of a log, in progress.json.
_BAR_EVERY = 1.0
_LINE_EVERY = 60.0
_FILE_EVERY = 2.0


class Show:
    """Shows people now and then how far a stage is. Reading a loss makes a GPU wait, so ask first whether it is due.

    Args:
        every: seconds from one time to the next.
        show: takes the number of steps done and the loss of the last.
    """

    def __init__(self, every: float, show: Callable[[int, float], None]) -> None:
        self._every = every
        self._show = show
        self._shown = time.monotonic()

    def due(self) -> bool:
        """Whether it is time to show something."""
        return time.monotonic() - self._shown >= self._every

    def __call__(self, step: int, loss: float) -> None:
        self._shown = time.monotonic()
        self._show(step, loss)


class Tracker:
    """Writes `metrics.jsonl`, feeds accelerate's trackers, and speaks to the terminal. Silent in other processes.

    Args:
        path: the metrics file.
        accelerator: brings TensorBoard, W&B or MLflow, if the recipe asks for one.
        quiet: say nothing on the terminal.
    """

    def __init__(self, path: Path, accelerator: Accelerator, quiet: bool = False) -> None:
        self._path = path
        self._accelerator = accelerator
        self._main = accelerator.is_main_process
        self._last: dict[int, int] = {}  # the last step of each stage
        self.console = Console(stderr=True, quiet=quiet or not self._main, highlight=False)

    def rewind(self, length: int) -> None:
        """Forget what was written after ``length`` bytes: a resumed run writes it again.

        A line that cannot be read is removed, and a message says so.
        """
        if not self._main or not (self._path.exists() or length):
            return
        self._last = {}
        with write_errors(self._path):
            before = self._path.read_bytes()[:length] if self._path.exists() else b""
            kept = b"".join(line for line in before.splitlines(keepends=True) if self._is_measurement(line))
            if len(kept) < length:
                self.say(f"{self._path} is damaged; the measurements that cannot be read are left out")
            with self._path.open("rb+" if self._path.exists() else "wb") as file:
                file.write(kept)
                file.truncate()

    def _is_measurement(self, line: bytes) -> bool:
        try:
            self._note(*(int(json.loads(line)[key]) for key in ("stage", "step")))
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        return line.endswith(b"\n")

    def tell(self) -> int:
        """The metrics file's length, for a checkpoint: that much of it is on disk, even if the power fails."""
        if not self._path.exists():
            return 0
        with write_errors(self._path):
            flush(self._path)
        return self._path.stat().st_size

    def log(self, stage: int, step: int, values: Mapping[str, float | int | str]) -> None:
        """Keep some measurements. Undefined ones (NaN) are left out: JSON has no such number."""
        if not self._main:
            return
        values = {name: value for name, value in values.items() if isinstance(value, str) or math.isfinite(value)}
        self._note(stage, step)
        with write_errors(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": stage, "step": step, **values}) + "\n")
        if self._accelerator.trackers:
            numbers = {f"stage{stage}/{k}": v for k, v in values.items() if isinstance(v, (int, float))}
            # Counted through all stages: W&B drops what comes with a smaller step than the one before.
            self._accelerator.log(numbers, step=step + sum(n for s, n in self._last.items() if s < stage))

    def _note(self, stage: int, step: int) -> None:
        self._last[stage] = max(step, self._last.get(stage, 0))

    def say(self, text: str) -> None:
        """A line for people."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: int, done: int) -> Iterator[Show]:
        """Yield what shows step, loss and time left: in a bar on a terminal, in a log once a minute.

        Args:
            title: what takes these steps.
            total: how many there are.
            done: how many of them an earlier process has taken.
        """
        if self.console.quiet:
            with self._progress_file(title, total, done) as show:
                yield show
            return
        if not self.console.is_terminal:
            yield self._lines(title, total, done)
            return
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(title, total=total, completed=done)

            def update(step: int, loss: float) -> None:
                progress.update(task, completed=step, description=f"{title}  loss {loss:.4f}")

            yield Show(_BAR_EVERY, update)

    @contextmanager
    def _progress_file(self, title: str, total: int, done: int) -> Iterator[Show]:
        """For other processes: stage, step and time left in `progress.json`, while the stage runs."""
        start, path = time.monotonic(), self._path.with_name("progress.json")

        def write(step: int, loss: float) -> None:
            left = _seconds_left(start, step, total, done)
            values = {"stage": title, "step": step, "steps": total, "loss": loss, "seconds_left": round(left, 1)}
            if not self._main:
                return
            with suppress(OSError):  # the run does not need it
                temporary = path.with_name(".progress.json")
                temporary.write_text(json.dumps(values), "utf-8")
                temporary.replace(path)

        try:
            yield Show(_FILE_EVERY, write)
        finally:
            if self._main:
                path.unlink(missing_ok=True)

    def _lines(self, title: str, total: int, done: int) -> Show:
        start = time.monotonic()

        def line(step: int, loss: float) -> None:
            left = timedelta(seconds=round(_seconds_left(start, step, total, done)))
            self.say(f"{title}  step {step:>5} of {total}  loss {loss:.4f}  {left} left of the stage")

        return Show(_LINE_EVERY, line)


def _seconds_left(start: float, step: int, total: int, done: int) -> float:
    """At the speed of the steps since ``start``, when ``done`` of them had been taken before."""
    return (time.monotonic() - start) / (step - done) * (total - step)
