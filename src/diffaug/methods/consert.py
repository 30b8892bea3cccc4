"""ConSERT: two views of a sentence by cutoff of its embeddings or shuffling of its positions, and the NT-Xent loss.

Vectors are means over the tokens of the last layer in training, and of the last two layers at test
(`model.train_pooling` and `model.pooling`).
"""

from __future__ import annotations

from typing import ClassVar

from transformers import PreTrainedModel

from diffaug.config import Recipe
from diffaug.data.corpus import Corpus
from diffaug.data.sampling import Examples, Mixture
from diffaug.errors import DiffaugError
from diffaug.methods.base import Stage
from diffaug.methods.twostage import TwoStage
from diffaug.models.views.base import Views
from diffaug.models.views.cutoff import PLAIN


class ConSERT(TwoStage):
    """ConSERT. NLI pairs are not augmented."""

    view_kinds: ClassVar[tuple[str, ...]] = ("cutoff",)
    default_loss: ClassVar[str] = "nt_xent"
    pair_views: ClassVar[tuple[int, int]] = (PLAIN, PLAIN)
    normal_init: ClassVar[bool] = False

    @classmethod
    def build_views(cls, recipe: Recipe, backbone: PreTrainedModel) -> Views | None:
        if recipe.model.template is not None:
            raise DiffaugError("ConSERT does not use a template: set model.template=null")
        if recipe.views.same:
            raise DiffaugError(
                "ConSERT's views are not learned: set views.first and views.second instead of views.same"
            )
        return super().build_views(recipe, backbone)

    def contrastive_examples(self, corpus: Corpus) -> Examples | Mixture:
        assert self.recipe.stage2 is not None
        if self.recipe.stage2.objective in ("triplets", "labels"):
            raise DiffaugError(
                "ConSERT contrasts two views of a sentence, without hard negatives: set stage2.objective to unlabelled "
                "or nli_sentences"
            )
        return super().contrastive_examples(corpus)

    def negatives_per_anchor(self, stage: Stage) -> int | None:
        across = super().negatives_per_anchor(stage)
        return None if across is None else 2 * across  # as many again in its own view
