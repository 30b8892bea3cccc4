"""Fast dropout drops what torch's does, in the same places as its gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from diffaug.kernels import dropout as quick
from diffaug.kernels.dropout import FastDropout, attention, dropout
from diffaug.models.backbone import load_backbone


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_part_asked_for_is_dropped_and_the_rest_scaled_up(p: float) -> None:
    torch.manual_seed(0)
    ones = torch.ones(500, 1001)
    found = dropout(ones, p)
    assert found.unique().tolist() == [0.0, pytest.approx(1 / (1 - p))]
    spread = (p * (1 - p) / ones.numel()) ** 0.5
    assert float((found == 0).float().mean()) == pytest.approx(p, abs=5 * spread + 1e-5)


def test_every_number_has_the_same_chance() -> None:
    """Four decisions come out of one draw: none of the four, and no pair of them, may be special."""
    torch.manual_seed(0)
    kept = (dropout(torch.ones(100_000, 4), 0.3) > 0).double()
    torch.testing.assert_close(kept.mean(0), torch.full((4,), 0.7, dtype=torch.double), rtol=0, atol=0.01)
    assert float((torch.corrcoef(kept.T) - torch.eye(4)).abs().max()) < 0.02


def test_follows_the_random_state_and_the_mode() -> None:
    states = torch.randn(7, 9)
    torch.manual_seed(3)
    first, second = dropout(states, 0.4), dropout(states, 0.4)
    torch.manual_seed(3)
    assert torch.equal(dropout(states, 0.4), first)
    assert not torch.equal(first, second)
    assert dropout(states, 0.4, training=False) is states
    assert dropout(states, 0.0) is states
    assert float(dropout(states, 1.0).abs().sum()) == 0


def test_the_gradient_is_dropped_in_the_same_places() -> None:
    torch.manual_seed(0)
    states = torch.rand(50, 7, requires_grad=True)
    found = dropout(states, 0.3)
    (gradient,) = torch.autograd.grad(found.sum(), states)
    torch.testing.assert_close(gradient * states, found)


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_attention_is_torchs_where_nothing_is_dropped(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8, requires_grad=True)
    keep = torch.rand(2, 1, 5, 5) > 0.2
    keep[..., 0] = True
    given = {"none": None, "bool": keep, "float": torch.where(keep, 0.0, -1e9)}[mask]
    wanted = F.scaled_dot_product_attention(query, key, value, given, scale=0.3)
    monkeypatch.setattr(quick, "dropout", lambda weights, p: weights)
    torch.testing.assert_close(attention(query, key, value, given, 0.1, scale=0.3), wanted)


def test_a_model_in_training_uses_it_and_one_at_inference_does_not(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, _ = load_backbone(str(tiny_bert))
    calls = []
    plain = quick._Dropout.apply
    monkeypatch.setattr(quick._Dropout, "apply", lambda states, p: calls.append(states.dim()) or plain(states, p))
    ids = torch.ones(2, 5, dtype=torch.long)
    with FastDropout():
        trained = backbone.train()(input_ids=ids).last_hidden_state
        assert 4 in calls, "of attention weights"
        assert 3 in calls, "of states"
        assert not torch.equal(trained, backbone(input_ids=ids).last_hidden_state)
        calls.clear()
        inside = backbone.eval()(input_ids=ids).last_hidden_state
    assert not calls
    torch.testing.assert_close(inside, backbone(input_ids=ids).last_hidden_state)
