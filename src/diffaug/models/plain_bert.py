"""BERT in plain PyTorch, for inference that starts fast.

Importing transformers' model classes takes nearly half of the time to a model's first vector; its tokenizers and
configurations need none of them. `PlainBert` has the parameters of `BertModel` under the same names and computes the
same hidden states. Everything else (training, views, export) uses transformers' own class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Settings of BERT that change its hidden states, and their only values here.
_SUPPORTED: dict[str, Any] = {"model_type": "bert", "hidden_act": "gelu", "is_decoder": False}
_FILE = "model.safetensors"
# Weights of a checkpoint that the hidden states do not depend on: the pooler, the head of the language model, and
# numbers that older versions of transformers stored.
_UNUSED = ("pooler.", "cls.", "embeddings.position_ids")


class PlainBert(nn.Module):
    """The hidden states of BERT, without dropout.

    Args:
        config: transformers' configuration, which `supported` accepts.
        weights: the parameters; missing or unexpected names, and wrong shapes, raise a RuntimeError.
    """

    def __init__(self, config: PreTrainedConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))})
        self.load_state_dict({name: weight.float() for name, weight in weights.items()}, assign=True)

    @property
    def layers(self) -> nn.ModuleList:
        """The layers, first to last."""
        layers = self.encoder["layer"]
        assert isinstance(layers, nn.ModuleList)
        return layers

    def get_input_embeddings(self) -> nn.Embedding:
        """The embeddings of the tokens."""
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> States:
        """As `BertModel` computes them; all tokens have the type 0."""
        hidden = self.embeddings(input_ids, position_ids)
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None]  # (sequences, 1, 1, length)
        states = [hidden]
        for layer in self.layers:
            hidden = layer(hidden, mask)
            if output_hidden_states:
                states.append(hidden)
        return States(last_hidden_state=hidden, hidden_states=tuple(states) if output_hidden_states else None)


class States(dict[str, Any]):
    """The output of a backbone, with its keys as attributes."""

    @property
    def last_hidden_state(self) -> Tensor:
        """(sequences, length, width)"""
        state: Tensor = self["last_hidden_state"]
        return state


class _Embeddings(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = _embedding(config.vocab_size, width)
        self.position_embeddings = _embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = _embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, config.layer_norm_eps)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        words = self.word_embeddings(input_ids) + self.token_type_embeddings.weight[0]
        hidden: Tensor = self.LayerNorm(words + self.position_embeddings(position_ids))
        return hidden


class _Layer(nn.Module):
    """Attention and feed-forward network; submodules only hold the parameters under BERT's names."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.attention = nn.ModuleDict(
            {
                "self": nn.ModuleDict({name: _Linear(width, width) for name in ("query", "key", "value")}),
                "output": _output(width, width, config.layer_norm_eps),
            }
        )
        self.intermediate = nn.ModuleDict({"dense": _Linear(width, inner)})
        self.output = _output(inner, width, config.layer_norm_eps)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        attention: Any = self.attention
        # each (sequences, heads, length, head_dim)
        query, key, value = (
            attention["self"][name](hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        hidden = attention["output"]["LayerNorm"](attention["output"]["dense"](context) + hidden)
        inner = F.gelu(self.intermediate["dense"](hidden))
        result: Tensor = self.output["LayerNorm"](self.output["dense"](inner) + hidden)
        return result


class _Linear(nn.Module):
    """`nn.Linear` without initial weights, which take longer than loading the weights of the model."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(states, self.weight, self.bias)


def _embedding(count: int, width: int) -> nn.Embedding:
    return nn.Embedding.from_pretrained(torch.empty(count, width), freeze=False)


def _output(inputs: int, outputs: int, eps: float) -> nn.ModuleDict:
    return nn.ModuleDict({"dense": _Linear(inputs, outputs), "LayerNorm": nn.LayerNorm(outputs, eps)})


def supported(settings: Mapping[str, Any]) -> bool:
    """Whether `PlainBert` computes what a backbone with these settings, as in its ``config.json``, computes."""
    values = {"hidden_act": "gelu", "is_decoder": False, **settings}
    absolute = values.get("position_embedding_type", "absolute") == "absolute"
    return absolute and not values.get("auto_map") and all(values.get(key) == _SUPPORTED[key] for key in _SUPPORTED)


def read_checkpoint(folder: Path) -> dict[str, Tensor] | None:
    """The weights of a checkpoint of transformers, named as in `PlainBert`.

    None if there is anything unusual about them: transformers then reads the checkpoint, or says what is wrong.
    """
    try:
        if not supported(json.loads((folder / "config.json").read_text("utf-8"))):
            return None
        weights = load_file(folder / _FILE)
    except (OSError, ValueError, SafetensorError):
        return None
    named = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
    return {name: tensor for name, tensor in named.items() if not name.startswith(_UNUSED)}
