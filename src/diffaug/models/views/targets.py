"""Where adapters and LoRA take part in a backbone: which linear layers of its transformer layers they act on.

The layers are found by name, a table a family of models. These names are those of the weights in every checkpoint of
the family, and so they do not change from one transformers release to the next.
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
"""What a linear layer is for: the output of attention, the output of the feed-forward part, queries or values."""


@dataclass(frozen=True)
class Third:
    """A query or value layer inside one that computes queries, keys and values at once.

    Attributes:
        index: 0 for queries, 2 for values.
        groups: the outputs are this many times a query, a key and a value: 1, or the number of heads where each head
            has its three side by side.
    """

    index: int
    groups: int


@dataclass(frozen=True)
class Place:
    """A linear layer of a backbone, or a third of one.

    Attributes:
        name: its name in the backbone.
        linear: the layer.
        third: which part of its outputs is meant; None for all of them.
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
    """The layer's output (rows, length, features) with the update (rows, length, `Place.outputs`) where it belongs."""
    if third is None:
        return output + update
    parts = update.unflatten(-1, (third.groups, 1, -1))  # (rows, length, groups, 1, outputs / groups)
    return output + F.pad(parts, (0, 0, third.index, 2 - third.index)).flatten(-3)


@dataclass(frozen=True)
class _Family:
    """The names of a family's layers, `*` for a number; ``fused``: query and value are thirds of one layer."""

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
    # One module serves several layers; what is attached to it is shared by them as its weights are.
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


def find_places(backbone: PreTrainedModel, role: Role) -> list[Place]:
    """All layers of ``backbone`` with that role, first layer first.

    Raises:
        DiffaugError: the layers of such a backbone are not known, or cannot be told apart row by row.
    """
    config = backbone.config
    family = _FAMILIES.get(config.model_type)
    if family is None:
        raise DiffaugError(
            f"adapters and LoRA cannot be attached to a '{config.model_type}' backbone, whose layers are not known; "
            f"use one of {', '.join(sorted(_FAMILIES))}, or views of another kind"
        )
    if role == "query" and getattr(config, "share_att_key", False) and getattr(config, "relative_attention", False):
        # It projects its relative positions once for all rows, which may be of different views.
        raise DiffaugError(
            f"LoRA cannot be attached to this '{config.model_type}' backbone, whose query layers project its relative "
            "positions too (share_att_key); use an adapter, or another backbone"
        )
    pattern: str = getattr(family, role)
    third = None
    if family.fused is not None and role in ("query", "value"):
        third = Third(0 if role == "query" else 2, 1 if family.fused == "whole" else config.num_attention_heads)
    places = [
        Place(name, module, third)
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and _matches(name, pattern)
    ]
    if not places:
        raise DiffaugError(
            f"the '{config.model_type}' backbone has no linear layer {pattern}, to which its views would be attached; "
            "its code is not that of the family"
        )
    return places


def _matches(name: str, pattern: str) -> bool:
    names, patterns = name.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(
        n.isdigit() if p == "*" else n == p for n, p in zip(names, patterns, strict=True)
    )
