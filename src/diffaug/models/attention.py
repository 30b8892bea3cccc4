"""The prefix hook: learned keys and values in front of a backbone's own, in every attention layer.

transformers lets anybody register an attention function by name and hands unknown keywords of a model's forward down
to it. So a prefix needs no patched model: the backbone runs with our function, which lets the object that came down as
the keyword ``prefix`` extend the keys and values, and calls the ordinary SDPA attention.

Models that compute attention by themselves (MPNet, DeBERTa) never call the function and would ignore a prefix
without a word. `attention_shape` finds them out before anything runs, and `PrefixStates.finish` checks every forward.
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
from diffaug.models.packed import PackedStates

NAME = "diffaug_prefix"


class PrefixStates:
    """The prefix of one forward: a block of keys and values a layer, handed out in the order the layers ask.

    The order, not a layer number, selects the block: DistilBERT's layers carry no number, and ALBERT calls one
    module for all of its layers.

    Args:
        blocks: (layers, 2, views, heads, length, head_dim): keys and values.
        views: (rows,), the view each row of the batch belongs to, or None if ``blocks`` has one view for all rows.
        dropout: on the keys and values; each row draws its own mask.
    """

    def __init__(self, blocks: Tensor, views: Tensor | None = None, dropout: float = 0.0) -> None:
        self.blocks = blocks
        self.views = views
        self.dropout = dropout
        self.calls = 0

    def extend(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Put this layer's block before key and value, each (rows, heads, length, head_dim), and widen the mask."""
        if self.calls >= len(self.blocks):
            raise DiffaugError(
                f"the backbone asked for a prefix more than {len(self.blocks)} times in one forward: "
                "its layers do not match the prefix"
            )
        block = self.blocks[self.calls]
        self.calls += 1
        # shape[0], not len(): an export to ONNX keeps the number of rows open only that way.
        block = block.expand(-1, key.shape[0], -1, -1, -1) if self.views is None else block[:, self.views]
        if self.dropout:
            block = F.dropout(block, self.dropout)
        prefix_key, prefix_value = block.to(key.dtype)
        if mask is not None:
            # Every token sees its whole prefix, whatever padding or a sliding window hides from it.
            mask = F.pad(mask, (prefix_key.shape[2], 0), value=1 if mask.dtype == torch.bool else 0)
        return torch.cat([prefix_key, key], dim=2), torch.cat([prefix_value, value], dim=2), mask

    def finish(self) -> None:
        """Raise unless every layer took its block: a prefix must never be dropped silently."""
        if self.calls != len(self.blocks):
            raise DiffaugError(
                f"only {self.calls} of {len(self.blocks)} attention layers took the prefix: "
                "the backbone did not run with the attention function it was given"
            )


def _prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    prefix: PrefixStates | None = None,
    packed: PackedStates | None = None,
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
    """What a prefix must fit: how often a forward asks for a block, and the shape of the keys there."""

    layers: int
    heads: int
    head_dim: int


class _Probe(PrefixStates):
    """Takes the place of a prefix, changes nothing and notes the shapes of the keys it was shown."""

    def __init__(self) -> None:
        super().__init__(torch.empty(0))
        self.seen: list[tuple[int, int]] = []

    def extend(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        self.seen.append((key.shape[1], key.shape[3]))
        return key, value, mask


def attention_shape(backbone: PreTrainedModel) -> AttentionShape:
    """Switch ``backbone`` to the prefix hook and see, in one tiny forward, that every layer goes through it.

    Raises:
        DiffaugError: the backbone computes attention by itself, so that a prefix would be ignored.
    """
    kind, layers, probe = backbone.config.model_type, backbone.config.num_hidden_layers, _Probe()
    try:
        backbone.set_attn_implementation(NAME)
        with torch.no_grad(), evaluating(backbone):
            tokens = torch.zeros(1, 2, dtype=torch.long, device=backbone.device)
            backbone(input_ids=tokens, attention_mask=torch.ones_like(tokens), prefix=probe)
    except (TypeError, ValueError) as error:
        # A model without the interface refuses the name or the keyword, each in its own way.
        raise DiffaugError(_refusal(kind, f"it answers: {error}")) from error
    if len(probe.seen) < layers:
        raise DiffaugError(_refusal(kind, f"{len(probe.seen)} of its {layers} layers would see it"))
    if len(set(probe.seen)) > 1:
        raise DiffaugError(_refusal(kind, f"the keys differ in shape from layer to layer: {sorted(set(probe.seen))}"))
    heads, head_dim = probe.seen[0]
    return AttentionShape(len(probe.seen), heads, head_dim)


def _refusal(kind: str, why: str) -> str:
    return (
        f"a prefix cannot be attached to a '{kind}' backbone, which does not route its attention through "
        f"transformers' attention interface ({why}); use BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ELECTRA, ALBERT, "
        "ModernBERT or another model that does"
    )
