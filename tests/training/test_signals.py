"""Requests to stop: whenever a signal comes, it is noted, and what was there before comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from diffaug.training import signals
from diffaug.training.signals import stop_on_signals


@pytest.fixture(autouse=True)
def second() -> Iterator[list[int]]:
    """The signals that were not turned into a request."""
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handler: Callable[..., Any] = lambda number, frame: seen.append(number)  # noqa: E731 - compared below
    for number in before:
        signal.signal(number, handler)
    yield seen
    assert all(signal.getsignal(number) is handler for number in before)
    for number, old in before.items():
        signal.signal(number, old)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_a_request_and_the_second_acts(number: int, second: list[int]) -> None:
    with stop_on_signals() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
        assert stop.signal == number
        assert second == []
        os.kill(os.getpid(), number)
        assert second == [number]


def test_a_launcher_that_passes_ctrl_c_on_in_its_own_words_does_not_hurry_the_run(second: list[int]) -> None:
    """As torchrun does: the terminal's SIGINT reaches all processes, and then they get a SIGTERM from it."""
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
        assert second == []


def test_who_is_patient_hears_any_number(second: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_patient", False)
    signals.be_patient()
    with stop_on_signals() as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
    assert second == []


def test_a_signal_that_comes_while_handlers_are_set(second: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    set_handler = signal.signal

    def signalled(number: int, handler: Any) -> Any:
        before = set_handler(number, handler)
        if number not in sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return before

    sent: list[int] = []
    monkeypatch.setattr(signal, "signal", signalled)
    with stop_on_signals() as stop:
        assert stop.signal == signal.SIGTERM
        assert sent == [signal.SIGINT, signal.SIGTERM]
    assert second == []
