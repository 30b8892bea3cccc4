"""The embedding layer: found in every family, changed for one forward, never silently."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from diffaug.errors import DiffaugError
from diffaug.models.backbone import load_backbone
from diffaug.models.embeddings import EmbeddingOutput, embedding_layer, reads_positions

SUPPORTED = ["bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "modernbert"]


@pytest.fixture
def backbone(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> PreTrainedModel:
    return load_backbone(str(tiny(request.param)))[0].eval()


def states(backbone: PreTrainedModel, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return backbone(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state


IDS = torch.tensor([[5, 6, 7, 8], [9, 6, 5, 4]])


@pytest.mark.parametrize("backbone", [*SUPPORTED, "mpnet", "deberta"], indirect=True)
def test_a_change_reaches_the_first_layer(backbone: PreTrainedModel) -> None:
    """What the layers compute from changed embeddings is what they compute from the embeddings of the other row."""
    plain = states(backbone, IDS)
    shapes = []

    def swap(embeddings: Tensor) -> Tensor:
        shapes.append(embeddings.shape)
        return embeddings.flip(0)

    with EmbeddingOutput(backbone).changed(swap):
        swapped = states(backbone, IDS)
    assert shapes == [(2, 4, backbone.config.hidden_size)]
    torch.testing.assert_close(swapped, plain.flip(0))
    assert not torch.allclose(swapped, plain, atol=1e-3)
    assert torch.equal(states(backbone, IDS), plain), "the change outlived its forward"


@pytest.mark.parametrize("backbone", SUPPORTED, indirect=True)
def test_the_changed_embeddings_are_the_first_hidden_state(backbone: PreTrainedModel) -> None:
    with EmbeddingOutput(backbone).changed(lambda embeddings: embeddings * 0 + 0.25), torch.no_grad():
        hidden = backbone(input_ids=IDS, output_hidden_states=True).hidden_states
    assert bool((hidden[0] == 0.25).all())


@pytest.mark.parametrize("backbone", ["bert"], indirect=True)
def test_gradients_flow_through_the_change(backbone: PreTrainedModel) -> None:
    vector = torch.zeros(2, 1, backbone.config.hidden_size, requires_grad=True)
    with EmbeddingOutput(backbone).changed(lambda embeddings: torch.cat([vector, embeddings[:, 1:]], dim=1)):
        backbone(input_ids=IDS).last_hidden_state.square().sum().backward()
    assert vector.grad is not None
    assert float(vector.grad.abs().sum()) > 0


@pytest.mark.parametrize("backbone", ["bert"], indirect=True)
def test_nothing_is_left_behind(backbone: PreTrainedModel) -> None:
    backbone.train()
    before, plain = torch.get_rng_state(), copy.deepcopy(backbone.state_dict())
    output = EmbeddingOutput(backbone)
    assert backbone.training
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(RuntimeError, match="half-way"), output.changed(lambda embeddings: embeddings):
        raise RuntimeError("half-way")
    assert not embedding_layer(backbone)._forward_hooks
    assert plain.keys() == backbone.state_dict().keys()


@pytest.mark.parametrize("backbone", ["bert"], indirect=True)
def test_a_change_that_took_no_part_is_an_error(backbone: PreTrainedModel) -> None:
    output = EmbeddingOutput(backbone)
    with pytest.raises(DiffaugError, match="ran 0 times"), output.changed(lambda embeddings: embeddings):
        pass
    with pytest.raises(DiffaugError, match="ran 2 times"), output.changed(lambda embeddings: embeddings):
        assert torch.equal(states(backbone, IDS), states(backbone, IDS))
    with (
        pytest.raises(ValueError, match=r"\(2, 4, 32\) came back as \(2, 3, 32\)"),
        output.changed(lambda embeddings: embeddings[:, 1:]),
    ):
        states(backbone, IDS)


@pytest.mark.parametrize("backbone", ["bert"], indirect=True)
def test_a_model_without_such_a_layer_is_refused(backbone: PreTrainedModel) -> None:
    # The model works on its embeddings by itself, outside of any module.
    backbone.encoder.layer[0].register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1, *inputs[1:]))
    with pytest.raises(DiffaugError, match="'bert' backbone has no embedding layer that can be changed"):
        embedding_layer(backbone)


@pytest.mark.parametrize("backbone", [*SUPPORTED, "mpnet"], indirect=True)
def test_families_that_read_positions(backbone: PreTrainedModel) -> None:
    assert reads_positions(backbone)


@pytest.mark.parametrize("backbone", ["deberta-v2"], indirect=True)
def test_relative_positions_are_not_read(backbone: PreTrainedModel) -> None:
    backbone.config.position_biased_input = False
    backbone.embeddings.position_biased_input = False
    assert not reads_positions(backbone)
