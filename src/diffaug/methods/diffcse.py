"""DiffCSE: SimCSE with a second loss, for detecting the replaced words of an edited sentence.

A small frozen masked language model replaces some words of a sentence. A discriminator reads the edited sentence
together with the vector of the original one, and predicts for each token whether it was replaced. The more the vector
says about the sentence, the better the prediction.
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
from diffaug.losses.replaced import choose_masked, replaced_labels, replaced_token_loss
from diffaug.methods.base import StepBatch
from diffaug.methods.twostage import TwoStage
from diffaug.models.batch import PaddedBatch
from diffaug.models.discriminator import Discriminator
from diffaug.models.encoder import Encoder
from diffaug.models.generator import Generator
from diffaug.models.heads import BatchNormProjector
from diffaug.models.io.fetch import model_source


class DiffCSE(TwoStage):
    """DiffCSE. Projection and discriminator are trained too, but are not saved with the model."""

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        source = recipe.replaced.generator
        if source is None:
            raise DiffaugError(
                "DiffCSE needs replaced.generator, the folder or hub name of a masked language model with the "
                "backbone's vocabulary"
            )
        if not 0 < recipe.replaced.mask_rate <= 1:
            raise DiffaugError(f"replaced.mask_rate must be above 0 and at most 1, got {recipe.replaced.mask_rate}")
        if recipe.model.template is not None or recipe.model.head != "training":
            raise DiffaugError(
                "DiffCSE uses no template, and a projection in training only: set model.template=null and "
                "model.head=training"
            )
        if encoder.config.head or (recipe.stage2 is not None and recipe.stage2.objective == "labels"):
            raise DiffaugError(
                "DiffCSE learns from sentences or triplets, with a backbone without dense layers: set stage2.objective "
                "to unlabelled or triplets, and model.backbone to such a model"
            )
        self.projection = BatchNormProjector(encoder.backbone.config.hidden_size)
        self.initialise(self.projection)
        self.discriminator = Discriminator(encoder.backbone)
        self.generator = Generator.load(model_source(source), collator.tokenizer)

    def roles(self) -> dict[str, nn.Module]:
        return {**super().roles(), "discriminator": self.discriminator}

    def contrast(self, states: Tensor, batch: StepBatch) -> dict[str, Tensor]:
        rows = batch.contrastive
        assert rows is not None
        # Batch norm needs the vectors of all processes, so they are gathered before the projection.
        gathered = torch.cat([gather_rows(column) for column in rows.split(states)])
        projected = self.projected(gathered)
        loss = torch.stack(
            [weight * self.contrastive_loss(*rows.split(vectors)) for weight, vectors in projected]
        ).sum()
        whole = self.project(gathered) if self.encoder.config.matryoshka else projected[0][1]
        own = torch.cat([own_rows(column) for column in rows.split(whole)])  # (sequences, hidden size), as the states
        return {"contrastive": loss, "replaced": self._detect(batch.tokens.slice(rows.rows.start, rows.rows.stop), own)}

    def _detect(self, tokens: PaddedBatch, vectors: Tensor) -> Tensor:
        """The loss of detecting replaced tokens, over the tokens of all processes.

        Every sequence has its own masks: those of a sentence's two copies differ.
        """
        assert self.recipe.stage2 is not None
        candidates = self.generator.candidates(tokens.input_ids, tokens.attention_mask)
        masked = choose_masked(candidates, self.recipe.replaced.mask_rate)
        chunk = self.recipe.stage2.gradient_cache
        discriminate: Callable[..., Tensor] = self.discriminator
        if chunk is not None:
            # Where memory is short, the discriminator runs in chunks too, each of them twice.
            discriminate = partial(checkpoint, self.discriminator, use_reentrant=False)
        own = vectors.new_zeros(2, dtype=torch.float32)  # sum of the losses, number of tokens
        for start in range(0, len(tokens), chunk or len(tokens)):
            stop = start + (chunk or len(tokens))
            part = tokens.slice(start, stop)
            filled = self.generator.fill(part.input_ids, part.attention_mask, masked[start:stop])
            logits = discriminate(filled, part.attention_mask, vectors[start:stop])
            real = torch.ones_like(filled) if part.attention_mask is None else part.attention_mask
            own = own + torch.stack(replaced_token_loss(logits, replaced_labels(part.input_ids, filled), real))
        total, count = gather_rows(own.unsqueeze(0)).sum(0)
        return total / count

    def total(self, found: Mapping[str, Tensor]) -> Tensor:
        loss = super().total(found)
        return loss + self.recipe.replaced.weight * found["replaced"] if "replaced" in found else loss
