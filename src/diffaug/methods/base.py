"""What the training loop asks of a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from diffaug.config import Recipe
from diffaug.data.collate import Collator
from diffaug.data.corpus import Corpus
from diffaug.data.sampling import Batch, Examples
from diffaug.models.encoder import Encoder
from diffaug.models.rows import Rows

Represent = Callable[[Rows], Tensor]
"""Rows to pooled vectors (rows, hidden size): the encoder, or the gradient cache in its place."""


@dataclass(frozen=True)
class Stage:
    """One stage of a method, as the loop runs it.

    Attributes:
        number: 1 or 2.
        steps: how many.
        automatic: the loop may end the stage sooner, when the prefixes fit the model.
        streams: the data each step reads, by name, and the size of a whole batch of each.
        learning_rates: the rate of each role that learns; all other parameters are frozen.
        schedule_steps: over how many steps the rate decays to zero.
        schedule: `linear` decay behind the warm-up, or `constant`.
        gradient_cache: rows through the encoder at a time, or None for all.
        dropout: whether the backbone's dropout is on.
        clipped_with: roles that get gradients and do not learn: their gradients only count towards the norm that is
            clipped.
    """

    number: int
    steps: int
    streams: Mapping[str, tuple[Examples, int]]
    learning_rates: Mapping[str, float]
    schedule_steps: int
    schedule: Literal["linear", "constant"] = "linear"
    warmup: float = 0.0
    weight_decay: float = 0.0
    automatic: bool = False
    gradient_cache: int | None = None
    dropout: bool = True
    clipped_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """A collated step: token rows for one pass through the encoder, and what the loss needs besides."""

    rows: Rows
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to(self, device: Any) -> Inputs:
        """The same on ``device``."""
        moved = {k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in self.extra.items()}
        return Inputs(self.rows.to(device), moved)

    def pin(self) -> Inputs:
        """The same in memory from which a GPU can fetch it by itself."""
        pinned = {k: v.pin_memory() if isinstance(v, Tensor) else v for k, v in self.extra.items()}
        return Inputs(self.rows.pin(), pinned)


class Method(nn.Module, ABC):
    """The encoder, whatever is trained with it, and the losses of the stages.

    A method collates a step's batches into one set of token rows (`collate`), and computes the losses from the
    vectors of those rows (`losses`). It does not know how the vectors were made, on how many processes it runs, or
    in which precision: `represent` and `gather` hide that.

    Attributes:
        notes: what a run should tell its user about how the method was built.
    """

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__()
        self.recipe = recipe
        self.encoder = encoder
        self.collator = collator
        self.notes: list[str] = []
        self._backbone_dropout = True

    @classmethod
    @abstractmethod
    def build(cls, recipe: Recipe, backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Method:
        """The method around a freshly loaded backbone."""

    @abstractmethod
    def roles(self) -> dict[str, nn.Module]:
        """All that can learn, by role: learning rates and freezing go by these names."""

    @abstractmethod
    def stages(self, corpus: Corpus) -> list[Stage]:
        """The stages for this data.

        Raises:
            DiffaugError: data that the recipe needs is missing.
        """

    def begin(self, stage: Stage) -> None:
        """Ready for the steps of a stage: in training mode, the backbone's dropout as the stage wants it."""
        self._backbone_dropout = stage.dropout
        self.train()

    def train(self, mode: bool = True) -> Method:
        super().train(mode)
        if mode and not self._backbone_dropout:
            self.encoder.backbone.eval()
        return self

    def represent(self, rows: Rows) -> Tensor:
        """(rows, hidden size): the vectors `losses` is given, unless something stands in for the encoder."""
        return self.encoder.represent(rows)

    def refresh(self) -> None:
        """Update what the encoder stores for inference and computes from its own weights.

        Called in evaluation mode, before the encoder is scored and saved.
        """

    @abstractmethod
    def collate(self, stage: Stage, batches: Mapping[str, Batch]) -> Inputs:
        """One set of token rows for a step. Runs on the CPU."""

    @abstractmethod
    def losses(self, stage: Stage, inputs: Inputs, represent: Represent) -> dict[str, Tensor]:
        """The losses of a step: `loss` is minimised; the others are logged."""

    def negatives_per_anchor(self, stage: Stage) -> int | None:
        """How many negatives an anchor of the contrastive loss sees, over all processes; None without such a loss."""
        return None
