"""Plain values, as YAML and JSON hold them, into dataclasses: every key known, every value of its type."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from diffaug.errors import DiffaugError

_MAX_INT = 2**32 - 1
"""The largest whole number of a setting: the largest seed that numpy takes."""


def build(cls: Any, values: Any, source: str, where: str = "") -> Any:
    """A dataclass from a mapping; ``source`` and ``where`` are named in errors.

    Raises:
        DiffaugError: a key that does not exist (the nearest one is named) or is missing, or a value that does not fit.
    """
    if not isinstance(values, Mapping):
        raise DiffaugError(f"{source}: {where or 'the recipe'} must be a group of settings, not {values!r:.80}")
    hints = get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise DiffaugError(f"{source}: unknown setting {_join(where, key)!r}{nearest(str(key), hints)}")
    for f in fields(cls):
        if f.name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise DiffaugError(f"{source}: the setting {_join(where, f.name)!r} is missing")
    return cls(
        **{
            f.name: _value(hints[f.name], values[f.name], source, _join(where, f.name))
            for f in fields(cls)
            if f.name in values
        }
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the name that was meant, or all there are."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"


def hint_at(cls: Any, keys: Sequence[str]) -> Any:
    """The type of the setting under these keys of a dataclass; None if there is no such setting."""
    hint = cls
    for key in keys:
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        group = next((option for option in options if is_dataclass(option) or get_origin(option) is dict), None)
        if group is None:
            return None
        hint = get_type_hints(group).get(key) if is_dataclass(group) else get_args(group)[1]
    return hint


def is_text(hint: Any) -> bool:
    """Whether a setting of this type holds text, or text or null."""
    return hint is str or set(get_args(hint)) == {str, type(None)}


def _value(hint: Any, value: Any, source: str, where: str) -> Any:
    """``value`` as type ``hint`` (an int becomes a float where one is wanted), or an error that says what fits."""
    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return build(hint, value, source, where)
    if origin in (Union, types.UnionType):
        group = next((option for option in args if is_dataclass(option)), None)
        if group is not None and value is not None:
            return build(group, value, source, where)
        for option in args:
            try:
                return _value(option, value, source, where)
            except DiffaugError:
                continue
    elif origin is Literal:
        if any(value == option and type(value) is type(option) for option in args):
            return value
    elif origin is list:
        if isinstance(value, list):
            return [_value(args[0], item, source, where) for item in value]
    elif origin is dict:
        if isinstance(value, Mapping):
            return {str(key): _value(args[1], item, source, f"{where}.{key}") for key, item in value.items()}
    elif hint is float:
        # YAML reads 1e-5 as a string; whoever writes it means a number.
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            with suppress(ValueError, OverflowError):
                if math.isfinite(number := float(value)):
                    return number
    elif hint is type(None):
        if value is None:
            return None
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_INT:
            return value
    elif isinstance(value, hint):
        return value
    limit = f" (finite, whole numbers up to {_MAX_INT:,})" if _is_extreme(value) else ""
    raise DiffaugError(f"{source}: {where} = {value!r:.80} does not fit; it takes {_describe(hint)}{limit}")


def _is_extreme(value: Any) -> bool:
    """Whether a number, or text that stands for one, is NaN or beyond the limit."""
    with suppress(ValueError, OverflowError, TypeError):
        return not isinstance(value, bool) and not abs(float(value)) <= _MAX_INT
    return isinstance(value, int)


def _describe(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return "a group of settings"
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in args)
    if origin is Literal:
        return " or ".join(repr(option) for option in args)
    if origin in (list, dict):
        return {list: "a list", dict: "a group of key: value"}[origin]
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}[hint]


def _join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)
