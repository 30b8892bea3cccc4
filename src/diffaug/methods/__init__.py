"""One file per method: its stages, its step, and what inference needs."""

from __future__ import annotations

from diffaug.config.registry import METHODS
from diffaug.errors import DiffaugError
from diffaug.methods.base import Method


def method_class(name: str) -> type[Method]:
    """The method that is registered under this name.

    Raises:
        DiffaugError: there is none, or it is no `Method`.
    """
    found = METHODS.get(name)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise DiffaugError(f"the method {name!r} must be a subclass of diffaug.Method, got {found!r}")
    return found
