"""Every setting of a budget fits the method it is for: roles, stages and rules that only a method knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffaug.config import load_recipe, recipe_names
from diffaug.experiments.budget import budget_names, load_budget

# Recipes of the paper's rows; the others are no rows of its experiments.
TRAINED = [
    name
    for name in recipe_names()
    if not name.startswith(("quickstart", "adapt-", "distil"))
    and (load_recipe(name).stage1 is not None or load_recipe(name).stage2 is not None)
]


@pytest.mark.parametrize("recipe", TRAINED)
def test_the_settings_of_budgets_can_be_run(
    recipe: str, recipe_run: Callable[..., Any], tiny_masked_lm: Callable[[str], Path], request: pytest.FixtureRequest
) -> None:
    if recipe == "simcse-synonym":
        request.getfixturevalue("tiny_wordnet")
    generator = (f"replaced.generator={tiny_masked_lm('bert')}",) if recipe == "diffcse" else ()
    budgets = [load_budget(name) for name in budget_names()]
    settings = [setting for one in budgets for labels in (None, 2_756) for setting in one.settings_of(recipe, labels)]
    # What is refused is refused for its key or its kind of value: of settings with the same keys, one will do.
    for setting in {tuple(change.partition("=")[0] for change in setting): setting for setting in settings}.values():
        method, _, _ = recipe_run(recipe, *setting, *generator)
        second = method.recipe.stage2
        assert second is None or set(second.role_learning_rates) <= set(method.roles())


def test_diffaug_can_be_run_without_stage_1(recipe_run: Callable[..., Any]) -> None:
    """The first column of the experiment on its steps."""
    method, inputs, _ = recipe_run("diffaug-semi", "stage1=null")
    stage, rows = inputs(2)
    assert set(stage.learning_rates) == {"backbone", "views", "projection"}
    assert method.losses(stage, rows, method.represent)["loss"].isfinite()
