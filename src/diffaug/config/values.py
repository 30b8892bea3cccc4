"""Which values the settings of a recipe may have, beyond their types.

What is refused here would otherwise fail late, after a stage that took hours, or train something nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diffaug.config.registry import LOSSES, METHODS, VIEWS
from diffaug.config.typed import nearest
from diffaug.errors import DiffaugError

_AT_LEAST = {
    "seed": 0,
    "data.label_draw": 0,
    "views.length": 1,
    "views.bottleneck": 1,
    "data.max_length": 1,
    "data.per_class": 2,
    "stage1.steps": 0,
    "stage1.max_steps": 1,
    "stage1.batch_size": 2,
    "stage1.learning_rate": 0,
    "stage1.weight_decay": 0,
    "stage2.steps": 1,
    "stage2.batch_size": 2,
    "stage2.learning_rate": 0,
    "stage2.weight_decay": 0,
    "stage2.aux_batch_size": 2,
    "stage2.gradient_cache": 1,
    "flow.levels": 1,
    "flow.steps": 1,
    "flow.hidden": 1,
    "loop.accumulate": 1,
    "loop.eval_every": 1,
    "loop.save_minutes": 0,
    "loop.patience": 1,
}
# Beyond these no machine has enough memory or time.
_AT_MOST = {
    "views.length": 10_000,
    "views.bottleneck": 100_000,
    "flow.levels": 1_000,
    "flow.steps": 1_000,
    "flow.hidden": 100_000,
    "stage1.epochs": 1e6,
    "stage2.epochs": 1e6,
}
_ABOVE_ZERO = (
    "data.labels",
    "stage1.epochs",
    "stage2.epochs",
    "stage2.temperature",
    "loop.clip",
    "loop.adam_epsilon",
)
_FRACTIONS = ("views.dropout", "stage1.warmup", "stage2.warmup", "replaced.mask_rate")
_SOURCES = ("nli", "unlabelled", "dev", "test")


def check_values(recipe: Mapping[str, Any], source: str) -> None:
    """Check a recipe's values, of which keys and types are in order; ``source`` is named in errors.

    Raises:
        DiffaugError: an unknown method, kind of views or loss, a number out of its range, a list without sources, or
            columns of a source that does not exist.
    """
    METHODS.check(recipe["method"], f"{source}: ")
    VIEWS.check(recipe["views"]["kind"], f"{source}: ")
    if recipe["stage2"] is not None and recipe["stage2"]["loss"] is not None:
        LOSSES.check(recipe["stage2"]["loss"], f"{source}: ")
    for key, least in _AT_LEAST.items():
        _check(recipe, key, source, lambda number, least=least: number >= least, f"at least {least}")
    for key, most in _AT_MOST.items():
        _check(recipe, key, source, lambda number, most=most: number <= most, f"at most {most:,g}")
    for key in _ABOVE_ZERO:
        _check(recipe, key, source, lambda number: number > 0, "more than 0")
    for key in _FRACTIONS:
        _check(recipe, key, source, lambda number: 0 <= number <= 1, "a part between 0 and 1")
    for name in _SOURCES:
        if recipe["data"][name] == []:
            raise DiffaugError(f"{source}: data.{name} is an empty list; name at least one file, or set it to null")
    _check_proportions(recipe["data"], source)
    if recipe["stage2"] is not None:
        _check_matryoshka(recipe["stage2"], source)
    for name in recipe["data"]["columns"]:
        if name not in _SOURCES:
            raise DiffaugError(f"{source}: unknown setting 'data.columns.{name}'{nearest(name, _SOURCES)}")


def _check_proportions(data: Mapping[str, Any], source: str) -> None:
    shares = data["proportions"]
    if shares is None:
        return
    files = len(data["nli"]) if isinstance(data["nli"], list) else 1
    if len(shares) != files or min(shares, default=0) <= 0:
        raise DiffaugError(
            f"{source}: data.proportions = {shares} does not fit; it must be a number above 0 for each of the {files} "
            "files in data.nli"
        )


def _check_matryoshka(stage: Mapping[str, Any], source: str) -> None:
    dimensions, weights = stage["matryoshka"], stage["matryoshka_weights"]
    if min(dimensions, default=1) < 1 or len(set(dimensions)) < len(dimensions):
        raise DiffaugError(
            f"{source}: stage2.matryoshka = {dimensions} does not fit; it must be different numbers of at least 1"
        )
    if weights is not None and (len(weights) != len(dimensions) or min(weights, default=1) <= 0):
        raise DiffaugError(
            f"{source}: stage2.matryoshka_weights = {weights} does not fit; it must be a number above 0 for each of "
            f"the {len(dimensions)} dimensions in stage2.matryoshka"
        )


def _check(recipe: Mapping[str, Any], key: str, source: str, fits: Callable[..., bool], wanted: str) -> None:
    """Raise unless the number under ``key`` fits; what is left out, or a word such as auto, does."""
    number: Any = recipe
    for name in key.split("."):
        number = None if number is None else number[name]
    if isinstance(number, (int, float)) and not fits(number):
        raise DiffaugError(f"{source}: {key} = {number!r} does not fit; it must be {wanted}")
