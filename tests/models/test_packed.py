"""Rows end to end give the vectors and gradients of padded rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from diffaug.data.collate import collator_for
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import load_backbone
from diffaug.models.batch import PaddedBatch, concatenate, pack
from diffaug.models.config import ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.padded_groups import padded_groups
from diffaug.models.views.prefix import FoldedPrefix

TEMPLATE = 'This sentence of "{}" means [MASK].'
PREFIX = PrefixConfig(views=2, length=3)


def make(folder: Path, pooling: str, with_prefix: bool) -> tuple[Encoder, Callable[[list[str]], PaddedBatch]]:
    backbone, tokenizer = load_backbone(str(folder))
    shape = attention_shape(backbone)
    config = ModelConfig(
        pooling,  # type: ignore[arg-type]
        template=TEMPLATE if pooling == "mask" else None,
        prefix=PREFIX if with_prefix else None,
    )
    prefix = None
    if with_prefix:
        prefix = FoldedPrefix(PREFIX, shape)
        torch.nn.init.normal_(prefix.blocks)
    encoder = Encoder(backbone, config, prefix).eval()
    collator = collator_for(encoder, tokenizer)

    def rows(sentences: list[str]) -> PaddedBatch:
        ids, _ = collator.ids(sentences)
        found = collator.rows(ids, [i % 2 for i in range(len(ids))])
        if pooling == "mask":  # bare templates too, whose positions have a gap
            found = concatenate(found, collator.bare_templates([5, 9], [0, 1]))
        return found

    return encoder, rows


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert"])
@pytest.mark.parametrize("with_prefix", [True, False])
@pytest.mark.parametrize("pooling", ["cls", "mean", "mask", "first_last"])
@pytest.mark.parametrize("in_groups", [True, False])
def test_vectors_and_gradients_equal_those_of_padded_rows(
    family: str,
    with_prefix: bool,
    pooling: str,
    in_groups: bool,
    tiny: Callable[[str], Path],
    sentences: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attention in several groups of rows and without filler, as on a CPU; or in one group, as on a GPU."""
    monkeypatch.setattr("diffaug.models.padded_groups._GROUP_TOKENS", 60 if in_groups else 10**6)
    encoder, rows_of = make(tiny(family), pooling, with_prefix)
    rows = rows_of(sentences)
    weights = torch.randn(len(rows), 32, generator=torch.Generator().manual_seed(0))
    results = []
    packed = encoder.pack(rows, fill=not in_groups)
    assert (len(padded_groups(packed)) > 2) == in_groups
    for batch in (rows, packed):
        encoder.zero_grad()
        vectors = encoder.represent(batch)[: len(rows)]
        (vectors * weights).sum().backward()
        gradients = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}
        results.append((vectors.detach(), gradients))
    (plain, plain_gradients), (found, found_gradients) = results
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
    assert plain_gradients.keys() == found_gradients.keys()
    scale = max(float(gradient.abs().max()) for gradient in plain_gradients.values())
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(found_gradients[name], gradient, rtol=1e-3, atol=1e-5 * scale)


class Products(TorchFunctionMode):
    """How many states each linear layer is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            self.lengths.append(args[0].shape[-2])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert"])
def test_a_vector_read_at_one_token_needs_no_more_of_the_last_layer(
    family: str, tiny: Callable[[str], Path], sentences: list[str]
) -> None:
    seen = {}
    for pooling in ("cls", "mask", "mean"):
        encoder, rows_of = make(tiny(family), pooling, with_prefix=True)
        packed = encoder.pack(rows_of(sentences))
        with Products() as products:
            encoder.represent(packed)
        tokens, rows, _ = packed.size
        assert set(products.lengths) <= {tokens, rows}
        seen[pooling] = products.lengths.count(rows)
    # Attention's last product, and the two behind it.
    assert seen == {"cls": 3, "mask": 3, "mean": 0}


@pytest.mark.parametrize("before", [0, 8])
def test_batches_of_a_run_have_few_sizes(before: int) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes, waste = set(), []
    for _ in range(50):
        lengths = torch.randint(8, 40, (384,), generator=generator)
        mask = (torch.arange(40) < lengths[:, None]).long()
        packed = pack(PaddedBatch(torch.ones(384, 40, dtype=torch.long), mask), 0, before)
        sizes.add(packed.size)
        waste.append(packed.input_ids.shape[1] / int(lengths.sum()) - 1)
        assert torch.bincount(packed.sequence_ids).tolist() == packed.lengths.tolist()
        assert packed.lengths[:384].tolist() == lengths.tolist()
        assert 0 < int(packed.lengths.min()) <= int(packed.lengths.max()) <= packed.max_keys - before
    assert len(sizes) <= 4
    assert sum(waste) / len(waste) < 0.1
