"""A second encoder that is given a sentence's vector and says which tokens of an edited sentence were replaced."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffaug.models.embeddings import EmbeddingOutput


class Discriminator(nn.Module):
    """Tokens and a vector in, two logits a token out: original or replaced.

    Args:
        backbone: a copy of it, which then learns for itself, reads the tokens.
    """

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)
        self.classifier = nn.Linear(backbone.config.hidden_size, 2)
        self._embeddings = EmbeddingOutput(self.backbone)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, vectors: Tensor) -> Tensor:
        """(rows, length, 2), for original and for replaced.

        Args:
            input_ids: (rows, length)
            attention_mask: (rows, length), or None without padding.
            vectors: (rows, hidden size), what the first transformer layer reads in the place of each first token.
        """

        def with_vectors(embeddings: Tensor) -> Tensor:
            return torch.cat([vectors.unsqueeze(1).to(embeddings.dtype), embeddings[:, 1:]], dim=1)

        with self._embeddings.changed(with_vectors):
            states = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        logits: Tensor = self.classifier(states)
        return logits
