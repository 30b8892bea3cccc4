"""`diffaug adapt` on the labels so far, as a process of its own that outlives the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from diffaug.errors import DiffaugError
from diffaug.files import write_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

RESULT = "adapt.json"  # as `diffaug.adaptation.run` calls it
_LINES = 8  # of the log on the page
_LABELS, _TEXT, _LOG, _JOB, _CANCELLED, _OUT = "labels.csv", "text.txt", "log.txt", "job.json", "cancelled", "result"


class AdaptJobs:
    """Starts `diffaug adapt`, one at a time, and says how far it is.

    Every job has a folder with the labels it began with, its log and its result. The process holds a lock on `job.json`
    as long as it runs: the next server sees from it whether the job still runs, whatever process has its number by
    then.

    Args:
        folder: of all jobs.
        model: the model to adapt.
        text: unlabelled sentences, which adapt uses with classes.
    """

    def __init__(self, folder: Path, model: str, text: Sequence[str] = ()) -> None:
        self._folder, self._model, self._text = folder, model, text
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, labels: str, count: int) -> None:
        """Start a job; one that was cancelled or failed is continued if the labels are the same.

        Args:
            labels: the text of a CSV file.
            count: the number of labels.

        Raises:
            DiffaugError: a job is running, or there can be none on this system.
        """
        if fcntl is None:
            raise DiffaugError("adapt can be started here on Linux and macOS only; use the command diffaug adapt")
        with self._lock:
            job = self._last()
            if job is not None and self._runs(job):
                raise DiffaugError("adapt is running already")
            if job is None or (job / _OUT / RESULT).is_file() or (job / _LABELS).read_text("utf-8") != labels:
                job = self._folder / str(1 if job is None else int(job.name) + 1)
                job.mkdir(parents=True, exist_ok=True)
                write_text(job / _LABELS, labels)
                if self._text:
                    write_text(job / _TEXT, "".join(" ".join(text.split()) + "\n" for text in self._text))
            self._launch(job, count)

    def _launch(self, job: Path, count: int) -> None:
        assert fcntl is not None
        (job / _CANCELLED).unlink(missing_ok=True)
        with (job / _JOB).open("w", encoding="utf-8") as held, (job / _LOG).open("wb") as log:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the process inherits the open file, and so the lock
            self._process = subprocess.Popen(
                [sys.executable, "-m", "diffaug", *arguments(self._model, job)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C ends the server only
                pass_fds=[held.fileno()],
                env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "100", "NO_COLOR": "1"},
            )
            json.dump({"process": self._process.pid, "labels": count, "started": time.time()}, held)

    def cancel(self) -> None:
        """End the job that runs; it can be continued."""
        with self._lock:
            job = self._last()
            if job is not None and self._runs(job) and "process" in (about := _about(job)):
                write_text(job / _CANCELLED, "")
                with suppress(ProcessLookupError):
                    os.killpg(about["process"], signal.SIGINT)

    def status(self) -> dict[str, Any]:
        """For the page: state, number of labels, seconds, the end of the log, and the result."""
        with self._lock:
            job = self._last()
            if job is None:
                return {"state": "none"}
            runs, about = self._runs(job), _about(job)
            finished = (job / _OUT / RESULT).is_file() and not runs
            cancelled = (job / _CANCELLED).is_file()
        state = "running" if runs else "finished" if finished else "cancelled" if cancelled else "failed"
        found = {"state": state, "labels": about.get("labels"), "lines": self._lines(job), "result": None}
        if runs:
            found["seconds"] = time.time() - about.get("started", time.time())
            found["ending"] = cancelled
        if finished:
            found["result"] = self._result(job)
        return found

    def _result(self, job: Path) -> dict[str, Any]:
        from diffaug.adaptation.result import AdaptResult  # torch is not needed before

        result = AdaptResult.from_dict(json.loads((job / _OUT / RESULT).read_text("utf-8")))
        section = result.table()
        return {
            "verdict": result.verdict,
            "columns": section.columns,
            "rows": section.rows,
            "forecast": result.forecast and result.forecast.words(),
            "model": f"{self._folder.name}/{job.name}/{_OUT}/model" if result.model is not None else None,
        }

    def _last(self) -> Path | None:
        numbers = [int(path.parent.name) for path in self._folder.glob(f"*/{_JOB}") if path.parent.name.isdecimal()]
        return self._folder / str(max(numbers)) if numbers else None

    def _runs(self, job: Path) -> bool:
        if self._process is not None and self._process.poll() is not None:
            self._process = None  # poll() has removed the ended process from the system's table
        if fcntl is None:
            return False
        with (job / _JOB).open("rb") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def _lines(self, job: Path) -> list[str]:
        """The end of the log, without paths of this machine."""
        text = (job / _LOG).read_bytes()[-20_000:].decode("utf-8", "replace") if (job / _LOG).is_file() else ""
        for folder in {str(self._folder), str(self._folder.resolve())}:
            text = text.replace(folder, self._folder.name)
        return [line.rstrip() for line in text.splitlines() if line.strip()][-_LINES:]


def arguments(model: str, job: Path) -> list[str]:
    """The command line of a job, after `diffaug`."""
    text = ["--text", str(job / _TEXT)] if (job / _TEXT).is_file() else []
    return ["adapt", model, "--labels", str(job / _LABELS), "--out", str(job / _OUT), *text]


def _about(job: Path) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads((job / _JOB).read_text("utf-8"))
        if isinstance(found, dict):
            return found
    return {}
