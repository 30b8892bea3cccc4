"""The view module a model's settings ask for."""

from __future__ import annotations

from transformers import PreTrainedModel

from diffaug.models.attention import attention_shape
from diffaug.models.config import ModelConfig
from diffaug.models.initialise import initializer_range
from diffaug.models.views.adapter import Adapter
from diffaug.models.views.base import Views
from diffaug.models.views.lora import Lora
from diffaug.models.views.prefix import FoldedPrefix, ReparametrisedPrefix


def build_views(config: ModelConfig, backbone: PreTrainedModel, *, reparametrised: float | None = None) -> Views | None:
    """A new module around ``backbone``, or None if the model has no learned views.

    Args:
        config: the model's settings.
        backbone: what the module is attached to.
        reparametrised: for a prefix that is to learn: its dropout; None for plain keys and values, as models are saved.
    """
    if config.prefix is not None:
        shape = attention_shape(backbone)
        if reparametrised is None:
            return FoldedPrefix(config.prefix, shape)
        return ReparametrisedPrefix(config.prefix, shape, reparametrised, initializer_range(backbone))
    if config.adapter is not None:
        return Adapter(config.adapter, backbone)
    if config.lora is not None:
        return Lora(config.lora, backbone)
    return None
