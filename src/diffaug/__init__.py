"""diffaug: sentence embeddings when labels are few.

The public names load on first use, so that ``import diffaug`` and ``diffaug --help`` stay instant.
"""

from typing import TYPE_CHECKING, Any

from diffaug.version import __version__ as __version__

if TYPE_CHECKING:
    from diffaug.adaptation.forecasts import Forecast as Forecast
    from diffaug.adaptation.forecasts import forecast as forecast
    from diffaug.adaptation.result import AdaptResult as AdaptResult
    from diffaug.adaptation.run import adapt as adapt
    from diffaug.config import load_recipe as load_recipe
    from diffaug.config.registry import load_plugin as load_plugin
    from diffaug.config.registry import register_loss as register_loss
    from diffaug.config.registry import register_method as register_method
    from diffaug.config.registry import register_task as register_task
    from diffaug.config.registry import register_views as register_views
    from diffaug.embedder import Embedder as Embedder
    from diffaug.errors import DiffaugError as DiffaugError
    from diffaug.evaluation import evaluate as evaluate
    from diffaug.evaluation.tasks import TaskResult as TaskResult
    from diffaug.inference.index import Index as Index
    from diffaug.inference.stored import StoredVectors as StoredVectors
    from diffaug.methods.base import Method as Method
    from diffaug.methods.twostage import TwoStage as TwoStage
    from diffaug.mining import mine_hard_negatives as mine_hard_negatives
    from diffaug.models.views.base import Views as Views
    from diffaug.models.views.text import TextViews as TextViews
    from diffaug.training.run import train as train
    from diffaug.tuning.result import TuneResult as TuneResult
    from diffaug.tuning.run import tune as tune

__all__ = [
    "AdaptResult",
    "DiffaugError",
    "Embedder",
    "Forecast",
    "Index",
    "Method",
    "StoredVectors",
    "TaskResult",
    "TextViews",
    "TuneResult",
    "TwoStage",
    "Views",
    "adapt",
    "evaluate",
    "forecast",
    "load_plugin",
    "load_recipe",
    "mine_hard_negatives",
    "register_loss",
    "register_method",
    "register_task",
    "register_views",
    "train",
    "tune",
]

_HOMES = {
    "AdaptResult": "diffaug.adaptation.result",
    "Forecast": "diffaug.adaptation.forecasts",
    "forecast": "diffaug.adaptation.forecasts",
    "adapt": "diffaug.adaptation.run",
    "DiffaugError": "diffaug.errors",
    "Embedder": "diffaug.embedder",
    "Index": "diffaug.inference.index",
    "StoredVectors": "diffaug.inference.stored",
    "Method": "diffaug.methods.base",
    "TaskResult": "diffaug.evaluation.tasks",
    "TextViews": "diffaug.models.views.text",
    "TwoStage": "diffaug.methods.twostage",
    "Views": "diffaug.models.views.base",
    "evaluate": "diffaug.evaluation",
    "load_plugin": "diffaug.config.registry",
    "load_recipe": "diffaug.config",
    "mine_hard_negatives": "diffaug.mining",
    "register_loss": "diffaug.config.registry",
    "register_method": "diffaug.config.registry",
    "register_task": "diffaug.config.registry",
    "register_views": "diffaug.config.registry",
    "train": "diffaug.training.run",
    "TuneResult": "diffaug.tuning.result",
    "tune": "diffaug.tuning.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffaug' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
