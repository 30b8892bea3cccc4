"""Prefix attention: learned keys and values before a backbone's own, in every attention layer.

transformers lets us register an attention function by name, and passes unknown keywords of a model's forward on to it.
So the backbone is not patched: it runs with our function, which lets the object in the keyword ``prefix`` extend keys
and values, and then calls the ordinary SDPA attention. The keyword ``packed`` does the same for packed batches.

Models that compute attention themselves (MPNet, DeBERTa) never call the function and would silently ignore a prefix.
`attention_shape` detects them before training, and `PrefixAttention.finish` checks every forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from diffaug.errors import DiffaugError
from diffaug.models.eval_mode import evaluating
from diffaug.models.packed_attention import PackedAttention

NAME = "diffaug_prefix"


class PrefixAttention:
    """The prefix of one forward: each attention layer takes the next block of keys and values.

    Blocks are selected by the order of the calls, not by a layer number: DistilBERT's layers have no number, and
    ALBERT calls one module for all of its layers.

    Args:
        blocks: (layers, 2, views, heads, length, head_dim): keys and values.
        view_ids: (sequences,), the view of each sequence; None if ``blocks`` has one view, which all sequences share.
        dropout: on the keys and values; each sequence draws its own mask.
    """

    def __init__(self, blocks: Tensor, view_ids: Tensor | None = None, dropout: float = 0.0) -> None:
        self.blocks = blocks
        self.view_ids = view_ids
        self.dropout = dropout
        self.calls = 0

    def extend(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Prepend this layer's block to key and value (sequences, heads, length, head_dim), and widen the mask."""
        if self.calls >= len(self.blocks):
            raise DiffaugError(
                f"the backbone computed attention more than {len(self.blocks)} times in one forward: "
                "its layers do not match the prefix"
            )
        block = self.blocks[self.calls]
        self.calls += 1
        # shape[0] instead of len(): an export to ONNX keeps the batch size dynamic only that way.
        block = block.expand(-1, key.shape[0], -1, -1, -1) if self.view_ids is None else block[:, self.view_ids]
        if self.dropout:
            block = F.dropout(block, self.dropout)
        prefix_key, prefix_value = block.to(key.dtype)
        if mask is not None:
            # Every token attends to the whole prefix, regardless of padding and sliding windows.
            mask = F.pad(mask, (prefix_key.shape[2], 0), value=1 if mask.dtype == torch.bool else 0)
        return torch.cat([prefix_key, key], dim=2), torch.cat([prefix_value, value], dim=2), mask

    def finish(self) -> None:
        """Raise unless every layer has used its block: a prefix must never be ignored silently."""
        if self.calls != len(self.blocks):
            raise DiffaugError(
                f"only {self.calls} of {len(self.blocks)} attention layers used the prefix: "
                "the backbone did not run with the attention function it was given"
            )


def _prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    prefix: PrefixAttention | None = None,
    packed: PackedAttention | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    if packed is not None:
        return packed.attend(query, key, value, scaling, dropout), None
    if prefix is not None:
        key, value, attention_mask = prefix.extend(key, value, attention_mask)
    result: tuple[Tensor, Tensor | None] = AttentionInterface()["sdpa"](
        module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
    )
    return result


AttentionInterface.register(NAME, _prefix_attention)
AttentionMaskInterface.register(NAME, AttentionMaskInterface()["sdpa"])


@dataclass(frozen=True)
class AttentionShape:
    """What a prefix must fit: the number of attention calls of a forward, and the shape of their keys."""

    layers: int
    heads: int
    head_dim: int


class _Probe(PrefixAttention):
    """Stands in for a prefix: changes nothing and records the shapes of the keys."""

    def __init__(self) -> None:
        super().__init__(torch.empty(0))
        self.seen: list[tuple[int, int]] = []

    def extend(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        self.seen.append((key.shape[1], key.shape[3]))
        return key, value, mask


def attention_shape(backbone: PreTrainedModel) -> AttentionShape:
    """Switch ``backbone`` to our attention function, and check in a tiny forward that every layer calls it.

    Raises:
        DiffaugError: the backbone computes attention itself, so that a prefix would be ignored.
    """
    kind, layers, probe = backbone.config.model_type, backbone.config.num_hidden_layers, _Probe()
    try:
        backbone.set_attn_implementation(NAME)
        with torch.no_grad(), evaluating(backbone):
            tokens = torch.zeros(1, 2, dtype=torch.long, device=backbone.device)
            backbone(input_ids=tokens, attention_mask=torch.ones_like(tokens), prefix=probe)
    except (TypeError, ValueError) as error:
        # A model without the interface rejects the name or the keyword, each in its own way.
        raise DiffaugError(_refusal(kind, f"it raises: {error}")) from error
    if len(probe.seen) < layers:
        raise DiffaugError(_refusal(kind, f"{len(probe.seen)} of its {layers} layers would use it"))
    if len(set(probe.seen)) > 1:
        raise DiffaugError(_refusal(kind, f"the shape of the keys differs between layers: {sorted(set(probe.seen))}"))
    heads, head_dim = probe.seen[0]
    return AttentionShape(len(probe.seen), heads, head_dim)


def _refusal(kind: str, why: str) -> str:
    return (
        f"a prefix cannot be attached to a '{kind}' backbone, which does not route its attention through "
        f"transformers' attention interface ({why}); use BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ELECTRA, ALBERT, "
        "ModernBERT or another model that does"
    )
