"""From sentences to token ids, and from token ids to padded batches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from diffaug.errors import DiffaugError
from diffaug.models.backbone import position_limit
from diffaug.models.batch import PaddedBatch
from diffaug.models.config import ModelConfig
from diffaug.models.encoder import Encoder
from diffaug.models.template import Template


class Collator:
    """Tokenises and pads sentences for one model, in training and in inference.

    Args:
        tokenizer: the model's.
        config: the model's template, prompt, final full stop, lower-casing and maximum length.
        positions: how many positions the backbone has for template and sentence together (None: no limit).
        max_length: a tighter limit on the tokens of a sentence than the model's, set by a recipe for training.
        second_template: the template of the second view, if training uses another one for it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        config: ModelConfig,
        positions: int | None = None,
        max_length: int | None = None,
        second_template: str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = Template.build(tokenizer, config.template)
        self.templates = [self.template]  # one per view, or one for all views
        if second_template is not None:
            self.templates.append(Template.build(tokenizer, second_template))
            if self.template.mask_at is None or self.templates[1].mask_at is None:
                raise DiffaugError("a second template needs a first one, and both need one [MASK]")
            if self.templates[1].spaced != self.template.spaced:
                raise DiffaugError(
                    "both templates must have a space before the {}, or neither: a sentence is tokenised once"
                )
        self._config = config
        self._before = config.prompt or (" " if self.template.spaced else "")
        limits = [limit for limit in (config.max_length, max_length) if limit is not None]
        if positions is not None:
            limits.append(positions - max(len(template) for template in self.templates))
        self.max_length = min(limits) if limits else None
        if self.max_length is not None and self.max_length < 1:
            raise DiffaugError(
                f"the backbone has {positions} positions, and the {len(self.template)} tokens of the template leave "
                "none for a sentence; shorten the template"
            )

    @property
    def cache_key(self) -> tuple[Hashable, ...]:
        """The tokenizer and everything else that decides the result of `ids`: equal keys give equal token ids."""
        config = self._config
        stop = config.sentence_ends if config.final_stop else None
        return self.tokenizer, self.tokenizer.truncation_side, self._before, config.lowercase, stop, self.max_length

    def ids(self, sentences: Sequence[str]) -> tuple[list[list[int]], int]:
        """The token ids of each sentence, truncated and without the template; and how many were truncated."""
        if not sentences:
            return [], 0
        texts = [self._text(sentence) for sentence in sentences]
        # One token more than fits shows that a sentence was truncated, without storing very long texts.
        cut = {} if self.max_length is None else {"truncation": True, "max_length": self.max_length + 1}
        encoded = self.tokenizer(
            texts,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
            **cut,
        )["input_ids"]
        if self.max_length is None:
            return encoded, 0
        too_long = [row for row in encoded if len(row) > self.max_length]
        for row in too_long:
            if self.tokenizer.truncation_side == "left":
                del row[: -self.max_length]
            else:
                del row[self.max_length :]
        return encoded, len(too_long)

    def rows(self, ids: Sequence[Sequence[int]], views: Sequence[int] | None = None) -> PaddedBatch:
        """Put the template of its view around each sentence, and pad to the longest."""
        chosen = self._templates(len(ids), views)
        whole = [[*template.before, *row, *template.after] for template, row in zip(chosen, ids, strict=True)]
        masks = [template.mask_position(len(row)) for template, row in zip(chosen, whole, strict=True)]
        return PaddedBatch(
            *self._padded(whole),
            pool_positions=None if self.template.mask_at is None else torch.tensor(masks),
            view_ids=None if views is None else torch.tensor(views),
        )

    def bare_templates(self, lengths: Sequence[int], views: Sequence[int] | None = None) -> PaddedBatch:
        """The template without a sentence; its tail keeps the position ids it has after a sentence of each length."""
        assert self.template.mask_at is not None, "denoising needs a template"
        chosen = self._templates(len(lengths), views)
        input_ids, mask = self._padded([[*template.before, *template.after] for template in chosen])
        column = torch.arange(input_ids.shape[1])
        after = column >= torch.tensor([len(template.before) for template in chosen]).unsqueeze(1)
        positions = column + after * torch.tensor(lengths).unsqueeze(1)
        return PaddedBatch(
            input_ids,
            mask,
            pool_positions=torch.tensor([template.mask_position(len(template)) for template in chosen]),
            # Padding gets position 0: counted on, it could exceed the backbone's last position.
            position_ids=positions if mask is None else positions * mask,
            view_ids=None if views is None else torch.tensor(views),
        )

    def _templates(self, count: int, views: Sequence[int] | None) -> list[Template]:
        if views is None or len(self.templates) == 1:
            return [self.template] * count
        return [self.templates[view] for view in views]

    def _padded(self, whole: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor | None]:
        # Vectorised: with a small model on a GPU, a step takes hardly longer than padding its batch.
        lengths = np.fromiter(map(len, whole), np.int64, len(whole))
        tokens = np.fromiter(chain.from_iterable(whole), np.int64, lengths.sum())
        real = np.arange(lengths.max()) < lengths[:, None]
        if real.all():
            return torch.from_numpy(tokens.reshape(real.shape)), None
        input_ids = np.full(real.shape, self.tokenizer.pad_token_id or 0, dtype=np.int64)
        input_ids[real] = tokens
        return torch.from_numpy(input_ids), torch.from_numpy(real.astype(np.int64))

    def _text(self, sentence: str) -> str:
        text = sentence.lower() if self._config.lowercase else sentence
        if self._config.final_stop and (stripped := text.rstrip()) and stripped[-1] not in self._config.sentence_ends:
            text = stripped + "."
        if not text.isascii():
            # A Python string may contain half a surrogate pair, UTF-8 may not: replace it by U+FFFD.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return self._before + text


def collator_for(
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None = None,
    second_template: str | None = None,
    final_stop: bool | None = None,
) -> Collator:
    """The collator of an encoder. A prefix takes some of the backbone's positions.

    Args:
        encoder: the model.
        tokenizer: its tokenizer.
        max_length: see `Collator`.
        second_template: see `Collator`.
        final_stop: overrides the model's setting in training.
    """
    config = encoder.config if final_stop is None else replace(encoder.config, final_stop=final_stop)
    positions = position_limit(encoder.backbone)
    if positions is not None and encoder.config.prefix is not None:
        positions -= encoder.config.prefix.total
    return Collator(tokenizer, config, positions, max_length, second_template)
