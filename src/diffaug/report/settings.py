"""Settings of several runs side by side: what they share, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOT_SET = "–"


@dataclass(frozen=True)
class Comparison:
    """The settings of some runs.

    Attributes:
        shared: by dotted name, those that are the same in all runs.
        own: for each run, the others.
        columns: of a table of differences. A group of settings that some runs leave out (a stage, say) has a column of
            its own there, and its settings have one only if the runs that have them differ.
        rows: of that table, for each run.
    """

    shared: dict[str, str]
    own: list[dict[str, str]]
    columns: list[str]
    rows: list[list[str]]


def compare(recipes: Sequence[Mapping[str, Any]]) -> Comparison:
    """Compare recipes; one that is empty, of a run that has not begun, does not count."""
    flat = [flatten(recipe) for recipe in recipes]
    groups = {name.rsplit(".", 1)[0] for settings in flat for name in settings if "." in name}
    # A group that a run leaves out (`stage1: null`) is absent there, not a setting.
    flat = [{name: value for name, value in settings.items() if name not in groups} for settings in flat]
    begun = [settings for settings, recipe in zip(flat, recipes, strict=True) if recipe]
    names = list(dict.fromkeys(name for settings in flat for name in settings))
    values = {name: {settings.get(name) for settings in begun} for name in names}
    shared = {name: begun[0][name] for name in names if len(values[name]) == 1}
    own = [{name: value for name, value in settings.items() if name not in shared} for settings in flat]
    columns: list[str] = []
    for name in names:
        if name in shared:
            continue
        group = name.rsplit(".", 1)[0]
        absent = group != name and not all(_has(settings, group) for settings in begun)
        if absent and group not in columns:
            columns.append(group)
        if not absent or len(values[name] - {None}) > 1:
            columns.append(name)
    rows = [[_cell(settings, column, groups) for column in columns] for settings in flat]
    return Comparison(shared, own, columns, rows)


def flatten(recipe: Mapping[str, Any], where: str = "") -> dict[str, str]:
    """Every setting by its dotted name, as in `stage2.learning_rate`, written as YAML writes it."""
    flat: dict[str, str] = {}
    for key, value in recipe.items():
        name = f"{where}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = _words(value)
    return flat


def _has(settings: Mapping[str, str], group: str) -> bool:
    return any(name.startswith(f"{group}.") for name in settings)


def _cell(settings: Mapping[str, str], column: str, groups: set[str]) -> str:
    if column in groups:
        return "yes" if _has(settings, column) else NOT_SET
    return settings.get(column, NOT_SET)


def _words(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_words(entry) for entry in value) + "]"
    return "{}" if value == {} else str(value)
