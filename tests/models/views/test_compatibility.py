"""delta and kappa by hand, from the model's own keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffaug.data.collate import collator_for
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import load_backbone
from diffaug.models.config import ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.views.compatibility import measure_compatibility
from diffaug.models.views.prefix import ReparametrisedPrefix


@pytest.fixture
def encoder_and_rows(tiny_bert: Path, sentences: list[str]):  # type: ignore[no-untyped-def]
    backbone, tokenizer = load_backbone(str(tiny_bert))
    torch.manual_seed(0)
    config = PrefixConfig(2, 3)
    encoder = Encoder(
        backbone, ModelConfig(prefix=config), ReparametrisedPrefix(config, attention_shape(backbone), std=0.3)
    )
    collator = collator_for(encoder, tokenizer)
    return encoder.train(), collator.rows(collator.ids(sentences)[0])


def test_delta_is_the_mean_distance_of_the_two_views(encoder_and_rows) -> None:  # type: ignore[no-untyped-def]
    encoder, rows = encoder_and_rows
    encoder.backbone.eval()  # as a stage without dropout has it
    measured = measure_compatibility(encoder, rows)
    assert encoder.training, "the modes are put back"
    assert not encoder.backbone.training, "each part's own"
    encoder.eval()
    with torch.no_grad():
        views = [encoder.represent(replace(rows, view_ids=torch.full((len(rows),), v))) for v in (0, 1)]
    by_hand = sum(float((a - b).pow(2).sum().sqrt()) for a, b in zip(*views, strict=True)) / len(rows)
    assert measured.delta == pytest.approx(by_hand, rel=1e-5)
    assert measured.delta > 0.01


def test_kappa_is_the_gap_of_the_row_norms(encoder_and_rows: Callable[..., object]) -> None:
    encoder, rows = encoder_and_rows  # type: ignore[misc]
    own: list[float] = []
    tokens = rows.attention_mask.bool()

    def note(module: object, args: object, output: torch.Tensor) -> None:
        norms = output.pow(2).sum(-1).sqrt()  # (rows, length): the projection's output is a row of K or V
        own.append(float(norms[tokens].mean()))

    hooks = [
        projection.register_forward_hook(note)
        for layer in encoder.backbone.encoder.layer
        for projection in (layer.attention.self.key, layer.attention.self.value)
    ]
    measured = measure_compatibility(encoder, rows)
    for hook in hooks:
        hook.remove()
    last_forward = own[-2 * len(encoder.backbone.encoder.layer) :]  # the forward with both views in use
    blocks = encoder.eval().views.keys_and_values().detach()  # (layers, 2, views, heads, length, head_dim)
    prefix = []
    for layer in blocks:
        for kind in layer:
            rows_of_prefix = kind.permute(0, 2, 1, 3).reshape(6, -1)
            prefix.append(float(rows_of_prefix.norm(dim=-1).mean()))
    expected = sum(a - b for a, b in zip(last_forward, prefix, strict=True)) / len(prefix)
    assert measured.kappa == pytest.approx(expected, rel=1e-4)
