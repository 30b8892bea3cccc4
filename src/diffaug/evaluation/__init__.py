"""Evaluation of sentence embeddings: STS, transfer tasks, your own data, and comparison of two models.

Names are loaded on first use, so that finding the tasks of a folder does not import torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffaug.evaluation.evaluator import evaluate as evaluate
    from diffaug.evaluation.result import EvaluationResult as EvaluationResult

__all__ = ["EvaluationResult", "evaluate"]

_MODULES = {
    "EvaluationResult": "diffaug.evaluation.result",
    "Report": "diffaug.evaluation.result",  # the name of EvaluationResult in version 0.1; to be removed in 0.3
    "evaluate": "diffaug.evaluation.evaluator",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'diffaug.evaluation' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), "EvaluationResult" if name == "Report" else name)
