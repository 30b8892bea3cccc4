"""The prefix hook against independent references.

`pytest tests/models/test_attention.py -k reference -s` prints the table in `docs/backbones.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, DynamicCache

from diffaug.data.collate import Collator
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.models.attention import AttentionShape, PrefixAttention, attention_shape
from diffaug.models.backbone import load_backbone
from diffaug.models.batch import PaddedBatch
from diffaug.models.config import ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.views.prefix import FoldedPrefix

HOOKED = ["bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "modernbert"]
REFUSED = ["mpnet", "deberta", "deberta-v2"]
PREFIX = PrefixConfig(views=2, length=3)
FIRST = {"roberta": 2, "xlm-roberta": 2}  # the position of a row's first token where it is not 0
# With and without padding; a view for each row, or all of them as at inference.
SETTINGS: list[tuple[bool, list[int] | None]] = [(True, [0, 1]), (True, None), (False, [0, 1]), (False, None)]

Tiny = Callable[[str], Path]


def encoder_with_prefix(folder: Path) -> tuple[Encoder, Collator]:
    """A model with prefixes as large as its own keys and values, so that leaving one out shows."""
    backbone, tokenizer = load_backbone(str(folder))
    prefix = FoldedPrefix(PREFIX, attention_shape(backbone))
    torch.manual_seed(0)
    nn.init.normal_(prefix.blocks)
    config = ModelConfig(pooling="mean", prefix=PREFIX)
    return Encoder(backbone, config, prefix).eval(), Collator(tokenizer, config)


def make_rows(collator: Collator, sentences: list[str], padded: bool, views: list[int] | None) -> PaddedBatch:
    ids, _ = collator.ids(sentences)
    rows = collator.rows(ids if padded else [row[:5] for row in ids if len(row) >= 5])
    assert (rows.attention_mask is not None) == padded
    if views is not None:
        rows.view_ids = torch.tensor([views[i % len(views)] for i in range(len(rows))])
    return rows


def own_vectors(encoder: Encoder, rows: PaddedBatch) -> Tensor:
    """(layers, 2, rows, heads, prefix, head_dim): what each row should see, sorted out by hand."""
    assert isinstance(encoder.views, FoldedPrefix)
    views = list(encoder.views.blocks.detach().unbind(2))  # one (layers, 2, heads, length, head_dim) a view
    if rows.view_ids is None:
        return torch.stack([torch.cat(views, dim=3)] * len(rows), dim=2)
    return torch.stack([views[view] for view in rows.view_ids.tolist()], dim=2)


def real(rows: PaddedBatch) -> Tensor:
    """(rows, length), true for tokens and false for padding."""
    return torch.ones_like(rows.input_ids, dtype=torch.bool) if rows.attention_mask is None else rows.attention_mask > 0


@torch.no_grad()
def last_states(encoder: Encoder, rows: PaddedBatch) -> Tensor:
    """The last layer's states of a forward of the whole encoder."""
    seen: list[Any] = []
    handle = encoder.backbone.register_forward_hook(lambda module, args, out: seen.append(out))
    encoder(rows)
    handle.remove()
    return seen[0].last_hidden_state


# The cache way: the prefix as the past of a generating model.


@torch.no_grad()
def by_cache(folder: Path, rows: PaddedBatch, vectors: Tensor, first: int) -> Tensor:
    plain = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    out = []
    for i in range(len(rows)):
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(vectors[:, :, i]):
            cache.update(keys.unsqueeze(0), values.unsqueeze(0), layer)
        length, width = rows.input_ids.shape[1], vectors.shape[4]
        visible = torch.cat([torch.ones(width, dtype=torch.bool), real(rows)[i]]).expand(1, 1, length, -1)
        positions = torch.arange(length).unsqueeze(0) + first + 2 * PREFIX.length
        out.append(
            plain(
                input_ids=rows.input_ids[i : i + 1],
                attention_mask=visible,
                position_ids=positions,
                past_key_values=cache,
            ).last_hidden_state
        )
    return torch.cat(out)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_reference_cache(tiny: Tiny, sentences: list[str], family: str) -> None:
    encoder, collator = encoder_with_prefix(tiny(family))
    worst = 0.0
    for padded, views in SETTINGS:
        rows = make_rows(collator, sentences, padded, views)
        expected = by_cache(tiny(family), rows, own_vectors(encoder, rows), FIRST.get(family, 0))
        worst = max(worst, (last_states(encoder, rows) - expected)[real(rows)].abs().max().item())
    print(f"\n| {family} | key/value cache | {worst:.1e} |")
    assert worst < 1e-5


# Explicit attention: every layer's attention recomputed in float64 from what went into it.


def is_attention(module: nn.Module) -> bool:
    return type(module).__name__.endswith(("SelfAttention", "AlbertAttention", "ModernBertAttention"))


@torch.no_grad()
def attention_calls(encoder: Encoder, rows: PaddedBatch) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """Module, input and output of each attention of a forward, in order."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        calls.append((module, args[0] if args else kwargs["hidden_states"], out[0]))

    handles = [m.register_forward_hook(note, with_kwargs=True) for m in encoder.backbone.modules() if is_attention(m)]
    encoder(rows)
    for handle in handles:
        handle.remove()
    return calls


@torch.no_grad()
def by_hand(module: Any, hidden: Tensor, keys: Tensor, values: Tensor, mask: Tensor, first: int) -> Tensor:
    """(rows, length, width): attention over the prefix and the tokens that ``mask`` shows, in float64."""
    hidden = hidden.double()
    rows, length, width = hidden.shape
    heads, size = keys.shape[1], keys.shape[3]

    def linear(layer: nn.Linear, x: Tensor) -> Tensor:
        return x @ layer.weight.double().T + (0 if layer.bias is None else layer.bias.double())

    if hasattr(module, "Wqkv"):
        q, k, v = linear(module.Wqkv, hidden).split(width, dim=-1)
    else:
        names = ["q_lin", "k_lin", "v_lin"] if hasattr(module, "q_lin") else ["query", "key", "value"]
        q, k, v = (linear(getattr(module, name), hidden) for name in names)
    q, k, v = (x.view(rows, length, heads, size).permute(0, 2, 1, 3) for x in (q, k, v))

    visible = mask[:, None, None, :].expand(rows, 1, length, length)
    if hasattr(module, "Wqkv"):
        kind = module.config.layer_types[module.layer_idx]
        theta = module.config.rope_parameters[kind]["rope_theta"]
        turns = theta ** -(torch.arange(0, size, 2).double() / size)
        angles = (torch.arange(length) + first)[:, None] * turns  # (length, size / 2)

        def rotate(x: Tensor) -> Tensor:
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)

        q, k = rotate(q), rotate(k)
        if kind == "sliding_attention":
            distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
            visible = visible & (distance.abs() <= module.config.local_attention // 2)

    k, v = torch.cat([keys.double(), k], dim=2), torch.cat([values.double(), v], dim=2)
    visible = torch.cat([torch.ones(rows, 1, length, keys.shape[2], dtype=torch.bool), visible], dim=-1)
    scores = (q @ k.transpose(2, 3) / size**0.5).masked_fill(~visible, -torch.inf)
    out = (scores.softmax(-1) @ v).permute(0, 2, 1, 3).reshape(rows, length, width)

    if hasattr(module, "out_lin"):
        return linear(module.out_lin, out)
    if hasattr(module, "Wo"):
        return linear(module.Wo, out)
    if hasattr(module, "dense"):  # ALBERT's module goes on to the residual connection
        norm = module.LayerNorm
        total = hidden + linear(module.dense, out)
        return F.layer_norm(total, norm.normalized_shape, norm.weight.double(), norm.bias.double(), norm.eps)
    return out


@pytest.mark.parametrize("family", HOOKED)
def test_reference_explicit(tiny: Tiny, sentences: list[str], family: str) -> None:
    encoder, collator = encoder_with_prefix(tiny(family))
    first = FIRST.get(family, 0) + 2 * PREFIX.length
    worst = 0.0
    for padded, views in SETTINGS:
        rows = make_rows(collator, sentences, padded, views)
        vectors = own_vectors(encoder, rows)
        calls = attention_calls(encoder, rows)
        assert len(calls) == encoder.backbone.config.num_hidden_layers == len(vectors)
        for (module, hidden, out), (keys, values) in zip(calls, vectors, strict=True):
            expected = by_hand(module, hidden, keys, values, real(rows), first)
            worst = max(worst, (out - expected)[real(rows)].abs().max().item())
    print(f"\n| {family} | explicit attention | {worst:.1e} |")
    assert worst < 1e-5


# Views.


@pytest.mark.parametrize("family", HOOKED)
def test_rows_of_different_views_share_a_batch(tiny: Tiny, sentences: list[str], family: str) -> None:
    encoder, collator = encoder_with_prefix(tiny(family))
    ids, _ = collator.ids(sentences)
    views = [i % 2 for i in range(len(ids))]
    with torch.no_grad():
        mixed = encoder(collator.rows(ids, views))
        for view in (0, 1):
            own = [i for i in range(len(ids)) if views[i] == view]
            alone = encoder(collator.rows([ids[i] for i in own], [view] * len(own)))
            assert torch.allclose(mixed[own], alone, atol=1e-5)
        # The views do differ, and both differ from inference, where all vectors are in use.
        other = encoder(collator.rows(ids, [1 - view for view in views]))
        together = encoder(collator.rows(ids))
    for a, b in ((mixed, other), (mixed, together), (other, together)):
        assert (a - b).abs().amax(1).min() > 1e-2


def test_all_views_stand_in_their_order() -> None:
    prefix = FoldedPrefix(PREFIX, AttentionShape(layers=2, heads=4, head_dim=8))
    nn.init.normal_(prefix.blocks)
    blocks = prefix.attention(None).blocks
    assert blocks.shape == (2, 2, 1, 4, 6, 8)
    for layer in range(2):
        for kind in range(2):
            for head in range(4):
                expected = torch.cat([prefix.blocks[layer, kind, view, head] for view in (0, 1)])
                assert torch.equal(blocks[layer, kind, 0, head], expected)


# A prefix is never dropped silently.


@pytest.mark.parametrize("family", HOOKED)
def test_shape(tiny: Tiny, family: str) -> None:
    backbone, _ = load_backbone(str(tiny(family)))
    backbone.train()
    assert attention_shape(backbone) == AttentionShape(backbone.config.num_hidden_layers, heads=4, head_dim=8)
    assert backbone.training


@pytest.mark.parametrize("family", REFUSED)
def test_backbones_with_attention_of_their_own_are_refused(tiny: Tiny, sentences: list[str], family: str) -> None:
    backbone, tokenizer = load_backbone(str(tiny(family)))
    with pytest.raises(DiffaugError, match=f"a prefix cannot be attached to a '{family}' backbone"):
        attention_shape(backbone)
    # Without a prefix they are as good as any other, also after the refusal.
    expected = Embedder.from_pretrained(tiny(family)).encode(sentences)
    encoder = Encoder(backbone, ModelConfig(pooling="mean"))
    assert torch.equal(torch.tensor(Embedder(encoder, tokenizer).encode(sentences)), torch.tensor(expected))


def test_backbone_that_was_switched_back_is_found_out(tiny_bert: Path, sentences: list[str]) -> None:
    encoder, collator = encoder_with_prefix(tiny_bert)
    encoder.backbone.set_attn_implementation("sdpa")
    with pytest.raises(DiffaugError, match="only 0 of 3 attention layers used the prefix"):
        encoder(make_rows(collator, sentences, True, None))


@pytest.mark.parametrize(("layers", "message"), [(4, "only 3 of 4"), (2, "more than 2 times")])
def test_prefix_for_another_number_of_layers(tiny_bert: Path, sentences: list[str], layers: int, message: str) -> None:
    encoder, collator = encoder_with_prefix(tiny_bert)
    prefix = FoldedPrefix(PREFIX, AttentionShape(layers, heads=4, head_dim=8))
    encoder = Encoder(encoder.backbone, encoder.config, prefix)
    with pytest.raises(DiffaugError, match=message):
        encoder(make_rows(collator, sentences, True, None))


def test_gradient_checkpointing_is_found_out(tiny_bert: Path, sentences: list[str]) -> None:
    """It runs the layers again, last one first, and would give them each other's vectors."""
    encoder, collator = encoder_with_prefix(tiny_bert)
    encoder.train().backbone.gradient_checkpointing_enable()
    vectors = encoder(make_rows(collator, sentences, True, [0, 1]))
    with pytest.raises(DiffaugError, match="computed attention more than 3 times"):
        vectors.sum().backward()


def test_finish_counts_the_layers() -> None:
    states = PrefixAttention(torch.zeros(2, 2, 1, 4, 3, 8))
    own = torch.zeros(5, 4, 7, 8)
    states.extend(own, own, None)
    with pytest.raises(DiffaugError, match="only 1 of 2"):
        states.finish()
    states.extend(own, own, None)
    states.finish()


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_are_widened(dtype: torch.dtype) -> None:
    """A mask says True or 0 for what is seen; the prefix always is."""
    seen = torch.tensor([[True, True, False]])
    mask = seen if dtype == torch.bool else torch.zeros(1, 3).masked_fill(~seen, -torch.inf)
    own = torch.zeros(1, 4, 3, 8)
    keys, values, widened = PrefixAttention(torch.ones(1, 2, 1, 4, 2, 8)).extend(own, own, mask.view(1, 1, 1, 3))
    assert keys.shape == values.shape == (1, 4, 5, 8)
    assert keys[0, 0, :, 0].tolist() == [1, 1, 0, 0, 0]
    assert widened is not None
    assert widened.flatten().tolist() == ([True] * 4 + [False] if dtype == torch.bool else [0.0] * 4 + [-torch.inf])
