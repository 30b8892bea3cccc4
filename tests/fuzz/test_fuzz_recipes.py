"""Recipes, changes, grids and budgets: whatever is in them, reading them is a value or one sentence."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzz.fuzzing import HOSTILE, attempt, mutated, profile, texts, writable
from hypothesis import given
from hypothesis import strategies as st

from diffaug.config import RECIPES, Recipe, load_recipe, recipe_from_dict, recipe_names
from diffaug.config.typed import hint_at
from diffaug.experiments.budget import BUDGETS, load_budget
from diffaug.experiments.spec import PAPER, load_spec

SECTIONS = {f.name: hint_at(Recipe, [f.name]) for f in fields(Recipe)}
KEYS = sorted(
    {
        *SECTIONS,
        *(
            f"{section}.{f.name}"
            for section, hint in SECTIONS.items()
            for option in getattr(hint, "__args__", (hint,))
            if is_dataclass(option)
            for f in fields(option)
        ),
        *("data.columns.nli.premise", "data.label_names.x", "stage2.role_learning_rates.views", "views.first.x"),
    }
)
FILES = {folder: sorted(folder.glob("*.yaml")) for folder in (RECIPES, PAPER, BUDGETS)}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes")


def check(recipe: Recipe | None) -> None:
    """A recipe that was accepted can be written and read again."""
    if recipe is not None:
        assert recipe_from_dict(yaml.safe_load(recipe.to_yaml())) == recipe


def changes() -> st.SearchStrategy[str]:
    keys = st.sampled_from(KEYS) | st.builds(".".join, st.lists(texts(), min_size=1, max_size=3))
    return st.builds("{}={}".format, keys, texts()) | texts()


@given(st.sampled_from(recipe_names()), st.lists(changes(), min_size=1, max_size=3))
@profile(80)
def test_changes(name: str, changes: list[str]) -> None:
    check(attempt("--set", load_recipe, name, changes))


@given(st.sampled_from(KEYS), st.sampled_from(HOSTILE))
@profile(80)
def test_hostile_values_of_every_setting(key: str, value: str) -> None:
    check(attempt("--set, every setting", load_recipe, "diffaug-sup", [f"{key}={value}"]))


@given(st.data())
@profile(50)
def test_mutated_recipes(scratch: Path, data: Any) -> None:
    original = data.draw(st.sampled_from(FILES[RECIPES])).read_bytes()
    (scratch / "own.yaml").write_bytes(data.draw(mutated(original)))
    check(attempt("recipe.yaml", load_recipe, str(scratch / "own.yaml")))


def values() -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts()
    size = {"max_size": 3}
    return st.recursive(scalars, lambda inner: st.lists(inner, **size) | st.dictionaries(texts(), inner, **size))


@given(st.dictionaries(st.sampled_from([*SECTIONS, "extends", "backbones"]) | texts(), values(), max_size=5))
@profile(50)
def test_recipes_with_any_values(content: dict[str, Any]) -> None:
    check(attempt("recipe as values", recipe_from_dict, {"name": "x", "method": "simcse", **content}))


@given(texts(), values())
@profile(30)
def test_yaml_of_any_values(scratch: Path, key: str, value: Any) -> None:
    text = yaml.safe_dump({"extends": "simcse-sup", "data": value, "stage2": {key: value}}, allow_unicode=True)
    (scratch / "any.yaml").write_bytes(writable(text))
    check(attempt("recipe as YAML", load_recipe, str(scratch / "any.yaml")))


@pytest.mark.parametrize(("folder", "read"), [(PAPER, load_spec), (BUDGETS, lambda path: load_budget(str(path)))])
@given(data=st.data())
@profile(20)
def test_mutated_grids_and_budgets(scratch: Path, folder: Path, read: Any, data: Any) -> None:
    original = data.draw(st.sampled_from(FILES[folder])).read_bytes()
    (scratch / "grid.yaml").write_bytes(data.draw(mutated(original)))
    attempt("grids and budgets", read, scratch / "grid.yaml")
