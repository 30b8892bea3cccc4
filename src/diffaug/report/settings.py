"""Settings of several runs side by side: which they share, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOT_SET = "–"


@dataclass(frozen=True)
class SettingsTable:
    """The settings of several runs.

    Attributes:
        shared: settings with the same value in all runs, by dotted name.
        own: for each run, its other settings.
        columns: columns of the table of differences. A group that some runs lack (a stage, for example) has its own
            column; a setting of such a group has a column only if the runs that have the group differ in it.
        rows: the table's cells, one row per run.
    """

    shared: dict[str, str]
    own: list[dict[str, str]]
    columns: list[str]
    rows: list[list[str]]


def compare_settings(recipes: Sequence[Mapping[str, Any]]) -> SettingsTable:
    """Compare recipes. An empty recipe belongs to a run that has not started and is ignored."""
    flat = [flatten(recipe) for recipe in recipes]
    groups = {name.rsplit(".", 1)[0] for settings in flat for name in settings if "." in name}
    # `stage1: null` means that the group is absent, it is not a setting.
    flat = [{name: value for name, value in settings.items() if name not in groups} for settings in flat]
    started = [settings for settings, recipe in zip(flat, recipes, strict=True) if recipe]
    names = list(dict.fromkeys(name for settings in flat for name in settings))
    values = {name: {settings.get(name) for settings in started} for name in names}
    shared = {name: started[0][name] for name in names if len(values[name]) == 1}
    own = [{name: value for name, value in settings.items() if name not in shared} for settings in flat]
    columns: list[str] = []
    for name in names:
        if name in shared:
            continue
        group = name.rsplit(".", 1)[0]
        absent = group != name and not all(_has(settings, group) for settings in started)
        if absent and group not in columns:
            columns.append(group)
        if not absent or len(values[name] - {None}) > 1:
            columns.append(name)
    rows = [[_cell(settings, column, groups) for column in columns] for settings in flat]
    return SettingsTable(shared, own, columns, rows)


def flatten(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """All settings by dotted name, such as `stage2.learning_rate`, formatted as in YAML."""
    flat: dict[str, str] = {}
    for key, value in recipe.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = _format(value)
    return flat


def _has(settings: Mapping[str, str], group: str) -> bool:
    return any(name.startswith(f"{group}.") for name in settings)


def _cell(settings: Mapping[str, str], column: str, groups: set[str]) -> str:
    if column in groups:
        return "yes" if _has(settings, column) else NOT_SET
    return settings.get(column, NOT_SET)


def _format(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_format(entry) for entry in value) + "]"
    return "{}" if value == {} else str(value)
