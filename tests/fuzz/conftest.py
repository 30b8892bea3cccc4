"""Reports how many inputs the fuzzing tests tried."""

from __future__ import annotations

from typing import Any

from fuzz.fuzzing import TIMES, TRIED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if TIMES > 1 and TRIED:
        terminalreporter.section("inputs tried")
        for name, count in sorted(TRIED.items()):
            terminalreporter.line(f"{count:8,}  {name}")
        terminalreporter.line(f"{sum(TRIED.values()):8,}  in all")
