"""Headless Chromium for the tests of the pages.

They are skipped where there is no playwright or no browser, unless DIFFAUG_BROWSER is set (`make test-browser`), where
that is a failure. DIFFAUG_BROWSER may name the browser's program.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

WANTED = os.environ.get("DIFFAUG_BROWSER", "")
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
_MISSING = "no browser: "


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        if WANTED:
            raise
        pytest.skip(f"{_MISSING}playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    program = shutil.which(WANTED) or next(filter(None, map(shutil.which, names)), None)
    # A browser's sandbox does not work for root, as which containers run.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=program, args=arguments)
        except Error as error:
            if WANTED:
                raise
            pytest.skip(f"{_MISSING}{error.message.splitlines()[0]}")
        yield found
        found.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many tests the missing browser leaves out."""
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if _MISSING in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests of the pages were skipped; make test-browser runs them")
