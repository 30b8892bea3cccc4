"""The interface of the kinds of views."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from diffaug.config import Recipe
from diffaug.config.registry import VIEWS, check_options, plugin_of
from diffaug.models.batch import TokenBatch
from diffaug.models.config import PluginViewsConfig, ViewsConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Self

# The kind `dropout` has no module: the views differ by the backbone's dropout alone.
DROPOUT = None


class Views(nn.Module, ABC):
    """What makes the views of a sentence differ inside the encoder.

    A plugin's class has the constructor ``(backbone, views, **options)``: the backbone, the number of views (2, or 1
    with `views.same`), and the recipe's `views.options`. If it has parameters, it is saved with the model and used at
    inference.

    Attributes:
        config: the settings of a module that is saved with the model; None for one that is used in training only.
        supports_packed: whether it works on packed batches.
        supports_pruning: whether the last layer may be computed at the pooled tokens only.
    """

    config: ViewsConfig | None = None
    supports_packed: ClassVar[bool] = False
    supports_pruning: ClassVar[bool] = False

    @classmethod
    def from_recipe(cls, recipe: Recipe, backbone: PreTrainedModel) -> Self:
        """A new module to train, around ``backbone``.

        Raises:
            DiffaugError: a setting or the backbone does not fit.
        """
        settings = recipe.views
        check_options("views.options", cls, settings.options, "backbone", "views")
        plugin = plugin_of(VIEWS.get(settings.kind))
        return cls.from_config(PluginViewsConfig(settings.kind, plugin, view_count(recipe), settings.options), backbone)

    @classmethod
    def from_config(cls, config: PluginViewsConfig, backbone: PreTrainedModel) -> Self:
        """The module of a plugin, with new weights."""
        module = cls(backbone, config.views, **config.options)
        if any(True for _ in module.parameters()):
            module.config = config
        return module

    @abstractmethod
    def applied(self, batch: TokenBatch) -> AbstractContextManager[dict[str, Any]]:
        """The context of one backbone forward, in which the views are active.

        It yields further keywords for the backbone's forward. ``batch.view_ids`` (sequences,) is the view of each
        sequence; None means inference: all views at once, or none for a module that is used in training only. After
        the context, also after an exception, the backbone is as before.

        Raises:
            DiffaugError: on exit, if a part of the backbone did not use its view: a view is never ignored silently.
        """

    def prefix_length(self, by_view: bool) -> int:
        """The number of prefix keys before each sequence, if each sees its own view only or all of them."""
        return 0


def view_count(recipe: Recipe) -> int:
    """The number of learned views."""
    return 1 if recipe.views.same else 2
