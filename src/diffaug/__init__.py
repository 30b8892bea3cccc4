"""diffaug: sentence embeddings when labels are few.

The public names load on first use, so that ``import diffaug`` and ``diffaug --help`` stay instant.
"""

from typing import TYPE_CHECKING, Any

from diffaug.version import __version__ as __version__

if TYPE_CHECKING:
    from diffaug.adaptation.run import AdaptResult as AdaptResult
    from diffaug.adaptation.run import adapt as adapt
    from diffaug.config import load_recipe as load_recipe
    from diffaug.embedder import Embedder as Embedder
    from diffaug.errors import DiffaugError as DiffaugError
    from diffaug.evaluation import evaluate as evaluate
    from diffaug.mining import mine_hard_negatives as mine_hard_negatives
    from diffaug.training.run import train as train

__all__ = [
    "AdaptResult",
    "DiffaugError",
    "Embedder",
    "adapt",
    "evaluate",
    "load_recipe",
    "mine_hard_negatives",
    "train",
]

_HOMES = {
    "AdaptResult": "diffaug.adaptation.run",
    "adapt": "diffaug.adaptation.run",
    "DiffaugError": "diffaug.errors",
    "Embedder": "diffaug.embedder",
    "evaluate": "diffaug.evaluation",
    "load_recipe": "diffaug.config",
    "mine_hard_negatives": "diffaug.mining",
    "train": "diffaug.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffaug' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
