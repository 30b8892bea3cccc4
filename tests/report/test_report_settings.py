"""Settings side by side."""

from __future__ import annotations

from diffaug.report.settings import compare_settings, flatten


def test_settings_are_flat_and_written_as_in_a_recipe() -> None:
    recipe = {
        "name": "a",
        "stage2": {"learning_rate": 1e-5, "steps": None, "roles": {}},
        "loop": {"trackers": ["x", "y"]},
    }
    assert flatten(recipe) == {
        "name": "a",
        "stage2.learning_rate": "1e-05",
        "stage2.steps": "null",
        "stage2.roles": "{}",
        "loop.trackers": "[x, y]",
    }


def test_differences_come_first_and_the_rest_is_shared() -> None:
    found = compare_settings([{"seed": 1, "model": {"a": True, "b": 2}}, {"seed": 2, "model": {"a": True, "b": 3}}])
    assert found.shared == {"model.a": "true"}
    assert found.columns == ["seed", "model.b"]
    assert found.rows == [["1", "2"], ["2", "3"]]
    assert found.own == [{"seed": "1", "model.b": "2"}, {"seed": "2", "model.b": "3"}]


def test_a_stage_that_some_leave_out_is_one_column() -> None:
    recipes = [
        {"stage1": {"steps": 40, "batch_size": 8}},
        {"stage1": {"steps": 50, "batch_size": 8}},
        {"stage1": None},
    ]
    found = compare_settings(recipes)
    assert found.columns == ["stage1", "stage1.steps"]
    assert found.rows == [["yes", "40"], ["yes", "50"], ["–", "–"]]
    assert found.own[0] == {"stage1.steps": "40", "stage1.batch_size": "8"}


def test_a_run_without_a_recipe_does_not_count() -> None:
    found = compare_settings([{"seed": 1}, {}, {"seed": 1}])
    assert found.shared == {"seed": "1"}
    assert found.columns == []
    assert compare_settings([{}]).shared == {}
