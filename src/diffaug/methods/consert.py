"""ConSERT: two views of a sentence, made by cutting its embeddings or shuffling its positions, and NT-Xent.

Vectors are means over the tokens of the last layer in training, and of the last two at test (`model.train_pooling` and
`model.pooling`).
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from diffaug.config import Recipe
from diffaug.data.corpus import Corpus
from diffaug.data.sampling import Examples
from diffaug.distributed import gather_rows
from diffaug.errors import DiffaugError
from diffaug.losses.contrastive import nt_xent
from diffaug.methods.base import Inputs, Stage
from diffaug.methods.twostage import TwoStage
from diffaug.models.config import ModelConfig
from diffaug.models.views.cutoff import PLAIN, Cutoff


class ConSERT(TwoStage):
    """See the module's text. NLI pairs are read as they are, without any cut."""

    view_kinds: ClassVar[tuple[str, ...]] = ("cutoff",)
    pair_views: ClassVar[tuple[int, int]] = (PLAIN, PLAIN)
    normal_init: ClassVar[bool] = False

    @classmethod
    def build_views(cls, recipe: Recipe, config: ModelConfig, backbone: PreTrainedModel) -> Cutoff:
        if recipe.model.template is not None:
            raise DiffaugError("ConSERT reads sentences without a template: set model.template=null")
        if recipe.views.same:
            raise DiffaugError("ConSERT's views are not learned: in place of views.same, give views.first and .second")
        return Cutoff(backbone, [recipe.views.first, recipe.views.second])

    def contrastive_examples(self, corpus: Corpus) -> Examples:
        assert self.recipe.stage2 is not None
        if self.recipe.stage2.objective == "triplets":
            raise DiffaugError(
                "ConSERT contrasts two views of a sentence and knows no hard negatives: set stage2.objective to "
                "unlabelled or nli_sentences"
            )
        return super().contrastive_examples(corpus)

    def contrast(self, states: Tensor, inputs: Inputs) -> dict[str, Tensor]:
        assert self.recipe.stage2 is not None
        first, second = (gather_rows(view) for view in self.project(states).chunk(2))
        return {"contrastive": nt_xent(first, second, self.recipe.stage2.temperature)}

    def negatives_per_anchor(self, stage: Stage) -> int | None:
        across = super().negatives_per_anchor(stage)
        return None if across is None else 2 * across  # and as many in its own view
