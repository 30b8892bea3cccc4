"""Attention over a packed batch: every sequence attends to its own tokens and to the prefix before it."""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug import kernels
from diffaug.errors import DiffaugError
from diffaug.models.batch import PackedBatch
from diffaug.models.padded_groups import PaddedGroup, padded_groups


class PackedAttention:
    """Attention of all layers in one forward of a packed batch; the counterpart of `PrefixAttention`.

    The backbone passes it to the registered attention function as the keyword ``packed``.

    Args:
        batch: the packed batch.
        layers: how often the backbone will compute attention.
        blocks: (layers, 2, views, heads, length, head_dim), keys and values of the prefix; None without a prefix.
        prefix_dropout: dropout on the prefix's keys and values; each sequence draws its own mask.
    """

    def __init__(
        self, batch: PackedBatch, layers: int, blocks: Tensor | None = None, prefix_dropout: float = 0.0
    ) -> None:
        assert batch.prefix_length == (0 if blocks is None else blocks.shape[4]), "packed for another prefix"
        self._batch = batch
        self._layers = layers
        # Unbound at once: indexed layer by layer, the gradient of each block would be as large as all blocks.
        self._blocks = None if blocks is None else blocks.unbind(0)
        self._prefix_dropout = prefix_dropout
        self.calls = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
        """(1, tokens, heads, head_dim) from query, key and value, each (1, heads, tokens, head_dim)."""
        layer, batch = self.calls, self._batch
        self.calls += 1
        if layer >= self._layers:
            raise DiffaugError(f"the backbone computed attention more than {self._layers} times in one forward")
        scale = query.shape[3] ** -0.5 if scale is None else scale
        # each (tokens, heads, head_dim)
        queries, keys, values = (states.squeeze(0).transpose(0, 1) for states in (query, key, value))
        prefix = None if self._blocks is None else self._blocks[layer].to(query.dtype)
        if not kernels.supports_attention(query):
            return self._attend_padded(queries, keys, values, prefix, scale, dropout).unsqueeze(0)
        from diffaug.kernels.attention import attend

        seeds = self._seeds[layer] if dropout or self._prefix_dropout else None
        return attend(queries, keys, values, prefix, batch, scale, dropout, self._prefix_dropout, seeds).unsqueeze(0)

    @property
    def complete(self) -> bool:
        """Whether every layer has computed its attention."""
        return self.calls == self._layers

    def finish(self) -> None:
        """Raise unless every layer used this attention: other attention would mix the sequences of the batch."""
        if not self.complete:
            raise DiffaugError(
                f"only {self.calls} of {self._layers} attention layers kept the sequences of a packed batch apart"
            )

    def _attend_padded(
        self, query: Tensor, key: Tensor, value: Tensor, prefix: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        """The reference: pad, call SDPA, remove the padding. For any length and device."""
        sizes, counts = zip(
            *((group.tokens, group.rows.stop - group.rows.start) for group in self._groups), strict=True
        )
        before = None
        if prefix is not None:
            by_sequence = self._prefix_by_sequence(prefix)
            if self._prefix_dropout:
                by_sequence = F.dropout(by_sequence, self._prefix_dropout)
            before = by_sequence.split(counts, 1)
        results = []
        split = (states.split(sizes) for states in (query, key, value))
        for number, (group, mask, *states) in enumerate(zip(self._groups, self._masks, *split, strict=True)):
            # each (sequences, heads, width, head_dim)
            queries, keys, values = (group.pad(part).transpose(1, 2) for part in states)
            if before is not None:
                keys = torch.cat([before[number][0], keys], dim=2)
                values = torch.cat([before[number][1], values], dim=2)
            result = F.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=mask,
                dropout_p=dropout,
                scale=scale,
            )
            results.append(group.unpad(result.transpose(1, 2)))
        return torch.cat(results)

    def _prefix_by_sequence(self, prefix: Tensor) -> Tensor:
        """(2, sequences, heads, length, head_dim)"""
        starts, views = self._batch.starts, self._batch.view_ids
        views = torch.zeros_like(starts) if views is None else views
        # A matrix product instead of an index: its gradient is summed in float32 and in a fixed order, while that of
        # an index is summed in 16 bits on a GPU, in an order that changes.
        one_hot = (views[:, None] == torch.arange(prefix.shape[1], device=views.device)).to(prefix.dtype)
        return (one_hot @ prefix.flatten(2)).unflatten(2, prefix.shape[2:])

    @cached_property
    def _seeds(self) -> Tensor:
        """(layers, 2): seeds of the dropout on attention weights and on the prefix.

        Drawn on the device, so that a CUDA graph draws new ones in every replay.
        """
        return torch.randint(2**31, (self._layers, 2), device=self._batch.starts.device)

    @cached_property
    def _groups(self) -> list[PaddedGroup]:
        return padded_groups(self._batch)

    @cached_property
    def _masks(self) -> list[Tensor | None]:
        return [group.mask(self._batch.prefix_length) for group in self._groups]
