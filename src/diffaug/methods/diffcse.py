"""DiffCSE: SimCSE whose vectors must also tell a discriminator which words of an edited sentence were replaced.

A small frozen masked language model fills in some words of a sentence anew. A second encoder reads the result together
with the original sentence's vector, and says for each token whether it was replaced: the more that vector knows about
the sentence, the better it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diffaug.config import Recipe
from diffaug.data.collate import Collator
from diffaug.distributed import gather_rows, own_rows
from diffaug.errors import DiffaugError
from diffaug.losses.contrastive import info_nce
from diffaug.losses.replaced import choose_masked, replaced_labels, replaced_token_loss
from diffaug.methods.base import Inputs, Stage
from diffaug.methods.twostage import TwoStage
from diffaug.models.discriminator import Discriminator
from diffaug.models.encoder import Encoder
from diffaug.models.generator import Generator
from diffaug.models.heads import BatchNormProjector
from diffaug.models.io.fetch import model_source
from diffaug.models.rows import Rows


class DiffCSE(TwoStage):
    """See the module's text. Projection and discriminator learn too, but are no part of the trained model."""

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        source = recipe.replaced.generator
        if source is None:
            raise DiffaugError(
                "DiffCSE needs replaced.generator: the folder or hub name of a masked language model that has the "
                "backbone's vocabulary"
            )
        if not 0 < recipe.replaced.mask_rate <= 1:
            raise DiffaugError(f"replaced.mask_rate is a part of the tokens, not {recipe.replaced.mask_rate}")
        if recipe.model.template is not None or recipe.model.head != "training":
            raise DiffaugError(
                "DiffCSE reads sentences without a template and has a projection in training: set model.template=null "
                "and model.head=training"
            )
        self.projection = BatchNormProjector(encoder.backbone.config.hidden_size)
        self.initialise(self.projection)
        self.discriminator = Discriminator(encoder.backbone)
        self.generator = Generator.load(model_source(source), collator.tokenizer)

    def roles(self) -> dict[str, nn.Module]:
        return {**super().roles(), "discriminator": self.discriminator}

    def contrast(self, states: Tensor, inputs: Inputs) -> dict[str, Tensor]:
        assert self.recipe.stage2 is not None
        columns = inputs.extra["columns"]
        # Batch norm reads the vectors of all processes: they are gathered before the projection, not behind it.
        gathered = torch.cat([gather_rows(column) for column in states.chunk(columns)])
        projected = self.project(gathered).chunk(columns)
        anchors, positives, *negatives = projected
        loss = info_nce(anchors, positives, negatives[0] if negatives else None, self.recipe.stage2.temperature)
        own = torch.cat([own_rows(column) for column in projected])  # (columns * anchors, hidden size), as the states
        return {"contrastive": loss, "replaced": self._detect(inputs.rows.part(0, len(own)), own)}

    def _detect(self, rows: Rows, vectors: Tensor) -> Tensor:
        """The loss of telling replaced tokens from original ones, over the tokens of all processes.

        Every row has its own masks: those of a sentence's two copies differ.
        """
        assert self.recipe.stage2 is not None
        candidates = self.generator.candidates(rows.input_ids, rows.attention_mask)
        masked = choose_masked(candidates, self.recipe.replaced.mask_rate)
        chunk = self.recipe.stage2.gradient_cache
        discriminate: Callable[..., Tensor] = self.discriminator
        if chunk is not None:
            # Where memory holds one chunk of the encoder, so it does of the discriminator, which then runs twice, too.
            discriminate = partial(checkpoint, self.discriminator, use_reentrant=False)
        own = vectors.new_zeros(2, dtype=torch.float32)  # the sum of the losses, and the number of tokens
        for start in range(0, len(rows), chunk or len(rows)):
            stop = start + (chunk or len(rows))
            part = rows.part(start, stop)
            filled = self.generator.fill(part.input_ids, part.attention_mask, masked[start:stop])
            logits = discriminate(filled, part.attention_mask, vectors[start:stop])
            real = torch.ones_like(filled) if part.attention_mask is None else part.attention_mask
            own = own + torch.stack(replaced_token_loss(logits, replaced_labels(part.input_ids, filled), real))
        total, tokens = gather_rows(own.unsqueeze(0)).sum(0)
        return total / tokens

    def total(self, stage: Stage, found: Mapping[str, Tensor]) -> Tensor:
        loss = super().total(stage, found)
        return loss + self.recipe.replaced.weight * found["replaced"] if stage.number == 2 else loss
