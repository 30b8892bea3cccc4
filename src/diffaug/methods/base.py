"""The interface between a method and the training loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from diffaug.config import Option, Recipe
from diffaug.data.collate import Collator
from diffaug.data.corpus import Corpus
from diffaug.data.sampling import Batch, Examples, Mixture, Target
from diffaug.errors import DiffaugError
from diffaug.models.batch import PaddedBatch, TensorFields, TokenBatch
from diffaug.models.encoder import Encoder

Encode = Callable[[PaddedBatch], Tensor]
"""A token batch to its pooled vectors (sequences, hidden size): the encoder, or an executor that runs it."""


@dataclass(frozen=True)
class Stage:
    """One stage of a method, as the loop runs it.

    Attributes:
        number: 1 or 2; metrics and checkpoints are labelled with it.
        steps: the number of optimiser steps.
        streams: the data of each step by name, with the size of a whole batch.
        learning_rates: the learning rate of each role that is trained; all other parameters are frozen.
        schedule_steps: the number of steps over which the learning rate decays to zero.
        schedule: `linear` decay after the warm-up, or `constant`.
        warmup: the fraction of the schedule with a linear warm-up.
        weight_decay: of AdamW.
        gradient_cache: the number of sequences that go through the encoder at a time; None for all.
        dropout: whether the backbone's dropout is on.
        clipped_with: roles that get gradients but are not trained: their gradients only count towards the norm that
            is clipped.
        selects: its checkpoints are candidates for the best one. Those of the last stage always are.
        measures_views: record delta and kappa from before the first step on, and how the stage ended.
        automatic: the stage ends early when delta and kappa have levelled off.
        from_epochs: `steps` was computed from a number of epochs.
    """

    number: int
    steps: int
    streams: Mapping[str, tuple[Examples | Mixture, int]]
    learning_rates: Mapping[str, float]
    schedule_steps: int
    schedule: Literal["linear", "constant"] = "linear"
    warmup: float = 0.0
    weight_decay: float = 0.0
    gradient_cache: int | None = None
    dropout: bool = True
    clipped_with: tuple[str, ...] = ()
    selects: bool = False
    measures_views: bool = False
    automatic: bool = False
    from_epochs: bool = False


@dataclass(frozen=True)
class ContrastiveRows(TensorFields):
    """The sequences of the contrastive loss: all anchors, then all positives, then all hard negatives, if any.

    Attributes:
        rows: their rows in the token batch.
        columns: 2, or 3 with hard negatives.
        labels: (examples,), for a loss on labels; the second column is then the other sentence of a pair, or the same
            sentence again if the labels are classes.
        target: what the labels are.
    """

    rows: slice
    columns: int
    labels: Tensor | None = None
    target: Target = "relation"

    def split(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """Anchors, positives and, if any, hard negatives, each (examples, width)."""
        return vectors.chunk(self.columns)


@dataclass(frozen=True)
class LabelledPairs(TensorFields):
    """The sequences of the classification loss.

    Attributes:
        premises: their rows in the token batch.
        hypotheses: likewise, a multiple of the premises: hypothesis i belongs to premise ``i % len(premises)``. So a
            triplet is two pairs, whose common premise is encoded once.
        labels: (hypotheses,), the class of each pair, or its score from 0 to 1.
    """

    premises: slice
    hypotheses: slice
    labels: Tensor


@dataclass(frozen=True)
class BareTemplates(TensorFields):
    """Templates without a sentence, whose vectors are subtracted from those of the contrastive sequences.

    Attributes:
        rows: their rows in the token batch.
        index: (contrastive sequences,), the bare template of each, counted from the first.
    """

    rows: slice
    index: Tensor


@dataclass(frozen=True)
class StepBatch(TensorFields):
    """The data of one step: the tokens of one forward, and which of its rows each loss reads.

    A method with other losses may add fields in a subclass; tensors and `TensorFields` are moved with the rest.

    Attributes:
        tokens: all sequences.
        contrastive: the sequences of the contrastive loss, if there are any.
        pairs: the sequences of the classification loss, if there are any.
        templates: the bare templates, if the contrastive sequences are denoised.
    """

    tokens: PaddedBatch
    contrastive: ContrastiveRows | None = None
    pairs: LabelledPairs | None = None
    templates: BareTemplates | None = None


class Method(nn.Module, ABC):
    """An encoder, what is trained with it, and the losses of its stages.

    A method collates the examples of a step into one token batch (`collate`), and computes the losses from its vectors
    (`losses`). It does not know how the vectors are computed, on how many processes, or in which precision: the
    argument ``encode`` of `losses` hides that.

    Attributes:
        default_options: settings of the method's own with their defaults. Recipes set them under `options`.
        options: their values in this run.
        notes: messages for the user about how the method was built.
    """

    default_options: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__()
        if unknown := [name for name in recipe.options if name not in self.default_options]:
            known = ", ".join(self.default_options) or "none"
            raise DiffaugError(f"the method {recipe.method!r} has no option {unknown[0]!r}; its options: {known}")
        self.recipe = recipe
        self.options = {**self.default_options, **recipe.options}
        self.encoder = encoder
        self.collator = collator
        self.notes: list[str] = []
        self._backbone_dropout = True

    @classmethod
    @abstractmethod
    def build(
        cls,
        recipe: Recipe,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        finished: Encoder | None = None,
    ) -> Method:
        """Build the method around a freshly loaded model, see `diffaug.models.io.start.Start`."""

    @abstractmethod
    def roles(self) -> dict[str, nn.Module]:
        """The modules that can be trained, by role. Learning rates and freezing refer to these names."""

    @abstractmethod
    def stages(self, corpus: Corpus) -> list[Stage]:
        """The stages for this data.

        Raises:
            DiffaugError: data that the recipe needs is missing.
        """

    def prepare(self, folder: Path, main: bool) -> None:
        """Compute what the steps need of the data. Called in every process after `stages`, before the first step.

        Args:
            folder: for files, which are kept until the run has finished.
            main: whether this process is the one that writes.
        """

    def begin(self, stage: Stage) -> None:
        """Prepare for the steps of a stage: training mode, with the backbone's dropout on or off."""
        self._backbone_dropout = stage.dropout
        self.train()

    def train(self, mode: bool = True) -> Method:
        super().train(mode)
        if mode and not self._backbone_dropout:
            self.encoder.backbone.eval()
        return self

    def represent(self, batch: TokenBatch) -> Tensor:
        """(sequences, hidden size): the pooled vectors that `losses` reads."""
        return self.encoder.represent(batch)

    def refresh(self) -> None:
        """Update what the encoder stores for inference and computes from its own weights.

        Called in evaluation mode, before the encoder is scored and saved.
        """

    @abstractmethod
    def collate(self, stage: Stage, batches: Mapping[str, Batch]) -> StepBatch:
        """Build the batch of a step from the examples of its streams. Runs on the CPU, possibly in another thread."""

    @abstractmethod
    def losses(self, stage: Stage, batch: StepBatch, encode: Encode) -> dict[str, Tensor]:
        """The losses of a step: `loss` is minimised; the others are logged.

        Args:
            stage: the current stage.
            batch: what `collate` returned, on the device.
            encode: computes the vectors of ``batch.tokens``. Call it once.
        """

    def negatives_per_anchor(self, stage: Stage) -> int | None:
        """The number of negatives of an anchor over all processes; None without a contrastive loss."""
        return None
