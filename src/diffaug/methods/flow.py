"""BERT-flow and SBERT-flow: a normalising flow maps the vectors of a frozen encoder to N(0, I).

Stage 2 trains only the flow, to maximise the likelihood of sentences: those of the labelled data, without the labels
(NLI variant), or of the texts the model is meant for (target variant). With SBERT's stage 1 it is SBERT-flow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel

from diffaug.config import Recipe
from diffaug.data.collate import Collator
from diffaug.data.corpus import Corpus
from diffaug.data.sampling import Batch
from diffaug.distributed import gather_rows
from diffaug.errors import DiffaugError
from diffaug.losses.likelihood import bits_per_dimension
from diffaug.methods.base import Encode, Stage, StepBatch
from diffaug.methods.twostage import TwoStage
from diffaug.models.batch import TokenBatch
from diffaug.models.config import FlowConfig, ModelConfig
from diffaug.models.encoder import Encoder
from diffaug.models.flow import Flow


class BertFlow(TwoStage):
    """BERT-flow."""

    normal_init: ClassVar[bool] = False  # its first stage is SBERT's

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        second = recipe.stage2
        if second is None:
            raise DiffaugError("the method 'flow' needs a stage2, which trains the flow")
        if second.objective in ("triplets", "labels"):
            raise DiffaugError(
                "a flow is trained on single sentences: set stage2.objective to unlabelled or nli_sentences"
            )
        unused = second.aux_weight or second.gradient_cache is not None or second.loss is not None or second.matryoshka
        if unused or recipe.model.head != "none":
            raise DiffaugError(
                "the method 'flow' trains only the flow: set stage2.aux_weight=0, stage2.gradient_cache=null, "
                "stage2.loss=null, stage2.matryoshka=[] and model.head=none"
            )
        self._pooling = recipe.model.train_pooling

    @classmethod
    def model_config(
        cls, recipe: Recipe, backbone: PreTrainedModel, finished: ModelConfig | None = None
    ) -> ModelConfig:
        return replace(super().model_config(recipe, backbone, finished), flow=FlowConfig(**asdict(recipe.flow)))

    @property
    def flow(self) -> Flow:
        """The encoder's flow."""
        assert self.encoder.flow is not None
        return self.encoder.flow

    def roles(self) -> dict[str, nn.Module]:
        return {**super().roles(), "flow": self.flow}

    def stage2_learns(self) -> list[str]:
        return ["flow"]

    def stages(self, corpus: Corpus) -> list[Stage]:
        # Nothing is contrasted: a sentence goes through the encoder once.
        *first, second = super().stages(corpus)
        return [*first, replace(second, streams={"sentences": second.streams["contrastive"]})]

    def begin(self, stage: Stage) -> None:
        super().begin(stage)
        # The flow is trained on the vectors of inference, and so without a pooling for training.
        self._pooling = None if "sentences" in stage.streams else self.recipe.model.train_pooling

    def represent(self, batch: TokenBatch) -> Tensor:
        return self.encoder.represent(batch, pooling=self._pooling)

    def collate(self, stage: Stage, batches: Mapping[str, Batch]) -> StepBatch:
        if "sentences" not in batches:
            return super().collate(stage, batches)
        return StepBatch(self.collator.rows([sentence for (sentence,) in batches["sentences"].examples]))

    def losses(self, stage: Stage, batch: StepBatch, encode: Encode) -> dict[str, Tensor]:
        if batch.pairs is not None:
            return super().losses(stage, batch, encode)
        vectors = encode(batch.tokens).detach()
        if not self.flow.initialised:
            # With the vectors of all processes, so that every process starts from the same flow.
            self.flow.initialise(gather_rows(vectors))
        # The mean over this process's vectors; gradients are averaged over the processes later.
        bits = bits_per_dimension(*self.flow(vectors))
        assert self.recipe.stage2 is not None
        return {"bits_per_dimension": bits, "loss": self.recipe.stage2.weight * bits}
