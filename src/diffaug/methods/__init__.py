"""A file a method: its stages, its step, and what inference needs."""

from __future__ import annotations

from diffaug.errors import DiffaugError
from diffaug.methods.base import Method
from diffaug.methods.diffaug import DiffAug

METHODS: dict[str, type[Method]] = {"diffaug": DiffAug}


def method_class(name: str) -> type[Method]:
    """The method of that name."""
    if name not in METHODS:
        raise DiffaugError(f"there is no method {name!r}; there are {', '.join(sorted(METHODS))}")
    return METHODS[name]
