"""Budgets: which settings each recipe may try, the same number for every row of a table.

A budget is a YAML file with families of recipes. Each family has a list of settings, each a list of `key=value`. The
first setting is the default: grids with `tune: false` use only that one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from diffaug.config import read_settings, recipe_names
from diffaug.config.typed import build, nearest
from diffaug.errors import DiffaugError

BUDGETS = Path(__file__).parent / "budgets"

Setting = tuple[str, ...]
"""Changes of a recipe, as `key=value`."""


class NoSettingsError(DiffaugError):
    """A budget has no settings for a recipe."""


@dataclass(frozen=True)
class Family:
    """Recipes with the same settings.

    Attributes:
        recipes: names, or paths of recipe files.
        settings: what each of them may try.
        always: changes that all its settings share.
        labels_below: the family is for runs with fewer labelled examples than this; null: for all others.
    """

    recipes: list[str]
    settings: list[list[str]]
    always: list[str] = field(default_factory=list)
    labels_below: int | None = None


@dataclass(frozen=True)
class Budget:
    """Settings for recipes.

    Attributes:
        name: of the budget.
        about: what it is for.
        families: recipes with their settings.
        common: changes of every recipe that trains; settings override them.
        otherwise: the settings of a recipe in no family; null: such a recipe has none.
        notes: sentences without their full stop, shown below the tables.
    """

    name: str
    about: str
    families: list[Family] = field(default_factory=list)
    common: list[str] = field(default_factory=list)
    otherwise: list[list[str]] | None = None
    notes: list[str] = field(default_factory=list)

    def settings_of(self, recipe: str, labels: int | None = None) -> list[Setting]:
        """What a recipe may try, the default first.

        Args:
            recipe: its name or path.
            labels: number of labelled examples of the run; None: all.

        Raises:
            NoSettingsError: the budget has no settings for the recipe.
        """
        families = [family for family in self.families if recipe in family.recipes]
        few = [f for f in families if f.labels_below is not None and labels is not None and labels < f.labels_below]
        found = [*few, *(family for family in families if family.labels_below is None)]
        if found:
            return [(*self.common, *found[0].always, *setting) for setting in found[0].settings]
        if self.otherwise is None:
            raise NoSettingsError(f"the budget {self.name!r} has no settings for the recipe {recipe!r}; add them to it")
        return [(*self.common, *setting) for setting in self.otherwise]

    def words(self, count: int, dev: str) -> list[str]:
        """Notes for the tables: how rows were tuned, with ``count`` settings each, on the pairs called ``dev``."""
        if count == 1:
            tuning = f"No tuning: every row has one setting (budget {self.name!r})"
        else:
            tuning = f"Every row: the best of {count} settings on {dev} with the first seed (budget {self.name!r})"
        return [tuning, *self.notes]

    def to_dict(self) -> dict[str, Any]:
        """What decides the runs: without `about` and `notes`, which may be edited while a grid is unfinished."""
        values = asdict(self)
        return {name: value for name, value in values.items() if name not in ("about", "notes")}


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
        counts: the number of settings of each row, by its name.

    Raises:
        DiffaugError: rows differ; the message names two of them.
    """
    rows = iter(counts.items())
    first, count = next(rows)
    for row, other in rows:
        if other != count:
            raise DiffaugError(
                f"all rows must have the same number of settings, but this budget gives {row!r} {other} and {first!r} "
                f"{count}; add or remove settings"
            )
    return count


def _check(budget: Budget, path: Path) -> None:
    known = recipe_names()
    seen: set[tuple[str, int | None]] = set()
    for family in budget.families:
        if not family.settings:
            raise DiffaugError(f"{path}: the family of {', '.join(family.recipes)} has no settings")
        for recipe in family.recipes:
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
            raise DiffaugError(f"{path}: {change!r} must be key=value, such as stage2.learning_rate=3e-5")
