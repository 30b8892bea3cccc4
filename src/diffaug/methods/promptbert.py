"""PromptBERT: the state at the mask token of a prompt, less what the prompt says by itself.

Unsupervised, two prompts make the two views of a sentence; supervised, NLI triplets are read with one prompt.
"""

from __future__ import annotations

from diffaug.config import Recipe
from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.methods.twostage import TwoStage
from diffaug.models.encoder import Encoder


class PromptBERT(TwoStage):
    """See the module's text."""

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        if recipe.model.template is None:
            raise DiffaugError("PromptBERT needs model.template, a prompt with {} and [MASK]")
