"""What the repository publishes of reproduced grids: the tables of pages are those of the files, and the files hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from code_blocks import ROOT
from experiments.published_fixtures import check_file

from diffaug.experiments.publish import filled, pages

KEPT = sorted((ROOT / "benchmarks" / "results").glob("reproduce-*.json"))


@pytest.mark.parametrize("page", pages(ROOT), ids=lambda page: page.name)
def test_tables_are_those_of_the_kept_grids(page: Path) -> None:
    assert page.read_text("utf-8") == filled(page, ROOT), "run python -m diffaug.experiments.publish --docs"


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.name)
def test_a_kept_grid_holds_together(file: Path) -> None:
    check_file(file)
