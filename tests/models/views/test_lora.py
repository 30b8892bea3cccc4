from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import FAMILIES, build_tiny
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from view_modules import LORA, attach, make_rows

# The weights of queries and values in layer i.
_BERT = ("encoder.layer.{}.attention.self.query.weight", "encoder.layer.{}.attention.self.value.weight")
WEIGHTS = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "electra": _BERT,
    "distilbert": ("transformer.layer.{}.attention.q_lin.weight", "transformer.layer.{}.attention.v_lin.weight"),
    "albert": (
        "encoder.albert_layer_groups.{}.albert_layers.0.attention.query.weight",
        "encoder.albert_layer_groups.{}.albert_layers.0.attention.value.weight",
    ),
    "modernbert": ("layers.{}.attn.Wqkv.weight",) * 2,
    "mpnet": ("encoder.layer.{}.attention.attn.q.weight", "encoder.layer.{}.attention.attn.v.weight"),
    "deberta": ("encoder.layer.{}.attention.self.in_proj.weight",) * 2,
    "deberta-v2": (
        "encoder.layer.{}.attention.self.query_proj.weight",
        "encoder.layer.{}.attention.self.value_proj.weight",
    ),
}


def rows_of_weight(family: str, role: str) -> list[int]:
    """Which rows of the weight make the queries, or the values, of the tiny model (4 heads of 8)."""
    if family == "modernbert":  # all queries, all keys, all values
        return list(range(32)) if role == "query" else list(range(64, 96))
    if family == "deberta":  # query, key and value of the first head, of the second ...
        start = 0 if role == "query" else 16
        return [24 * head + start + i for head in range(4) for i in range(8)]
    return list(range(32))


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("view", [0, 1, None])
def test_a_view_is_a_backbone_with_other_weights(
    family: str, view: int | None, wordpiece: PreTrainedTokenizerBase
) -> None:
    plain = build_tiny(family, wordpiece).double()
    model = attach("lora", plain)
    state = dict(model.views.state_dict())
    reference = copy.deepcopy(plain)
    weights = dict(reference.named_parameters())
    with torch.no_grad():
        for role, name in zip(("query", "value"), WEIGHTS[family], strict=True):
            for i in range(len(model.views.get_submodule(role))):  # type: ignore[arg-type]
                # (outputs, inputs) a view: W_up^T W_down^T, since a linear layer multiplies by its weight transposed
                changes = [state[f"{role}.{i}.up"][v].T @ state[f"{role}.{i}.down"][v] for v in (0, 1)]
                # Updates are linear, and so their mean at inference is the mean of the weights.
                change: Tensor = sum(changes) / 2 if view is None else changes[view]
                weights[name.format(i)][rows_of_weight(family, role)] += LORA.scale * change
    rows = make_rows(None if view is None else [view] * 4)
    with torch.no_grad():
        expected = reference(input_ids=rows.input_ids, attention_mask=rows.attention_mask).last_hidden_state
        before = plain(input_ids=rows.input_ids, attention_mask=rows.attention_mask).last_hidden_state
        found = model(rows)
    assert (expected - before).abs().mean() > 0.01, "the updates of this test change nothing"
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 if "deberta" in family else 1e-9)


def test_sizes(wordpiece: PreTrainedTokenizerBase) -> None:
    shapes = {
        name: tuple(p.shape) for name, p in attach("lora", build_tiny("bert", wordpiece)).views.named_parameters()
    }
    assert len(shapes) == 2 * 3 * 2
    assert shapes["query.0.down"] == shapes["value.2.up"] == (2, LORA.rank, 32)
