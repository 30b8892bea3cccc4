"""BERT-flow and SBERT-flow: a normalising flow behind a frozen encoder makes its vectors look like N(0, I).

Stage 2 trains the flow alone, to give sentences a high likelihood: of the labelled data, without the labels (NLI
variant), or of the texts the model is meant for (target variant). With a stage 1, SBERT's, it is SBERT-flow.
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
from diffaug.methods.base import Inputs, Represent, Stage
from diffaug.methods.twostage import TwoStage
from diffaug.models.config import FlowConfig, ModelConfig
from diffaug.models.encoder import Encoder
from diffaug.models.flow import Flow
from diffaug.models.rows import Rows


class BertFlow(TwoStage):
    """See the module's text."""

    normal_init: ClassVar[bool] = False  # of its first stage, which is SBERT's

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        second = recipe.stage2
        if second is None:
            raise DiffaugError("the method 'flow' needs a stage2: it is there that the flow learns")
        if second.objective == "triplets":
            raise DiffaugError(
                "a flow learns from single sentences: set stage2.objective to unlabelled or nli_sentences"
            )
        if second.aux_weight or second.gradient_cache is not None or recipe.model.head != "none":
            raise DiffaugError(
                "the method 'flow' has no stage2.aux_weight, stage2.gradient_cache or model.head: behind its frozen "
                "encoder only the flow learns"
            )
        self._pooling = recipe.model.train_pooling

    @classmethod
    def model_config(cls, recipe: Recipe, backbone: PreTrainedModel) -> ModelConfig:
        return replace(super().model_config(recipe, backbone), flow=FlowConfig(**asdict(recipe.flow)))

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
        return [
            replace(stage, streams={"sentences": stage.streams["contrastive"]}) if stage.number == 2 else stage
            for stage in super().stages(corpus)
        ]

    def begin(self, stage: Stage) -> None:
        super().begin(stage)
        # A pooling for training is stage 1's: the flow must learn the vectors that it will meet at inference.
        self._pooling = self.recipe.model.train_pooling if stage.number == 1 else None

    def represent(self, rows: Rows) -> Tensor:
        return self.encoder.represent(rows, pooling=self._pooling)

    def collate(self, stage: Stage, batches: Mapping[str, Batch]) -> Inputs:
        """Rows of one forward: sentences in stage 2, NLI pairs in stage 1."""
        if "sentences" not in batches:
            return super().collate(stage, batches)
        return Inputs(self.collator.rows([sentence for (sentence,) in batches["sentences"].examples]))

    def losses(self, stage: Stage, inputs: Inputs, represent: Represent) -> dict[str, Tensor]:
        if stage.number == 1:
            return super().losses(stage, inputs, represent)
        vectors = represent(inputs.rows).detach()
        if not self.flow.initialised:
            # With the rows of all processes, so that every process starts from the same flow.
            self.flow.initialise(gather_rows(vectors))
        # The mean over a process's own rows: averaged over the processes, its gradient is that of the whole batch.
        bits = bits_per_dimension(*self.flow(vectors))
        assert self.recipe.stage2 is not None
        return {"bits_per_dimension": bits, "loss": self.recipe.stage2.weight * bits}
