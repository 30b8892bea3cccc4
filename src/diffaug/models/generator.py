"""A frozen masked language model that fills in masked tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from diffaug.errors import DiffaugError
from diffaug.models.backbone import load_masked_lm


class Generator:
    """Fills in masked tokens with the most probable ones.

    On purpose no module: what is frozen is no part of what is trained, counted or saved, and stays in evaluation mode
    when the rest goes into training.

    Args:
        model: a masked language model.
        tokenizer: its tokenizer, the same as that of the encoder whose tokens it fills in.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.mask_token_id is None:
            raise DiffaugError("a generator needs a tokenizer with a mask token, and this one has none")
        self._model = model.eval().requires_grad_(False)
        self._mask = tokenizer.mask_token_id
        self._words = len(tokenizer)
        self._special = torch.tensor(sorted(tokenizer.all_special_ids))

    @classmethod
    def load(cls, source: str, tokenizer: PreTrainedTokenizerBase) -> Generator:
        """From a folder or by its hub name, for an encoder with this tokenizer.

        Raises:
            DiffaugError: it cannot be loaded, or its vocabulary is another than the encoder's.
        """
        model, own = load_masked_lm(source)
        theirs, ours = own.get_vocab(), tokenizer.get_vocab()
        if theirs != ours:
            same = sum(ours.get(word) == number for word, number in theirs.items())
            raise DiffaugError(
                f"the generator {source} has another vocabulary than the encoder ({len(theirs):,} and {len(ours):,} "
                f"entries, {same:,} of them the same); choose a masked language model with the encoder's tokenizer"
            )
        return cls(model, tokenizer)

    def candidates(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """(rows, length): true for the tokens that may be masked, which are neither padding nor special."""
        self._move(input_ids.device)
        ordinary = ~torch.isin(input_ids, self._special)
        return ordinary if attention_mask is None else ordinary & attention_mask.bool()

    @torch.no_grad()
    def fill(self, input_ids: Tensor, attention_mask: Tensor | None, masked: Tensor) -> Tensor:
        """(rows, length): the ids with each masked one replaced by the most probable in its place.

        Special tokens are never filled in: they stand in no sentence.
        """
        self._move(input_ids.device)
        hidden = input_ids.masked_fill(masked, self._mask)
        scores = self._model(input_ids=hidden, attention_mask=attention_mask).logits  # (rows, length, vocabulary)
        scores = scores[masked][:, : self._words]  # some vocabularies are padded to a round number
        scores[:, self._special] = -torch.inf
        return input_ids.masked_scatter(masked, scores.argmax(-1))

    def _move(self, device: torch.device) -> None:
        if self._special.device != device:
            self._model.to(device)
            self._special = self._special.to(device)
