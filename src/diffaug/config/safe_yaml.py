"""YAML with limits. It comes from users, and YAML can nest or expand without end, or repeat a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from diffaug.errors import DiffaugError

# Recipes and grids have a depth of 6 and some 10,000 characters.
_MAX_DEPTH = 32
_MAX_SIZE = 1_000_000
_MAX_DIGITS = 18
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The loader in C, which is ten times faster. A date is text: no setting is a date."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _whole_number(loader: Any, node: yaml.ScalarNode) -> int:
    number: int = loader.construct_yaml_int(node)
    if abs(number) >= 10**_MAX_DIGITS:
        raise ValueError(f"a whole number has at most {_MAX_DIGITS} digits")
    return number


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text.

    Args:
        text: the text.
        source: begins the error message, as in "the file a.yaml".

    Raises:
        DiffaugError: it is not valid YAML, repeats a key, or is nested or expanded beyond the limits.
    """
    try:
        _check_limits(text)
        return yaml.load(text, _Loader)
    except DiffaugError as error:
        raise DiffaugError(f"{source} {error}") from None
    except Exception as error:  # YAMLError, and whatever int() and the tables of PyYAML's constructors raise
        reason = " ".join(str(error).split())
        raise DiffaugError(f"{source} is not valid YAML: {reason[:300] or type(error).__name__}") from error


@dataclass
class _Open:
    """A list or mapping whose end has not come yet; size and depth of what is in it, aliases expanded."""

    anchor: str | None
    keys: set[str] | None
    children: int = 0
    size: int = 1
    depth: int = 1

    def add(self, size: int, depth: int) -> None:
        self.children += 1
        self.size += size
        self.depth = max(self.depth, depth + 1)


def _check_limits(text: str) -> None:
    """Go through the parser's events, without recursion, before anything is built."""
    known: dict[str | None, tuple[int, int]] = {}
    stack = [_Open(None, None)]
    for event in yaml.parse(text, _Loader):
        top = stack[-1]
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            stack.append(_Open(event.anchor, set() if isinstance(event, yaml.MappingStartEvent) else None))
            known.pop(event.anchor, None)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            known[top.anchor] = (top.size, top.depth)
            stack.pop()
            stack[-1].add(top.size, top.depth)
        elif isinstance(event, yaml.ScalarEvent):
            if top.keys is not None and top.children % 2 == 0:
                if event.value in top.keys:
                    raise DiffaugError(f"has the key {event.value!r:.60} twice")
                top.keys.add(event.value)
            known[event.anchor] = (1 + len(event.value), 0)
            top.add(*known[event.anchor])
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in known:
                raise DiffaugError(f"has the alias *{event.anchor:.60} without a complete anchor before it")
            top.add(*known[event.anchor])
        if len(stack) + stack[-1].depth > _MAX_DEPTH + 2:
            raise DiffaugError(f"is nested more than {_MAX_DEPTH} levels deep")
        if stack[-1].size > _MAX_SIZE:
            raise DiffaugError(f"is too large: with its aliases it has more than {_MAX_SIZE:,} characters")
