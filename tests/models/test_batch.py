from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from diffaug.data.collate import Collator
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import load_backbone
from diffaug.models.batch import PaddedBatch, concatenate
from diffaug.models.config import ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.views.prefix import FoldedPrefix

TEMPLATE = "This sentence : ' {} ' means [MASK]."
PREFIX = PrefixConfig(views=2, length=3)


@pytest.mark.parametrize("with_prefix", [True, False])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
@torch.no_grad()
def test_joined_rows_give_what_they_give_alone(
    tiny: Callable[[str], Path], sentences: list[str], family: str, with_prefix: bool
) -> None:
    backbone, tokenizer = load_backbone(str(tiny(family)))
    config = ModelConfig("mask", TEMPLATE, prefix=PREFIX if with_prefix else None)
    prefix = None
    if with_prefix:
        prefix = FoldedPrefix(PREFIX, attention_shape(backbone))
        nn.init.normal_(prefix.blocks)
    encoder, collator = Encoder(backbone, config, prefix).eval(), Collator(tokenizer, config)
    ids, _ = collator.ids(sentences)
    views = [i % 2 for i in range(len(ids))]
    whole = collator.rows(ids, views)
    bare = collator.bare_templates([len(row) for row in ids], views)
    same_width = collator.rows([row[:3] for row in ids if len(row) >= 3], [0] * sum(len(row) >= 3 for row in ids))
    for first, second in ((whole, bare), (bare, whole), (whole, whole), (bare, bare), (same_width, same_width)):
        joined = concatenate(first, second)
        assert len(joined) == len(first) + len(second)
        assert (joined.attention_mask is None) == (first.attention_mask is second.attention_mask is None)
        expected = torch.cat([encoder(first), encoder(second)])
        assert torch.allclose(encoder(joined), expected, atol=1e-5)
        assert torch.allclose(encoder(joined.slice(2, 5)), expected[2:5], atol=1e-5)


def test_joined_rows_without_views_and_template() -> None:
    first, second = PaddedBatch(torch.ones(2, 3, dtype=torch.long)), PaddedBatch(torch.ones(1, 5, dtype=torch.long))
    joined = concatenate(first, second)
    assert joined.attention_mask is not None
    assert joined.attention_mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert joined.pool_positions is joined.position_ids is joined.view_ids is None
    assert concatenate(first, first).attention_mask is None


def test_rows_move_together() -> None:
    rows = PaddedBatch(
        torch.zeros(2, 3, dtype=torch.long), pool_positions=torch.tensor([1, 2]), view_ids=torch.tensor([0, 1])
    ).to("meta")
    assert rows.input_ids.device.type == "meta"
    assert rows.view_ids is not None
    assert rows.view_ids.device.type == "meta"
    assert rows.attention_mask is None
    assert rows.pool_positions is not None
    assert rows.pool_positions.device.type == "meta"
    assert len(rows) == 2
