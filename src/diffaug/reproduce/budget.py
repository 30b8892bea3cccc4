"""Budgets: which settings each method may try, the same number for every row of a table.

A budget is a YAML file: families of recipes, each with a list of settings, each a list of `key=value`. The first
setting of a family is the one to start from; experiments that vary one thing and keep the rest take it alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from diffaug.config import read_settings, recipe_names
from diffaug.config.typed import build, nearest
from diffaug.errors import DiffaugError

BUDGETS = Path(__file__).parent / "budgets"

Setting = tuple[str, ...]
"""Changes of a recipe, as `key=value`."""


@dataclass(frozen=True)
class Family:
    """Recipes that are tuned alike.

    Attributes:
        recipes: their names.
        settings: what each of them may try.
        always: changes that all its settings share.
        labels_below: the family is meant for runs with fewer labelled examples than this; null: for all others.
    """

    recipes: list[str]
    settings: list[list[str]]
    always: list[str] = field(default_factory=list)
    labels_below: int | None = None


@dataclass(frozen=True)
class Budget:
    """Settings for recipes.

    Attributes:
        name: as people call it.
        about: what it is for.
        families: who may try what.
        common: changes for every recipe that trains, below the settings.
        otherwise: the settings of a recipe that is in no family; null: there must be none.
        notes: what a reader of a table made with it must know, in whole sentences without their full stop.
    """

    name: str
    about: str
    families: list[Family] = field(default_factory=list)
    common: list[str] = field(default_factory=list)
    otherwise: list[list[str]] | None = None
    notes: list[str] = field(default_factory=list)

    def settings_of(self, recipe: str, labels: int | None = None) -> list[Setting]:
        """What a recipe may try, best guess first.

        Args:
            recipe: its name.
            labels: how many labelled examples the run has; left out, as many as there are.

        Raises:
            DiffaugError: the budget says nothing about the recipe.
        """
        families = [family for family in self.families if recipe in family.recipes]
        few = [f for f in families if f.labels_below is not None and labels is not None and labels < f.labels_below]
        found = [*few, *(family for family in families if family.labels_below is None)]
        if found:
            return [(*self.common, *found[0].always, *setting) for setting in found[0].settings]
        if self.otherwise is None:
            raise DiffaugError(f"the budget {self.name!r} has no settings for the recipe {recipe!r}; add them to it")
        return [(*self.common, *setting) for setting in self.otherwise]

    def words(self, count: int) -> list[str]:
        """How rows were tuned, for the foot of a table; ``count`` is the number of settings of each."""
        if count == 1:
            tuning = f"No tuning: every row has one setting (budget {self.name!r})"
        else:
            tuning = f"Every row: the best of {count} settings on STS-B dev with the first seed (budget {self.name!r})"
        return [tuning, *self.notes]


def budget_names() -> list[str]:
    """The budgets that come with the package."""
    return sorted(path.stem for path in BUDGETS.glob("*.yaml"))


def load_budget(name_or_path: str = "paper") -> Budget:
    """Read a budget by name or from a YAML file.

    Raises:
        DiffaugError: there is none of that name, it cannot be read, has unknown keys, or names unknown recipes.
    """
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        if name_or_path not in budget_names():
            raise DiffaugError(f"there is no budget {name_or_path!r}{nearest(name_or_path, budget_names())}")
        path = BUDGETS / f"{name_or_path}.yaml"
    budget: Budget = build(Budget, read_settings(path), str(path))
    _check(budget, path)
    return budget


def check_equal(counts: dict[str, int]) -> int:
    """The number of settings that all rows have.

    Args:
        counts: the number of each row, by its name.

    Raises:
        DiffaugError: rows differ; the message names two that do.
    """
    rows = iter(counts.items())
    first, count = next(rows)
    for row, other in rows:
        if other != count:
            raise DiffaugError(
                f"a fair comparison tries as many settings for one row as for another, but this budget gives {row!r} "
                f"{other} and {first!r} {count}; give both the same number"
            )
    return count


def _check(budget: Budget, path: Path) -> None:
    known = recipe_names()
    seen: set[tuple[str, int | None]] = set()
    for family in budget.families:
        if not family.settings:
            raise DiffaugError(f"{path}: the family of {', '.join(family.recipes)} has no settings")
        for recipe in family.recipes:
            # A recipe of the user's own is a file; only names can be misspelled.
            if not recipe.endswith((".yaml", ".yml")) and recipe not in known:
                raise DiffaugError(f"{path}: there is no recipe {recipe!r}{nearest(recipe, known)}")
            if (recipe, family.labels_below) in seen:
                raise DiffaugError(f"{path}: the recipe {recipe!r} is in two families")
            seen.add((recipe, family.labels_below))
    if budget.otherwise == []:
        raise DiffaugError(f"{path}: `otherwise` has no settings; one that changes nothing is []")
    lists = [s for f in budget.families for s in (*f.settings, f.always)] + (budget.otherwise or []) + [budget.common]
    for change in (change for changes in lists for change in changes):
        if "=" not in change:
            raise DiffaugError(f"{path}: {change!r} is no key=value, such as stage2.learning_rate=3e-5")
