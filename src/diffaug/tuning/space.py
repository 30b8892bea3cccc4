"""The search space: which settings are tried, and which values. Nothing here imports torch or Optuna.

A setting has a list of values (`0.03, 0.05, 0.1`), a range (`1..5`, `0.0..0.3`) or a range on a logarithmic scale
(`log:1e-5..1e-4`).
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from diffaug.config import Recipe, change_recipe, parse_yaml, read_settings
from diffaug.config.typed import hint_at, is_text
from diffaug.errors import DiffaugError

Search = Mapping[str, Any] | Iterable[str]
"""`key=values` strings, or a mapping of keys to values: text as in such a string, or a list."""

_RANGE = re.compile(r"(log:)?\s*(.+?)\s*\.\.\s*(.+)")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_WHOLE = re.compile(r"[-+]?\d+")
# Scores of different data or models cannot be compared by one study.
_NOT_SEARCHED = {
    *(f"data.{name}" for name in ("nli", "unlabelled", "dev", "test")),
    *("model.backbone", "replaced.generator", "distil.teacher", "name", "plugins"),
}


@dataclass(frozen=True)
class Choices:
    """Some values of a setting, as JSON."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.values)


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; ``whole``: only whole ones."""

    low: float
    high: float
    log: bool
    whole: bool

    def __str__(self) -> str:
        return f"{'log:' if self.log else ''}{self.low!r}..{self.high!r}"


Space = dict[str, Choices | Range]


def read_space(search: Search, recipe: Recipe) -> Space:
    """Parse and check a search space.

    Args:
        search: settings with their values. A string that ends in .yaml is a file of them.
        recipe: what is changed.

    Raises:
        DiffaugError: the recipe has no such setting, or it does not take a value, an end of a range included.
    """
    space: Space = {}
    for key, values in _items(search):
        if key in space:
            raise DiffaugError(f"{key} is searched twice; write all its values in one place")
        if key in _NOT_SEARCHED:
            raise DiffaugError(
                f"{key} cannot be searched: scores of other data or another model are not comparable; run tune once "
                "for each"
            )
        space[key] = _dimension(key, values)
        for value in _ends(space[key]):
            change_recipe(recipe, [f"{key}={value}"])
    if not space:
        raise DiffaugError(
            "nothing to search; name a setting and its values, as in stage2.learning_rate=log:1e-5..1e-4"
        )
    return space


def grid_size(space: Space) -> float:
    """The number of combinations; infinite if a number is not whole."""
    return math.prod(
        len(d.values) if isinstance(d, Choices) else int(d.high) - int(d.low) + 1 if d.whole else math.inf
        for d in space.values()
    )


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """All combinations of a space of finite size."""
    values = (d.values if isinstance(d, Choices) else range(int(d.low), int(d.high) + 1) for d in space.values())
    for combination in itertools.product(*values):
        yield dict(zip(space, combination, strict=True))


def as_changes(values: Mapping[str, Any]) -> list[str]:
    """The values of a trial as `key=value`, as a user would write them: numbers with four significant digits."""
    return [f"{key}={_plain(value)}" for key, value in values.items()]


def _plain(value: Any) -> str:
    """A number; or the JSON of a choice, without the quotes of a simple word."""
    if not isinstance(value, str):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    read = json.loads(value)
    return read if isinstance(read, str) and re.fullmatch(r"[\w.-]+", read) else value


def _items(search: Search) -> Iterator[tuple[str, Any]]:
    if isinstance(search, Mapping):
        yield from search.items()
        return
    for text in [search] if isinstance(search, str) else search:
        key, equals, values = text.partition("=")
        if equals and key.strip():
            yield key.strip(), values.strip()
        elif text.endswith((".yaml", ".yml")):
            yield from read_settings(Path(text)).items()
        else:
            raise DiffaugError(
                f"cannot read the search {text!r:.200}: write it as key=values, such as stage2.temperature=0.03,0.05, "
                "or name a .yaml file"
            )


def _dimension(key: str, values: Any) -> Choices | Range:
    hint = hint_at(Recipe, key.split("."))
    if isinstance(values, str) and not is_text(hint) and (found := _RANGE.fullmatch(values)) and "/" not in values:
        return _range(key, hint, bool(found[1]), found[2], found[3])
    if isinstance(values, str):
        values = parse_yaml(f"[{values}]", f"the values of {key}")
    if not isinstance(values, (list, tuple)):
        raise DiffaugError(f"the values of {key} must be a list or a range, got {values!r:.80}")
    distinct = tuple(dict.fromkeys(json.dumps(value, ensure_ascii=False) for value in values))
    if len(distinct) < 2:
        raise DiffaugError(f"{key} needs at least two different values to search; a single one is set with --set")
    return Choices(distinct)


def _range(key: str, hint: Any, log: bool, low: str, high: str) -> Range:
    shown = f"{key}={'log:' if log else ''}{low}..{high}"
    kinds = {hint, *get_args(hint)}
    if not kinds & {int, float} or not (_NUMBER.fullmatch(low) and _NUMBER.fullmatch(high)):
        wanted = "two numbers" if kinds & {int, float} else f"values of {key}, separated by commas"
        raise DiffaugError(f"cannot read the range {shown!r:.200}: write {wanted}")
    written_whole = bool(_WHOLE.fullmatch(low) and _WHOLE.fullmatch(high))
    if float not in kinds and not written_whole:
        raise DiffaugError(f"the range {shown!r:.200} must have whole numbers, as {key} has")
    whole = int in kinds and written_whole
    first, last = (int(low), int(high)) if whole else (float(low), float(high))
    if not (first < last and math.isfinite(first) and math.isfinite(last)):
        raise DiffaugError(f"the range {shown!r:.200} must go from a lower to a higher number")
    if log and first <= 0:
        raise DiffaugError(f"the range {shown!r:.200} must start above 0: a logarithmic scale has no 0")
    return Range(first, last, log, whole)


def _ends(dimension: Choices | Range) -> Iterable[str]:
    return dimension.values if isinstance(dimension, Choices) else (repr(dimension.low), repr(dimension.high))
