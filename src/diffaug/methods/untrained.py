"""No training: the backbone's states as they are, pooled in one of the ways the papers compare."""

from __future__ import annotations

from diffaug.config import Recipe
from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.methods.twostage import TwoStage
from diffaug.models.encoder import Encoder


class Untrained(TwoStage):
    """See the module's text. A run of it scores the model and saves it with its pooling and template."""

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        if recipe.stage1 is not None or recipe.stage2 is not None or recipe.model.head == "kept":
            raise DiffaugError("the method 'untrained' has no stages and no head: nothing learns")
