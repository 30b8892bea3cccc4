from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy.special import erf, softmax
from tiny_models import FAMILIES, build_tiny
from torch import Tensor, nn
from transformers import AutoModel, BertConfig, PreTrainedTokenizerBase
from view_modules import ADAPTER, Model, attach, make_rows

# Where the output layers are: the module that holds each, for layer i, and its name there.
_BERT = (("encoder.layer.{}.attention.output", "dense"), ("encoder.layer.{}.output", "dense"))
OUTPUTS = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "electra": _BERT,
    "distilbert": (("transformer.layer.{}.attention", "out_lin"), ("transformer.layer.{}.ffn", "lin2")),
    "albert": (
        ("encoder.albert_layer_groups.{}.albert_layers.0.attention", "dense"),
        ("encoder.albert_layer_groups.{}.albert_layers.0", "ffn_output"),
    ),
    "modernbert": (("layers.{}.attn", "Wo"), ("layers.{}.mlp", "Wo")),
    "mpnet": (("encoder.layer.{}.attention.attn", "o"), ("encoder.layer.{}.output", "dense")),
    "deberta": _BERT,
    "deberta-v2": _BERT,
}


class Wrapped(nn.Module):
    """A linear layer and behind it the mean of some adapters, written out."""

    def __init__(self, linear: nn.Linear, adapters: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> None:
        super().__init__()
        self.linear = linear
        self.adapters = adapters

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        updates = []
        for down, down_bias, up, up_bias in self.adapters:
            inner = h @ down.T + down_bias
            inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
            updates.append(inner @ up + up_bias)
        return h + sum(updates) / len(updates)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("view", [0, 1, None])
def test_a_view_is_a_backbone_with_wrapped_layers(
    family: str, view: int | None, wordpiece: PreTrainedTokenizerBase
) -> None:
    plain = build_tiny(family, wordpiece).double()
    model = attach("adapter", plain)
    state = dict(model.views.state_dict())
    reference = copy.deepcopy(plain)
    for role, (holder, name) in zip(("attention", "feed_forward"), OUTPUTS[family], strict=True):
        for i in range(len(model.views.get_submodule(role))):  # type: ignore[arg-type]
            parts = [state[f"{role}.{i}.{part}"] for part in ("down", "down_bias", "up", "up_bias")]
            views = [0, 1] if view is None else [view]
            adapters = [(parts[0][v], parts[1][v], parts[2][v], parts[3][v]) for v in views]
            module = reference.get_submodule(holder.format(i))
            setattr(module, name, Wrapped(getattr(module, name), adapters))
    rows = make_rows(None if view is None else [view] * 4)
    with torch.no_grad():
        expected = reference(input_ids=rows.input_ids, attention_mask=rows.attention_mask).last_hidden_state
        before = plain(input_ids=rows.input_ids, attention_mask=rows.attention_mask).last_hidden_state
        found = model(rows)
    assert (expected - before).abs().mean() > 0.01, "the adapters of this test change nothing"
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 if "deberta" in family else 1e-9)


def test_one_layer_of_bert_by_hand() -> None:
    """The place is before the residual: here in numpy, from the layer's weights alone."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    backbone = AutoModel.from_config(BertConfig(vocab_size=60, **sizes), add_pooling_layer=False)
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model = attach("adapter", backbone)
    rows = make_rows([0, 1, 1, 0])
    rows.attention_mask = None
    with torch.no_grad():
        found = model(rows).numpy()
        embedded = model.backbone.embeddings(input_ids=rows.input_ids).numpy()
    for row, view in enumerate([0, 1, 1, 0]):
        np.testing.assert_allclose(found[row], _layer(model, embedded[row], view), atol=1e-10)


def _layer(model: Model, x: np.ndarray, view: int) -> np.ndarray:
    """A BERT layer over one sentence (length, 8), with the adapters of one view."""
    weights = {name: value.numpy() for name, value in model.backbone.encoder.layer[0].state_dict().items()}
    added = {name: value.numpy()[view] for name, value in model.views.state_dict().items()}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + erf(x / np.sqrt(2)))

    def adapted(place: str, h: np.ndarray) -> np.ndarray:
        inner = gelu(h @ added[f"{place}.0.down"].T + added[f"{place}.0.down_bias"])
        return h + inner @ added[f"{place}.0.up"] + added[f"{place}.0.up_bias"]

    query, key, value = (linear(f"attention.self.{name}", x) for name in ("query", "key", "value"))
    heads = [slice(0, 4), slice(4, 8)]
    attended = [softmax(query[:, h] @ key[:, h].T / np.sqrt(4), axis=-1) @ value[:, h] for h in heads]
    projected = linear("attention.output.dense", np.concatenate(attended, axis=-1))
    x = norm("attention.output.LayerNorm", adapted("attention", projected) + x)
    projected = linear("output.dense", gelu(linear("intermediate.dense", x)))
    return norm("output.LayerNorm", adapted("feed_forward", projected) + x)


def test_sizes(wordpiece: PreTrainedTokenizerBase) -> None:
    shapes = {
        name: tuple(p.shape) for name, p in attach("adapter", build_tiny("bert", wordpiece)).views.named_parameters()
    }
    assert len(shapes) == 2 * 3 * 4
    assert shapes["attention.0.down"] == shapes["feed_forward.2.up"] == (2, ADAPTER.bottleneck, 32)
    assert shapes["attention.1.down_bias"] == (2, ADAPTER.bottleneck)
    assert shapes["feed_forward.1.up_bias"] == (2, 32)
