"""What holds for adapters and for LoRA alike."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from tiny_models import FAMILIES, build_tiny
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from view_modules import ADAPTER, LORA, Model, attach, make_rows

from diffaug.errors import DiffaugError
from diffaug.models.batch import PaddedBatch
from diffaug.models.views.adapter import Adapter
from diffaug.models.views.lora import Lora
from diffaug.training.execution.gradient_cache import GradientCache

Tokenizer = PreTrainedTokenizerBase
KINDS = ["adapter", "lora"]


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, wordpiece: Tokenizer) -> Model:
    return attach(request.param, build_tiny("bert", wordpiece))


def states(backbone: PreTrainedModel, rows: PaddedBatch) -> Tensor:
    with torch.no_grad():
        return backbone(input_ids=rows.input_ids, attention_mask=rows.attention_mask).last_hidden_state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_rows_of_both_views_go_together(kind: str, family: str, wordpiece: Tokenizer) -> None:
    model = attach(kind, build_tiny(family, wordpiece))
    rows = make_rows([0, 1, 1, 0])
    with torch.no_grad():
        mixed = model(rows)
        first, second = (
            model(replace(rows, view_ids=torch.zeros(4, dtype=int))),
            model(replace(rows, view_ids=torch.ones(4, dtype=int))),
        )
    assert (first - second).abs().amax((1, 2)).min() > 0.01
    tolerance = {"rtol": 1e-5, "atol": 1e-5 if "deberta" in family else 1e-9}
    torch.testing.assert_close(mixed[[0, 3]], first[[0, 3]], **tolerance)
    torch.testing.assert_close(mixed[[1, 2]], second[[1, 2]], **tolerance)


def test_gradients_reach_the_view_of_a_row_alone(model: Model) -> None:
    model.backbone.requires_grad_(False)
    model(make_rows([1, 1, 1, 1])).square().sum().backward()
    for name, parameter in model.views.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad[0].abs().max() == 0, name
        assert parameter.grad[1].abs().max() > 0, name
    assert all(parameter.grad is None for parameter in model.backbone.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_views_start_at_the_backbone_and_part(kind: str, wordpiece: Tokenizer) -> None:
    backbone = build_tiny("bert", wordpiece)
    rows = make_rows()
    before = states(backbone, rows)
    model = Model(backbone, Adapter(ADAPTER, backbone) if kind == "adapter" else Lora(LORA, backbone))
    assert torch.equal(model(rows), before)
    optimizer = torch.optim.SGD(model.views.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(make_rows([0, 0, 0, 0])).square().sum().backward()
        model(make_rows([1, 1, 1, 1])).square().sum().backward()
        optimizer.step()
    first, second = model(make_rows([0, 0, 0, 0])), model(make_rows([1, 1, 1, 1]))
    assert (first - second).abs().max() > 1e-3, "the same rows taught both views the same"


def test_the_backbone_alone_is_as_it_was(model: Model, wordpiece: Tokenizer) -> None:
    plain = build_tiny("bert", wordpiece).double()
    assert model.backbone.state_dict().keys() == plain.state_dict().keys()
    rows = make_rows()
    expected = states(plain, rows)
    assert torch.equal(states(model.backbone, rows), expected)
    assert not torch.allclose(model(rows), expected)
    assert torch.equal(states(model.backbone, rows), expected)


def test_a_layer_that_is_left_out_is_an_error(model: Model) -> None:
    model.backbone.encoder.layer = model.backbone.encoder.layer[:2]
    rows = make_rows()
    with pytest.raises(DiffaugError, match="only 4 of 6 layers used their views"):
        model(rows)
    assert not any(module._forward_hooks for module in model.backbone.modules())


@pytest.mark.parametrize("fails", ["before", "in", "after"])
def test_after_an_exception_the_backbone_is_as_before(model: Model, fails: str) -> None:
    """The exception comes before the first hooked layer, between hooked layers, or after the forward."""
    rows = make_rows()
    expected, with_views = states(model.backbone, rows), model(rows)
    assert not torch.allclose(with_views, expected)
    layers = {"before": model.backbone.embeddings, "in": model.backbone.encoder.layer[1], "after": model.backbone}

    def fail(*_: object) -> None:
        raise RuntimeError("half-way")

    handle = layers[fails].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="half-way"):
        model(rows)
    handle.remove()
    assert not any(module._forward_hooks for module in model.backbone.modules())
    assert torch.equal(states(model.backbone, rows), expected)
    assert torch.equal(model(rows), with_views)


def test_a_view_that_does_not_exist_is_an_error(model: Model) -> None:
    with pytest.raises(IndexError):
        model(make_rows([0, 1, 2, 0]))


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_has_hooks_of_its_own(model: Model, way: str) -> None:
    rows = make_rows()
    with torch.no_grad():
        expected = model(rows)
        other = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
        assert torch.equal(other(rows), expected)
        for parameter in other.views.parameters():
            parameter.zero_()
        assert torch.equal(model(rows), expected), "the copy's parameters are the model's"
        assert torch.equal(other(rows), states(other.backbone, rows)), "the copy runs with the model's parameters"
        # Nor do the hooks of the one change the other.
        with pytest.raises(DiffaugError, match="used their views"), model.views.applied(rows):
            assert torch.equal(states(other.backbone, rows), other(rows))


def test_the_same_in_bfloat16(model: Model) -> None:
    model.float()
    rows = make_rows()
    expected = model(rows)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(rows)
    assert (found.float() - expected).abs().mean() < 0.05
    found.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.views.parameters())
    # And with the whole model in it, as for inference.
    assert (model.bfloat16()(rows).float() - expected).abs().mean() < 0.05


def test_gradient_cache(model: Model) -> None:
    model.train()
    weight = torch.randn(4, 32, dtype=torch.double)

    def represent(rows: PaddedBatch) -> Tensor:
        return model(rows)[:, 0]

    def gradients(cached: bool) -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        cache = GradientCache(represent, 4, nullcontext)
        vectors = cache(make_rows()) if cached else represent(make_rows())
        (vectors * weight).sum().square().backward()
        if cached:
            cache.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain, cached = gradients(cached=False), gradients(cached=True)
    assert len(plain) == len(cached) > 12
    for expected, found in zip(plain, cached, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_is_refused(model: Model, reentrant: bool) -> None:
    model.backbone.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with pytest.raises(DiffaugError, match="cannot be combined with gradient checkpointing"):
        model.train()(make_rows())
    states(model.backbone, make_rows())  # without the views it is nobody's business
    model.eval()(make_rows())


def test_albert_shares_its_views_as_its_weights(wordpiece: Tokenizer) -> None:
    model = attach("adapter", build_tiny("albert", wordpiece))
    visits = []
    update = model.views.get_submodule("attention.0")
    assert isinstance(update, nn.Module)
    update.register_forward_hook(lambda *_: visits.append(1))
    model(make_rows())
    assert len(visits) == 2
