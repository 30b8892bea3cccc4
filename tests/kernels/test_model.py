"""A whole model with all our kernels against the plain one: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from triton_device import DEVICE, DTYPE, INTERPRETED

from diffaug import kernels
from diffaug.data.collate import collator_for
from diffaug.kernels import layer_norm, linear, residual_fusion
from diffaug.kernels.fused_operations import FusedOperations
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import load_backbone
from diffaug.models.config import ModelConfig, Pooling, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.views.prefix import FoldedPrefix
from diffaug.training.execution.half_precision import HalfPrecisionCopies

TOLERANCE = 1e-4 if INTERPRETED else 5e-2
PREFIX = PrefixConfig(views=2, length=3)


@pytest.fixture(autouse=True)
def _all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setattr(layer_norm, "_PROGRAMS", 8)
        monkeypatch.setattr(kernels, "have_triton", lambda: True)
        monkeypatch.setattr(kernels, "supports_attention", lambda *_: True)
        monkeypatch.setattr(FusedOperations, "applies", lambda *_: True)


def prepared(folder: Path, copy: Path) -> Path:
    """With few layers, heads that our attention takes (the tiny models have smaller ones), and dropout of nothing."""
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text("utf-8"))
    config |= {"n_heads" if "n_heads" in config else "num_attention_heads": 2}
    config |= {"n_layers" if "n_layers" in config else "num_hidden_layers": 2}
    config |= {"dropout" if "dropout" in config else "hidden_dropout_prob": 1e-12}
    config |= {"attention_dropout" if "attention_dropout" in config else "attention_probs_dropout_prob": 0.0}
    (copy / "config.json").write_text(json.dumps(config), "utf-8")
    weights = load_file(copy / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if ".layer.2." not in name}  # the last of three
    save_file(kept, copy / "model.safetensors", {"format": "pt"})
    return copy


SLOW = pytest.mark.slow_interpreted


@pytest.mark.parametrize(
    ("family", "norms"), [("bert", 2), pytest.param("distilbert", 1, marks=SLOW), pytest.param("albert", 1, marks=SLOW)]
)
@pytest.mark.parametrize("frozen", [False, pytest.param(True, marks=SLOW)], ids=["all", "prefix alone"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_gradients_are_those_of_the_plain_model(
    family: str,
    norms: int,
    frozen: bool,
    pooling: Pooling,
    tiny: Callable[[str], Path],
    sentences: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone, tokenizer = load_backbone(str(prepared(tiny(family), tmp_path / "backbone")))
    shape = attention_shape(backbone)
    prefix = FoldedPrefix(PREFIX, shape)
    torch.manual_seed(0)
    nn.init.normal_(prefix.blocks)
    encoder = Encoder(backbone, ModelConfig(pooling, prefix=PREFIX), prefix).train().to(DEVICE)
    backbone.requires_grad_(not frozen)
    collator = collator_for(encoder, tokenizer)
    ids, _ = collator.ids(sentences[:3])
    rows = collator.rows(ids, [i % 2 for i in range(len(ids))])
    learning = {name: p for name, p in encoder.named_parameters() if p.requires_grad}
    weights = torch.randn(len(rows), 32).to(DEVICE)
    plain = encoder(rows.to(DEVICE))
    (plain * weights).sum().backward()
    wanted = {name: p.grad.clone() for name, p in learning.items() if p.grad is not None}
    encoder.zero_grad()

    together: list[bool] = []
    side_by_side = linear._concatenated

    def watched(parts: Sequence[Tensor]) -> Tensor:
        found = side_by_side(parts)
        if len(parts) > 1:
            together.append(found.data_ptr() == parts[0].data_ptr())
        return found

    monkeypatch.setattr(linear, "_concatenated", watched)
    offsets: list[bool] = []
    dropped_norm = residual_fusion.dropped_norm

    def fused(states: Tensor, offset: Tensor | None, *others: Any) -> Tensor:
        offsets.append(offset is not None)
        return dropped_norm(states, offset, *others)

    monkeypatch.setattr(residual_fusion, "dropped_norm", fused)
    passing: list[bool] = []
    products = linear.linear

    def passed(states: Tensor, layers: Any, ones: Tensor | None, passes: bool) -> tuple[Tensor, ...]:
        passing.append(passes)
        return products(states, layers, ones, passes)

    monkeypatch.setattr(linear, "linear", passed)
    halved = HalfPrecisionCopies(encoder, encoder.forward, learning, DTYPE)  # type: ignore[arg-type]
    packed = encoder.pack(rows).to(DEVICE)
    for _ in range(2):  # in the second, layers that read the same are computed together
        encoder.zero_grad()
        found = halved(packed)
        torch.testing.assert_close(found[: len(rows)].float(), plain.detach(), rtol=TOLERANCE, atol=TOLERANCE)
        gradient = torch.zeros_like(found)
        gradient[: len(rows)] = weights
        with halved.accumulating():
            halved.backward(found, gradient)
        for name, reference in wanted.items():
            scale = float(reference.abs().max())
            torch.testing.assert_close(learning[name].grad, reference, rtol=TOLERANCE, atol=TOLERANCE * scale)
    # Queries, keys and values, whose gradients attention has left where one product reads them. Where all but the
    # prefix is frozen, those of the first layer have none.
    assert together == [True] * (shape.layers - frozen)
    # In the second forward, where dropout is behind a layer's part, and a linear layer with a bias before it.
    assert offsets == [True] * (shape.layers * norms)
    # What went past it was read by a linear layer; only behind the last attention, it was a part of that.
    assert sum(passing) == shape.layers * norms - (pooling == "cls" and family != "distilbert")
