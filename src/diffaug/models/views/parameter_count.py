"""The number of parameters that views add to a model."""

from __future__ import annotations

from diffaug.models.views.base import Views
from diffaug.models.views.prefix import Prefix


def added_parameters(views: Views) -> int:
    """The number of parameters in the saved model: for a prefix, its keys and values without the MLP."""
    if isinstance(views, Prefix):
        shape = views.shape
        return views.config.total * shape.layers * 2 * shape.heads * shape.head_dim
    return sum(parameter.numel() for parameter in views.parameters())
