"""No training: the backbone's states with one of the poolings that the papers compare."""

from __future__ import annotations

from diffaug.config import Recipe
from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.methods.twostage import TwoStage
from diffaug.models.encoder import Encoder


class Untrained(TwoStage):
    """An untrained backbone. A run scores it and saves it with its pooling and template."""

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        if recipe.stage1 is not None or recipe.stage2 is not None or recipe.model.head == "kept":
            raise DiffaugError(
                "the method 'untrained' trains nothing: set stage1=null, stage2=null and model.head=none"
            )
