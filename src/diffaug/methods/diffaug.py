"""DiffAug: two learned modules, by default prefixes, make the two views of a positive pair.

Stage 1 trains only the prefixes, to distinguish entailment from contradiction. Stage 2 trains prefixes and backbone
with a contrastive loss, on sentences under both prefixes (semi-supervised) or on NLI triplets (supervised).
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from diffaug.config import Recipe
from diffaug.data.collate import Collator
from diffaug.data.corpus import Corpus
from diffaug.errors import DiffaugError
from diffaug.methods.base import Stage
from diffaug.methods.twostage import FIRST, SECOND, TwoStage
from diffaug.models.encoder import Encoder


class DiffAug(TwoStage):
    """DiffAug."""

    view_kinds = ("prefix", "adapter", "lora")
    stage1_learns = "views"
    pair_views = (FIRST, SECOND)

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        if "views" not in self.roles():
            raise DiffaugError(
                f"DiffAug trains its views, but views.kind={recipe.views.kind} has no parameters; set it to prefix"
            )
        two_prefixes = recipe.views.kind == "prefix" and not recipe.views.same
        if recipe.stage1 is not None and recipe.stage1.steps == "auto" and not two_prefixes:
            raise DiffaugError(
                "stage1.steps=auto needs two different prefixes, since it reads delta and kappa; set stage1.steps to a "
                "number"
            )

    def stages(self, corpus: Corpus) -> list[Stage]:
        stages, released = super().stages(corpus), self.recipe.released
        if released.stage1_schedule_of_stage2 and len(stages) == 2:
            stages[0] = replace(stages[0], schedule_steps=stages[1].steps)
        if released.stage1_clips_scaled_gradients and stages and stages[0].number == 1:
            frozen = tuple(role for role in self.roles() if role not in stages[0].learning_rates)
            stages[0] = replace(stages[0], clipped_with=frozen)
        return stages

    def bare_length(self, length: int) -> int:
        prefix = self.encoder.config.prefix
        if prefix is None or not self.recipe.released.denoise_counts_prefix:
            return length
        return length + prefix.length

    def pair_vectors(self, vectors: Tensor) -> Tensor:
        return self.project(vectors) if self.recipe.released.stage1_through_projection else vectors
