"""The tables of docs/adapt.md are those of the results."""

from __future__ import annotations

from pathlib import Path

import adapt_summary

PAGE = Path(__file__).parents[2] / "docs" / "adapt.md"


def test_the_page_has_the_tables_of_the_results() -> None:
    page, cases = PAGE.read_text("utf-8"), adapt_summary.load()
    for table in (adapt_summary.scores_table(cases), adapt_summary.rule_table(cases)):
        assert "\n".join(table) in page


def test_columns_are_compared_on_the_draws_that_all_have() -> None:
    def scores(**by_draw: float) -> dict[int, dict[str, float]]:
        return {int(name[1:]): {"score": score} for name, score in by_draw.items()}

    runs = {
        "logistic": scores(d0=50.0, d1=60.0, d2=70.0),
        "triplets": scores(d0=80.0, d1=40.0),
        "adapt": scores(d1=65.0, d0=75.0, d2=85.0),
    }
    found = adapt_summary.shared_scores(runs, ["as it is", "sentence-transformers", "SetFit", "adapt"])
    assert found == {"as it is": [50.0, 60.0], "sentence-transformers": [80.0, 40.0], "adapt": [75.0, 65.0]}
    pairs = {"cosent": scores(d0=1.0), "mnrl": scores(d0=2.0)}
    assert adapt_summary.shared_scores(pairs, ["sentence-transformers"]) == {"sentence-transformers": [2.0]}
