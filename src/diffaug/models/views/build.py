"""Find and build the views that a recipe or a saved model names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diffaug.config import Recipe
from diffaug.config.registry import VIEWS
from diffaug.errors import DiffaugError
from diffaug.models.config import ModelConfig, PluginViewsConfig
from diffaug.models.views.adapter import Adapter
from diffaug.models.views.base import Views
from diffaug.models.views.lora import Lora
from diffaug.models.views.text import TextViews

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def text_views(kind: str) -> type[TextViews] | None:
    """What makes the other sentence of a positive pair; None for views that do not differ in their text."""
    found = VIEWS.get(kind)
    return found if isinstance(found, type) and issubclass(found, TextViews) else None


def new_views(recipe: Recipe, backbone: PreTrainedModel) -> Views | None:
    """The module of a recipe's views, to be trained with ``backbone``; None if there is none inside the encoder.

    Raises:
        DiffaugError: a setting or the backbone does not fit.
    """
    name = recipe.views.kind
    kind = VIEWS.get(name)
    if kind is None or text_views(name) is not None:
        return None
    if not (isinstance(kind, type) and issubclass(kind, Views)):
        raise DiffaugError(f"the kind of views {name!r} must be a subclass of diffaug.Views or TextViews, got {kind!r}")
    module = kind.from_recipe(recipe, backbone)
    if not (VIEWS.is_own(name) or module.config is None or isinstance(module.config, PluginViewsConfig)):
        raise DiffaugError(
            f"{kind.__name__} would be saved as a {type(module).__mro__[1].__name__}; derive it from diffaug.Views"
        )
    return module


def build_views(config: ModelConfig, backbone: PreTrainedModel) -> Views | None:
    """The module of a saved model's views, with new weights; None if it has none."""
    if config.prefix is not None:
        # They import transformers' model classes, which other models may do without: see `plain_bert`.
        from diffaug.models.attention import attention_shape
        from diffaug.models.views.prefix import FoldedPrefix

        return FoldedPrefix(config.prefix, attention_shape(backbone))
    if config.adapter is not None:
        return Adapter(config.adapter, backbone)
    if config.lora is not None:
        return Lora(config.lora, backbone)
    if config.plugin_views is not None:
        check_plugin(config)
        views: Views = VIEWS.get(config.plugin_views.kind).from_config(config.plugin_views, backbone)
        return views
    return None


def check_plugin(config: ModelConfig) -> None:
    """Check that the plugin of a saved model's views is loaded.

    Raises:
        DiffaugError: it is not; the message says what to import.
    """
    views = config.plugin_views
    if views is not None and views.kind not in VIEWS:
        raise DiffaugError(
            f"the model has the views {views.kind!r} of the plugin {views.plugin}, which is not loaded; load it with "
            f"--plugin {views.plugin}, or in Python with diffaug.load_plugin({views.plugin!r})"
        )
