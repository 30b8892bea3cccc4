"""Rows: a padded batch of token rows, and all the encoder must know of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from diffaug.models.packed import Packed


@dataclass
class Rows:
    """A batch. Padding is on the right.

    Attributes:
        input_ids: (rows, length)
        attention_mask: (rows, length), 1 for tokens and 0 for padding; None if there is no padding.
        pool_at: (rows,), where the template's mask token stands; None without a template.
        gap: (rows,), how far the positions behind the template's slot are moved: 0 for a sentence, and for a bare
            template (which stands for a sentence in denoising) the length of the sentence it stands for.
        slot: (rows,), where the template's slot begins, in tokens; there exactly if ``gap`` is.
        views: (rows,), the view a row belongs to; None: all views at once, as at inference.
        packed: the same rows end to end, where somebody has laid them out.
    """

    input_ids: Tensor
    attention_mask: Tensor | None = None
    pool_at: Tensor | None = None
    gap: Tensor | None = None
    slot: Tensor | None = None
    views: Tensor | None = None
    packed: Packed | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def to(self, device: torch.device | str) -> Rows:
        """The same rows on ``device``; `packed` stays where it is."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> Rows:
        """The same in memory from which a GPU can fetch it by itself."""
        pinned = self._each(lambda tensor: tensor.pin_memory())
        return replace(pinned, packed=None if self.packed is None else self.packed.pin())

    def part(self, start: int, stop: int) -> Rows:
        """Some of the rows, as wide as all of them."""
        return replace(self._each(lambda tensor: tensor[start:stop]), packed=None)

    def take(self, indices: Tensor) -> Rows:
        """The rows at these places, only as wide as they need to be."""
        chosen = replace(self._each(lambda tensor: tensor[indices]), packed=None)
        if chosen.attention_mask is None:
            return chosen
        width = int(chosen.attention_mask.sum(1).max())
        mask = chosen.attention_mask[:, :width]
        return replace(chosen, input_ids=chosen.input_ids[:, :width], attention_mask=None if bool(mask.all()) else mask)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Rows:
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        values = {name: change(value) if isinstance(value, Tensor) else value for name, value in values.items()}
        return Rows(**values)


def join_rows(first: Rows, second: Rows) -> Rows:
    """One batch of both, for a single pass through the encoder. Both have views and a template, or neither does."""
    width = max(first.input_ids.shape[1], second.input_ids.shape[1])
    parts = (first, second)

    def joined(values: list[Tensor | None], default: Callable[[Rows], Tensor]) -> Tensor | None:
        if all(value is None for value in values):
            return None
        return torch.cat([default(r) if v is None else v for v, r in zip(values, parts, strict=True)])

    masks: list[Tensor | None] = []
    for rows in parts:
        short = width - rows.input_ids.shape[1]
        mask = rows.attention_mask
        if short and mask is None:
            mask = torch.ones_like(rows.input_ids)
        masks.append(mask if mask is None else F.pad(mask, (0, short)))
    return Rows(
        input_ids=torch.cat([F.pad(r.input_ids, (0, width - r.input_ids.shape[1])) for r in parts]),
        attention_mask=joined(masks, lambda rows: torch.ones_like(rows.input_ids)),
        pool_at=joined([r.pool_at for r in parts], lambda rows: torch.zeros(len(rows), dtype=torch.long)),
        gap=joined([r.gap for r in parts], lambda rows: torch.zeros(len(rows), dtype=torch.long)),
        slot=joined([r.slot for r in parts], lambda rows: torch.zeros(len(rows), dtype=torch.long)),
        views=joined([r.views for r in parts], lambda rows: torch.zeros(len(rows), dtype=torch.long)),
    )
