"""Positions and the head; the prefix is tested with the attention hook, the poolings by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffaug.data.collate import Collator
from diffaug.embedder import Embedder
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import first_position, load_backbone, position_limit
from diffaug.models.batch import PaddedBatch
from diffaug.models.config import DenseConfig, ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.views.prefix import FoldedPrefix

FIRST = {"bert": 0, "roberta": 2, "xlm-roberta": 2, "distilbert": 0, "electra": 0, "albert": 0, "modernbert": 0}
WITHOUT_PREFIX = {"mpnet": 2, "deberta": 0, "deberta-v2": 0}
PREFIX = PrefixConfig(views=2, length=8)
TEMPLATES = {
    "bert": 'This sentence of "{}" means [MASK].',
    "roberta": "This sentence : ' {} ' means [MASK].",
}

Tiny = Callable[[str], Path]


def make(folder: Path, config: ModelConfig) -> tuple[Encoder, Collator, Any]:
    backbone, tokenizer = load_backbone(str(folder))
    prefix = None
    if config.prefix is not None:
        prefix = FoldedPrefix(config.prefix, attention_shape(backbone))
        torch.manual_seed(0)
        nn.init.normal_(prefix.blocks)
    encoder = Encoder(backbone, config, prefix)
    embedder = Embedder(encoder, tokenizer)
    return encoder, embedder.collator, embedder


@torch.no_grad()
def positions_of(encoder: Encoder, rows: PaddedBatch) -> Tensor:
    """The position numbers that a forward looks up."""
    seen: list[Tensor] = []
    table = encoder.backbone.embeddings.position_embeddings
    handle = table.register_forward_hook(lambda module, args, out: seen.append(args[0]))
    encoder(rows)
    handle.remove()
    return seen[0].expand(rows.input_ids.shape)


@pytest.mark.parametrize(("family", "first"), [*FIRST.items(), *WITHOUT_PREFIX.items()])
def test_first_position_and_limit(tiny: Tiny, family: str, first: int) -> None:
    backbone, _ = load_backbone(str(tiny(family)))
    assert first_position(backbone) == first
    assert position_limit(backbone) == 128


@pytest.mark.parametrize("family", [*FIRST, *WITHOUT_PREFIX])
@torch.no_grad()
def test_explicit_positions_without_an_offset_are_the_models_own(tiny: Tiny, sentences: list[str], family: str) -> None:
    encoder, collator, _ = make(tiny(family), ModelConfig(pooling="mean"))
    rows = collator.rows(collator.ids(sentences)[0])
    default = encoder(rows)
    rows.position_ids = torch.arange(rows.input_ids.shape[1]).repeat(len(rows), 1)
    assert torch.allclose(encoder(rows), default, atol=1e-6)
    # Guard: positions that are moved do change the result.
    rows.position_ids[:, 2:] += 1
    assert not torch.allclose(encoder(rows), default, atol=1e-3)


@pytest.mark.parametrize("views", [None, 0, 1])
@pytest.mark.parametrize("family", [family for family in FIRST if family != "modernbert"])
def test_tokens_start_behind_the_vectors_of_both_views(
    tiny: Tiny, sentences: list[str], family: str, views: int | None
) -> None:
    encoder, collator, _ = make(tiny(family), ModelConfig(pooling="mean", prefix=PREFIX))
    rows = collator.rows(collator.ids(sentences)[0], None if views is None else [views] * len(sentences))
    width = rows.input_ids.shape[1]
    expected = torch.arange(FIRST[family] + 16, FIRST[family] + 16 + width)
    assert torch.equal(positions_of(encoder, rows), expected.expand(len(rows), -1))


@pytest.mark.parametrize("with_template", [True, False])
@pytest.mark.parametrize("with_prefix", [True, False])
@pytest.mark.parametrize("family", FIRST)
def test_longest_sentence_fits_exactly(tiny: Tiny, family: str, with_prefix: bool, with_template: bool) -> None:
    template = TEMPLATES.get(family, TEMPLATES["bert"]) if with_template else None
    config = ModelConfig(
        pooling="mask" if with_template else "mean", template=template, prefix=PREFIX if with_prefix else None
    )
    encoder, collator, embedder = make(tiny(family), config)
    ids, cut = collator.ids(["dog " * 500])
    assert cut == 1
    around = 16 * with_prefix + len(collator.template)
    assert len(ids[0]) == collator.max_length == 128 - around
    with pytest.warns(UserWarning, match="were truncated"):
        assert np.isfinite(embedder.encode("dog " * 500)).all()
    if family != "modernbert":
        rows = collator.rows(ids)
        assert positions_of(encoder, rows).max() == FIRST[family] + 127


@pytest.mark.parametrize("with_prefix", [True, False])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_bare_templates_keep_the_sentences_positions(tiny: Tiny, family: str, with_prefix: bool) -> None:
    """The template without a sentence, by hand: what stands behind the slot is moved by the sentence's length."""
    config = ModelConfig("mask", TEMPLATES[family], prefix=PREFIX if with_prefix else None)
    encoder, collator, _ = make(tiny(family), config)
    tokenizer = collator.tokenizer
    lengths = [0, 1, 7, 32]
    rows = collator.bare_templates(lengths, [0] * 4)
    before, after = TEMPLATES[family].replace("[MASK]", tokenizer.mask_token).split("{}")
    before_ids = [tokenizer.cls_token_id, *tokenizer(before.rstrip(), add_special_tokens=False)["input_ids"]]
    after_ids = [*tokenizer(after, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
    assert rows.input_ids.tolist() == [[*before_ids, *after_ids]] * 4
    mask_at = rows.input_ids[0].tolist().index(tokenizer.mask_token_id)
    assert rows.pool_positions is not None
    assert rows.pool_positions.tolist() == [mask_at] * 4

    start = FIRST[family] + 16 * with_prefix
    expected = torch.tensor(
        [
            [*range(start, start + len(before_ids))]
            + [start + len(before_ids) + length + i for i in range(len(after_ids))]
            for length in lengths
        ]
    )
    assert torch.equal(positions_of(encoder, rows), expected)
    if not with_prefix:
        with torch.no_grad():
            by_hand = encoder.backbone(input_ids=rows.input_ids, position_ids=expected).last_hidden_state[:, mask_at]
            assert torch.allclose(encoder.represent(rows), by_hand, atol=1e-6)
            assert (by_hand[0] - by_hand[3]).abs().max() > 1e-2


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_mask_token_of_a_bare_template_stands_where_the_sentence_left_it(tiny: Tiny, family: str) -> None:
    encoder, collator, _ = make(tiny(family), ModelConfig("mask", TEMPLATES[family], prefix=PREFIX))
    ids, _ = collator.ids(["A dog runs through the park."])
    whole, bare = collator.rows(ids), collator.bare_templates([len(ids[0])])
    assert whole.pool_positions is not None
    assert bare.pool_positions is not None
    assert (
        positions_of(encoder, whole)[0, whole.pool_positions[0]]
        == positions_of(encoder, bare)[0, bare.pool_positions[0]]
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
@torch.no_grad()
def test_bare_templates_in_a_batch_with_the_longest_sentences(tiny: Tiny, family: str) -> None:
    config = ModelConfig("mask", TEMPLATES.get(family, TEMPLATES["bert"]), prefix=PREFIX)
    encoder, collator, _ = make(tiny(family), config)
    (longest,), _ = collator.ids(["dog " * 500])
    whole, bare = collator.rows([longest], [0]), collator.bare_templates([len(longest)], [1])
    assert whole.pool_positions is not None
    assert bare.pool_positions is not None
    assert bare.position_ids is not None
    template_width, width = bare.input_ids.shape[1], whole.input_ids.shape[1]
    padded = torch.full((1, width), collator.tokenizer.pad_token_id)
    padded[:, :template_width] = bare.input_ids
    mask = torch.ones(2, width, dtype=torch.long)
    mask[1, template_width:] = 0
    joined = PaddedBatch(
        torch.cat([whole.input_ids, padded]),
        mask,
        pool_positions=torch.cat([whole.pool_positions, bare.pool_positions]),
        position_ids=torch.stack([torch.arange(width), F.pad(bare.position_ids[0], (0, width - template_width))]),
        view_ids=torch.tensor([0, 1]),
    )
    expected = torch.cat([encoder(whole), encoder(bare)])
    assert torch.allclose(encoder(joined), expected, atol=1e-5)


@torch.no_grad()
def test_head_and_normalisation_by_hand(tiny_bert: Path, sentences: list[str]) -> None:
    torch.manual_seed(0)
    head = (DenseConfig(32, 16, activation="tanh"), DenseConfig(16, 8, bias=False, activation="relu"))
    encoder, collator, _ = make(tiny_bert, ModelConfig("mean", head=head, normalize=True))
    rows = collator.rows(collator.ids(sentences)[0])
    pooled = encoder.represent(rows).numpy()
    (w1, b1), (w2,) = ([p.detach().numpy() for p in layer.parameters()] for layer in encoder.head)
    expected = np.maximum(np.tanh(pooled @ w1.T + b1) @ w2.T, 0)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert encoder.width == 8
    np.testing.assert_allclose(encoder(rows).numpy(), expected, atol=1e-6)
