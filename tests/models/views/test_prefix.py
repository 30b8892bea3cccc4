from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from diffaug.data.collate import Collator
from diffaug.models.attention import AttentionShape, attention_shape
from diffaug.models.backbone import load_backbone
from diffaug.models.config import ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.views.prefix import FoldedPrefix, ReparametrisedPrefix

CONFIG = PrefixConfig(views=2, length=3)
SHAPE = AttentionShape(layers=5, heads=4, head_dim=8)


@pytest.fixture
def prefix() -> ReparametrisedPrefix:
    torch.manual_seed(0)
    return ReparametrisedPrefix(CONFIG, SHAPE)


def test_keys_and_values_by_hand(prefix: ReparametrisedPrefix) -> None:
    first, second = prefix.mlp[0], prefix.mlp[2]
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    w1, b1, w2, b2 = (p.detach().double().numpy() for p in (first.weight, first.bias, second.weight, second.bias))
    flat = np.tanh(prefix.embedding.weight.detach().double().numpy() @ w1.T + b1) @ w2.T + b2
    blocks = prefix.eval().keys_and_values().detach().numpy()
    assert blocks.shape == (5, 2, 2, 4, 3, 8)
    for layer, kind, view, head, vector in np.ndindex(blocks.shape[:-1]):
        # The first `length` rows of the matrix are view 1; a row holds layer by layer a key, then a value.
        start = ((layer * 2 + kind) * 4 + head) * 8
        expected = flat[view * 3 + vector, start : start + 8]
        np.testing.assert_allclose(blocks[layer, kind, view, head, vector], expected, atol=1e-6)


def test_parameter_count(prefix: ReparametrisedPrefix) -> None:
    width = 4 * 8
    embedding = 2 * 3 * width
    mlp = (width * width + width) + (width * (5 * 2 * width) + 5 * 2 * width)
    assert sum(p.numel() for p in prefix.parameters()) == embedding + mlp
    assert sum(p.numel() for p in prefix.fold().parameters()) == 5 * 2 * 2 * 3 * width


def extended(prefix: ReparametrisedPrefix, views: torch.Tensor | None, rows: int) -> torch.Tensor:
    """(2, rows, heads, length, head_dim): what the first layer puts before its keys and values."""
    nothing = torch.empty(rows, SHAPE.heads, 0, SHAPE.head_dim)
    key, value, _ = prefix.attention(views).extend(nothing, nothing, None)
    return torch.stack([key, value])


def test_dropout_in_training_draws_a_mask_for_each_row(prefix: ReparametrisedPrefix) -> None:
    views = torch.tensor([0, 1, 1] * 20)
    plain = extended(prefix.eval(), views, 60)
    assert torch.equal(plain, prefix.keys_and_values()[0][:, views])
    torch.manual_seed(0)
    dropped = extended(prefix.train(), views, 60)
    gone = dropped == 0
    assert 0.09 < gone.float().mean() < 0.11
    assert torch.allclose(dropped[~gone], plain[~gone] / 0.9)
    # Two rows of one view agree on a number as often as two independent draws do.
    assert float((gone[:, 1] & gone[:, 2]).float().mean()) == pytest.approx(0.01, abs=0.01)
    agree = (gone[:, 1::3] & gone[:, 2::3]).float().mean()
    assert float(agree) == pytest.approx(0.01, abs=0.003)


def test_folding_leaves_the_prefix_as_it_was(prefix: ReparametrisedPrefix) -> None:
    folded = prefix.train().fold()
    assert prefix.training
    assert torch.equal(folded.blocks, prefix.eval().keys_and_values())
    assert folded.blocks.is_leaf
    assert folded.blocks.is_contiguous()
    before = folded.blocks.clone()
    nn.init.zeros_(prefix.embedding.weight)
    assert torch.equal(folded.blocks, before)


@pytest.mark.parametrize("views", [[0, 1, 1], None])
def test_folded_equals_reparametrised_in_a_model(
    tiny_bert: Path, sentences: list[str], views: list[int] | None
) -> None:
    backbone, tokenizer = load_backbone(str(tiny_bert))
    prefix = ReparametrisedPrefix(CONFIG, attention_shape(backbone))
    config = ModelConfig(pooling="cls", prefix=CONFIG)
    collator = Collator(tokenizer, config)
    rows = collator.rows(collator.ids(sentences[:3])[0], views)
    with torch.no_grad():
        reparametrised = Encoder(backbone, config, prefix).eval()(rows)
        folded = Encoder(backbone, config, prefix.fold()).eval()(rows)
    assert torch.equal(reparametrised, folded)


def test_gradients_reach_all_of_the_prefix_behind_a_frozen_backbone(tiny_bert: Path, sentences: list[str]) -> None:
    backbone, tokenizer = load_backbone(str(tiny_bert))
    prefix = ReparametrisedPrefix(CONFIG, attention_shape(backbone))
    encoder = Encoder(backbone.requires_grad_(False), ModelConfig(pooling="mean", prefix=CONFIG), prefix).train()
    collator = Collator(tokenizer, encoder.config)
    rows = collator.rows(collator.ids(sentences[:2])[0], [0, 1])
    encoder(rows).square().sum().backward()
    for name, parameter in prefix.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert all(parameter.grad is None for parameter in backbone.parameters())

    # A row of one view teaches that view alone.
    prefix.zero_grad()
    encoder(collator.rows(collator.ids(sentences[:2])[0], [1, 1])).square().sum().backward()
    assert prefix.embedding.weight.grad is not None
    assert prefix.embedding.weight.grad[:3].abs().sum() == 0
    assert prefix.embedding.weight.grad[3:].abs().amin(1).min() > 0


def test_folded_prefix_learns_too() -> None:
    folded = FoldedPrefix(CONFIG, SHAPE)
    assert folded.blocks.requires_grad
    assert folded.blocks.shape == (5, 2, 2, 4, 3, 8)


def test_prefix_of_other_settings_is_refused(tiny_bert: Path) -> None:
    backbone, _ = load_backbone(str(tiny_bert))
    folded = FoldedPrefix(CONFIG, attention_shape(backbone))
    for config, prefix in ((ModelConfig(prefix=PrefixConfig(2, 8)), folded), (ModelConfig(), folded)):
        with pytest.raises(ValueError, match="does not match the model"):
            Encoder(backbone, config, prefix)
    with pytest.raises(ValueError, match="does not match the model"):
        Encoder(backbone, ModelConfig(prefix=CONFIG), None)
