from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from tiny_models import FAMILIES, build_tiny
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerBase
from view_modules import ADAPTER, LORA

from diffaug.errors import DiffaugError
from diffaug.models.views.adapter import Adapter
from diffaug.models.views.lora import Lora
from diffaug.models.views.targets import Role, Third, add_update, find_targets

Tokenizer = PreTrainedTokenizerBase


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("role", get_args(Role))
def test_a_place_a_layer(family: str, role: Role, wordpiece: Tokenizer) -> None:
    backbone = build_tiny(family, wordpiece)
    places = find_targets(backbone, role)
    # ALBERT's four layers are two modules, each used twice.
    assert len(places) == {"albert": 2, "modernbert": 4}.get(family, 3)
    assert [place.linear for place in places] == [backbone.get_submodule(place.name) for place in places]
    assert all((place.inputs, place.outputs) == (64 if role == "feed_forward" else 32, 32) for place in places)


@pytest.mark.parametrize(
    ("third", "columns"),
    [
        (Third(0, 1), [0, 1, 2, 3]),
        (Third(2, 1), [8, 9, 10, 11]),
        (Third(0, 2), [0, 1, 6, 7]),
        (Third(2, 2), [4, 5, 10, 11]),
    ],
)
def test_an_update_of_a_third(third: Third, columns: list[int]) -> None:
    output, update = torch.randn(2, 5, 12), torch.randn(2, 5, 4)
    expected = output.clone()
    expected[..., columns] += update
    assert torch.equal(add_update(output, update, third), expected)


def test_other_backbones_are_refused() -> None:
    config = AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=2, vocab_size=11)
    backbone = AutoModel.from_config(config)
    for build in _builders():
        with pytest.raises(DiffaugError, match=r"do not support a 'gpt2' backbone.*use one of albert, bert, "):
            build(backbone)


def test_a_backbone_of_other_code_is_refused(wordpiece: Tokenizer) -> None:
    backbone = build_tiny("bert", wordpiece)
    for layer in backbone.encoder.layer:
        layer.output.dense = nn.Identity()
    with pytest.raises(DiffaugError, match=r"no linear layer encoder\.layer\.\*\.output\.dense"):
        Adapter(ADAPTER, backbone)
    assert not any(module._forward_hooks for module in backbone.modules())


def test_shared_relative_positions_are_refused_for_lora(wordpiece: Tokenizer) -> None:
    backbone = build_tiny("deberta-v2", wordpiece)
    backbone.config.share_att_key = True
    with pytest.raises(DiffaugError, match=r"share_att_key.*use an adapter"):
        Lora(LORA, backbone)
    Adapter(ADAPTER, backbone)


def _builders() -> list[Callable[..., object]]:
    return [lambda backbone: Adapter(ADAPTER, backbone), lambda backbone: Lora(LORA, backbone)]
