"""The linear layers of a backbone that adapters and LoRA act on.

They are found by name, with one table entry per model family. The names are those of the weights in every checkpoint
of the family, so they do not change between transformers releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from diffaug.errors import DiffaugError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Role = Literal["attention", "feed_forward", "query", "value"]
"""The role of a linear layer: output of attention, output of the feed-forward block, queries or values."""


@dataclass(frozen=True)
class Third:
    """The queries or values of a layer that computes queries, keys and values at once.

    Attributes:
        index: 0 for queries, 2 for values.
        groups: the outputs are this many groups of query, key and value: 1, or the number of heads if they are
            interleaved by head.
    """

    index: int
    groups: int


@dataclass(frozen=True)
class Target:
    """A linear layer of a backbone, or a third of one.

    Attributes:
        name: its name in the backbone.
        linear: the layer.
        third: the part of its outputs that is updated; None for all of them.
    """

    name: str
    linear: nn.Linear
    third: Third | None = None

    @property
    def inputs(self) -> int:
        return self.linear.in_features

    @property
    def outputs(self) -> int:
        return self.linear.out_features if self.third is None else self.linear.out_features // 3


def add_update(output: Tensor, update: Tensor, third: Third | None) -> Tensor:
    """Add the update (sequences, length, `Target.outputs`) to the layer's output (sequences, length, features)."""
    if third is None:
        return output + update
    parts = update.unflatten(-1, (third.groups, 1, -1))  # (sequences, length, groups, 1, outputs / groups)
    return output + F.pad(parts, (0, 0, third.index, 2 - third.index)).flatten(-3)


@dataclass(frozen=True)
class _Family:
    """The layer names of a model family, `*` for a number; ``fused``: query and value are thirds of one layer."""

    attention: str
    feed_forward: str
    query: str
    value: str
    fused: Literal["whole", "by head"] | None = None


_BERT = _Family(
    attention="encoder.layer.*.attention.output.dense",
    feed_forward="encoder.layer.*.output.dense",
    query="encoder.layer.*.attention.self.query",
    value="encoder.layer.*.attention.self.value",
)
_FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "electra": _BERT,
    "distilbert": _Family(
        attention="transformer.layer.*.attention.out_lin",
        feed_forward="transformer.layer.*.ffn.lin2",
        query="transformer.layer.*.attention.q_lin",
        value="transformer.layer.*.attention.v_lin",
    ),
    # One module serves several layers, which share the updates as they share its weights.
    "albert": _Family(
        attention="encoder.albert_layer_groups.*.albert_layers.*.attention.dense",
        feed_forward="encoder.albert_layer_groups.*.albert_layers.*.ffn_output",
        query="encoder.albert_layer_groups.*.albert_layers.*.attention.query",
        value="encoder.albert_layer_groups.*.albert_layers.*.attention.value",
    ),
    "modernbert": _Family(
        attention="layers.*.attn.Wo",
        feed_forward="layers.*.mlp.Wo",
        query="layers.*.attn.Wqkv",
        value="layers.*.attn.Wqkv",
        fused="whole",
    ),
    "mpnet": _Family(
        attention="encoder.layer.*.attention.attn.o",
        feed_forward="encoder.layer.*.output.dense",
        query="encoder.layer.*.attention.attn.q",
        value="encoder.layer.*.attention.attn.v",
    ),
    "deberta": _Family(
        attention="encoder.layer.*.attention.output.dense",
        feed_forward="encoder.layer.*.output.dense",
        query="encoder.layer.*.attention.self.in_proj",
        value="encoder.layer.*.attention.self.in_proj",
        fused="by head",
    ),
    "deberta-v2": _Family(
        attention="encoder.layer.*.attention.output.dense",
        feed_forward="encoder.layer.*.output.dense",
        query="encoder.layer.*.attention.self.query_proj",
        value="encoder.layer.*.attention.self.value_proj",
    ),
}


def find_targets(backbone: PreTrainedModel, role: Role) -> list[Target]:
    """All layers of ``backbone`` with that role, first layer first.

    Raises:
        DiffaugError: the model family is unknown, or its layers cannot have different views in one batch.
    """
    config = backbone.config
    family = _FAMILIES.get(config.model_type)
    if family is None:
        raise DiffaugError(
            f"adapters and LoRA do not support a '{config.model_type}' backbone; use one of "
            f"{', '.join(sorted(_FAMILIES))}, or another views.kind"
        )
    if role == "query" and getattr(config, "share_att_key", False) and getattr(config, "relative_attention", False):
        # It projects relative positions once for the whole batch, which may have different views.
        raise DiffaugError(
            f"LoRA does not support this '{config.model_type}' backbone, whose query layers also project relative "
            "positions (share_att_key); use an adapter, or another backbone"
        )
    pattern: str = getattr(family, role)
    third = None
    if family.fused is not None and role in ("query", "value"):
        third = Third(0 if role == "query" else 2, 1 if family.fused == "whole" else config.num_attention_heads)
    targets = [
        Target(name, module, third)
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and _matches(name, pattern)
    ]
    if not targets:
        raise DiffaugError(
            f"the '{config.model_type}' backbone has no linear layer {pattern}, which its views would update; use "
            "transformers' own code for this model type"
        )
    return targets


def _matches(name: str, pattern: str) -> bool:
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(
        n.isdigit() if p == "*" else n == p for n, p in zip(names, patterns, strict=True)
    )
