"""Scores of sentence embeddings that can be trusted and compared.

The public names load on first use: who only looks for the tasks of a folder need not wait for torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffaug.evaluation.report import Report as Report
    from diffaug.evaluation.run import evaluate as evaluate

__all__ = ["Report", "evaluate"]

_HOMES = {"Report": "diffaug.evaluation.report", "evaluate": "diffaug.evaluation.run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffaug.evaluation' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
