"""What `diffaug quickstart` shows; tests/docs runs the command itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffaug.cli.quickstart import compare, program, scores, searches
from diffaug.data import ScoredPairs
from diffaug.inference.search import exact_search

PAIRS = ScoredPairs(
    first=["a0", "b0", "c0", "d0", "e0"], second=["a1", "b1", "c1", "d1", "e1"], scores=[1.0, 5.0, 5.0, 4.5, 5.0]
)


class Plane:
    """A model whose vectors are angles: sentences with the same letter are near each other, if it was trained."""

    def __init__(self, trained: bool) -> None:
        self.trained = trained

    def __call__(self, sentences: list[str]) -> np.ndarray:
        letters = np.array([ord(sentence[0]) - ord("a") for sentence in sentences])
        second = np.array([sentence[1] == "1" for sentence in sentences])
        angles = 0.5 * (letters + 0.1 * second if self.trained else letters - 1.2 * second)
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    def search(self, corpus: list[str], queries: list[str], k: int) -> Any:
        return exact_search(self(corpus), self(queries), k)


def test_searches_show_the_first_pairs_with_the_same_meaning() -> None:
    table = searches(Plane(False), Plane(True), PAIRS)  # type: ignore[arg-type] # only `search` is used
    assert list(table.headings.values()) == ["b0", "c0", "e0"]
    # Untrained, the next letter is 0.2 steps away, the one after it 0.8, and the same letter 1.2.
    assert [row[1] for row in table.rows[:3]] == ["  c1", "  d1", "> b1"]
    assert table.rows[0][2] == "> b1"
    assert [[cell[-1] for cell in row[1:]] for row in table.rows[3::4]] == [["3", "1"], ["3", "1"], ["1", "1"]]


def test_scores_are_those_before_and_after_with_the_interval_of_the_difference() -> None:
    result = compare(Plane(False), Plane(True), PAIRS)  # type: ignore[arg-type] # a function is a model, too
    rows = {row[0]: row for row in scores(result).rows}
    # Untrained, the next two letters come first where there are such: ranks 3, 3, 2 and 1.
    assert rows["search: mean reciprocal rank"][1:5] == ["4", "54.2", "100.0", "+45.8"]
    assert rows["similarity: Spearman"][1] == "5"


def test_next_command_can_be_typed_where_the_shell_does_not_find_diffaug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bin" / "diffaug"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [".venv/bin/diffaug", "quickstart"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == ".venv/bin/diffaug"
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "diffaug"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["somewhere/diffaug/__main__.py"])
    assert program() == "diffaug"
