"""Rows: a padded batch of token rows, and all the encoder must know of each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass
class Rows:
    """A batch. Padding is on the right.

    Attributes:
        input_ids: (rows, length)
        attention_mask: (rows, length), 1 for tokens and 0 for padding; None if there is no padding.
        pool_at: (rows,), where the template's mask token stands; None without a template.
        gap: (rows,), how far the positions behind the template's slot are moved: 0 for a sentence, and for a bare
            template (which stands for a sentence in denoising) the length of the sentence it stands for.
        slot: where the template's slot begins, in tokens; read with ``gap`` only.
        views: (rows,), the view a row belongs to; None: all views at once, as at inference.
    """

    input_ids: Tensor
    attention_mask: Tensor | None = None
    pool_at: Tensor | None = None
    gap: Tensor | None = None
    slot: int = 0
    views: Tensor | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def to(self, device: torch.device | str) -> Rows:
        """The same rows on ``device``."""
        moved: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in moved.items()}
        return Rows(**moved)
