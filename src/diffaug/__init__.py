"""diffaug: sentence embeddings when labels are few.

The public names load on first use, so that ``import diffaug`` and ``diffaug --help`` stay instant.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffaug.embedder import Embedder as Embedder
    from diffaug.errors import DiffaugError as DiffaugError

__version__ = "0.1.0"
__all__ = ["DiffaugError", "Embedder"]

_HOMES = {"Embedder": "diffaug.embedder", "DiffaugError": "diffaug.errors"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffaug' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
