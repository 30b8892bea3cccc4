"""PromptBERT: the state at the mask token of a prompt, minus that of the bare prompt.

Unsupervised, two prompts make the two views of a sentence; supervised, NLI triplets are read with one prompt. The head
of the supervised BERT model is the transform of its pre-trained masked language model. It is applied to the states of
sentence and bare template before the subtraction; a new head (Linear + Tanh) is applied after it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from diffaug.config import Recipe
from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.methods.twostage import TwoStage
from diffaug.models.backbone import fill, load_mlm_transform
from diffaug.models.config import DenseConfig
from diffaug.models.encoder import Encoder
from diffaug.models.io.fetch import model_source

if TYPE_CHECKING:
    from typing_extensions import Self

# The transform's weights as transformers names them, and as `build_head` does.
_HEAD_NAMES = {
    "dense.weight": "0.0.weight",
    "dense.bias": "0.0.bias",
    "LayerNorm.weight": "0.2.weight",
    "LayerNorm.bias": "0.2.bias",
}


class PromptBERT(TwoStage):
    """PromptBERT."""

    head_kinds = ("tanh", "mlm", "auto")

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        if encoder.config.matryoshka and self.projection is not None and self._head_first:
            raise DiffaugError(
                "stage2.matryoshka cannot be combined with the head of model.head_kind=mlm in training only; set "
                "model.head=kept or model.head_kind=tanh"
            )

    @classmethod
    def build(
        cls,
        recipe: Recipe,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        finished: Encoder | None = None,
    ) -> Self:
        settings = recipe.model
        if settings.template is None:
            raise DiffaugError("PromptBERT needs model.template, a prompt with {} and [MASK]")
        if settings.head == "none" or settings.head_kind == "tanh":
            return super().build(recipe, backbone, tokenizer, finished)
        if finished is not None:
            # Its masked language model is gone; the transform may be its head.
            has_transform = any(layer.layer_norm is not None for layer in finished.config.head)
            if settings.head_kind == "mlm" and not has_transform:
                raise DiffaugError(
                    f"{settings.backbone} is an embedding model without the head of model.head_kind=mlm; set "
                    "model.head_kind=auto"
                )
            resolved = replace(settings, head_kind="mlm" if has_transform else "tanh")
            return super().build(replace(recipe, model=resolved), backbone, tokenizer, finished)
        source = model_source(settings.backbone)
        transform = load_mlm_transform(source)
        if transform is None and settings.head_kind == "mlm":
            raise DiffaugError(
                f"{settings.backbone} has no transform of BERT's masked language model (cls.predictions.transform) "
                "for model.head_kind=mlm; set model.head_kind=tanh for a new head"
            )
        resolved = replace(settings, head_kind="tanh" if transform is None else "mlm")
        method = super().build(replace(recipe, model=resolved), backbone, tokenizer)
        if transform is None:
            method.notes.append(
                f"{settings.backbone} has no transform of BERT's masked language model: the head is a new Linear + Tanh"
            )
        else:
            weights = {_HEAD_NAMES[name]: tensor for name, tensor in transform.items()}
            fill(method.projection or method.encoder.head, weights, source, "head")
        return method

    @classmethod
    def head_layer(cls, recipe: Recipe, backbone: PreTrainedModel) -> DenseConfig:
        layer = super().head_layer(recipe, backbone)
        if recipe.model.head_kind != "mlm":
            return layer
        return replace(layer, activation="gelu", layer_norm=float(backbone.config.layer_norm_eps))

    @property
    def _head_first(self) -> bool:
        """Whether the head is applied before the bare template's state is subtracted."""
        return self.recipe.model.head_kind == "mlm" and self._denoises()

    def subtract_templates(self, states: Tensor, bare: Tensor, index: Tensor) -> Tensor:
        if self._head_first:
            states, bare = super().project(states), super().project(bare)
        return super().subtract_templates(states, bare, index)

    def project(self, states: Tensor) -> Tensor:
        return states if self._head_first else super().project(states)
