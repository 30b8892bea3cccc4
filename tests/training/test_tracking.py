"""What a run says of its steps: a line a minute in a log, a bar on a terminal, nothing when it is to be quiet."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from accelerate import Accelerator
from rich.console import Console

from diffaug.errors import DiffaugError
from diffaug.training import tracking
from diffaug.training.tracking import Tracker


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(tracking, "time", found, raising=False)
    return found


def hundred_steps(tracker: Tracker, clock: Clock, done: int = 0, seconds: float = 2.0) -> None:
    """As the loop takes them."""
    with tracker.bar("stage 2", 100, done) as show:
        for step in range(done + 1, 101):
            clock.now += seconds
            if show.due():
                show(step, 0.5 - step / 1000)


def test_a_log_gets_a_line_a_minute(tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    hundred_steps(Tracker(tmp_path / "metrics.jsonl", Accelerator(cpu=True)), clock)
    # 2 s a step: after a minute 30 steps are done and 70 are left.
    assert capsys.readouterr().err.splitlines() == [
        "stage 2  step    30 of 100  loss 0.4700  0:02:20 left of the stage",
        "stage 2  step    60 of 100  loss 0.4400  0:01:20 left of the stage",
        "stage 2  step    90 of 100  loss 0.4100  0:00:20 left of the stage",
    ]


def test_steps_of_an_earlier_process_took_none_of_this_ones_time(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    hundred_steps(Tracker(tmp_path / "metrics.jsonl", Accelerator(cpu=True)), clock, done=50)
    assert capsys.readouterr().err.splitlines() == [
        "stage 2  step    80 of 100  loss 0.4200  0:00:40 left of the stage"
    ]


def test_a_short_stage_and_a_quiet_run_say_nothing(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    hundred_steps(Tracker(tmp_path / "metrics.jsonl", Accelerator(cpu=True)), clock, seconds=0.5)
    hundred_steps(Tracker(tmp_path / "metrics.jsonl", Accelerator(cpu=True), quiet=True), clock)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_the_bar_says_it(tmp_path: Path, clock: Clock) -> None:
    tracker = Tracker(tmp_path / "metrics.jsonl", Accelerator(cpu=True))
    shown = io.StringIO()
    tracker.console = Console(file=shown, force_terminal=True, width=120)
    hundred_steps(tracker, clock)
    assert "100/100" in shown.getvalue()
    assert "left of the stage" not in shown.getvalue()


def test_what_is_said_is_not_what_is_measured(tmp_path: Path, clock: Clock) -> None:
    tracker = Tracker(tmp_path / "metrics.jsonl", Accelerator(cpu=True), quiet=True)
    hundred_steps(tracker, clock)
    tracker.log(1, 10, {"loss": 0.5})
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"stage": 1, "step": 10, "loss": 0.5}
    ]


def test_no_space_for_metrics_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(DiffaugError, match=r"metrics\.jsonl cannot be written: no space left on the disk"):
        Tracker(path, Accelerator(cpu=True), quiet=True).log(1, 1, {"loss": 1.0})
