"""The discriminator against BERT's own layers, run one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import BertModel

from diffaug.models.backbone import load_backbone
from diffaug.models.discriminator import Discriminator


def test_the_vector_stands_behind_the_embedding_layer_by_hand(tiny_bert: Path, sentences: list[str]) -> None:
    backbone, tokenizer = load_backbone(str(tiny_bert))
    assert isinstance(backbone, BertModel)
    torch.manual_seed(0)
    discriminator = Discriminator(backbone).eval()
    batch = tokenizer(sentences[:5], padding=True, return_tensors="pt")
    ids, attention = batch["input_ids"], batch["attention_mask"]
    vectors = torch.randn(5, 32, requires_grad=True)
    found = discriminator(ids, attention, vectors)
    assert found.shape == (*ids.shape, 2)
    for row in range(5):
        length = int(attention[row].sum())
        with torch.no_grad():
            states = backbone.embeddings(input_ids=ids[row : row + 1, :length])
            states[0, 0] = vectors[row]
            for layer in backbone.encoder.layer:
                states = layer(states)
                states = states[0] if isinstance(states, tuple) else states
            expected = states[0] @ discriminator.classifier.weight.T + discriminator.classifier.bias
        torch.testing.assert_close(found[row, :length], expected, rtol=1e-4, atol=1e-4)
    found[0, 3].sum().backward()
    assert vectors.grad is not None
    assert bool((vectors.grad.abs().sum(1) > 0).tolist() == [True, False, False, False, False])


@pytest.mark.parametrize("family", ["roberta", "distilbert", "modernbert", "electra", "albert", "mpnet", "deberta-v2"])
def test_every_family_reads_the_vector_and_not_the_first_token(tiny: Callable[[str], Path], family: str) -> None:
    backbone, _ = load_backbone(str(tiny(family)))
    discriminator = Discriminator(backbone).eval()
    ids = torch.tensor([[5, 6, 7, 8], [9, 6, 7, 8]])  # only the first tokens differ
    vectors = torch.randn(1, 32).expand(2, 32)
    first, second = discriminator(ids, None, vectors)
    torch.testing.assert_close(first, second)
    other, _ = discriminator(ids, None, torch.randn(2, 32))
    assert bool(((other - first).abs() > 1e-3).any())


def test_it_learns_apart_from_the_encoder(tiny_bert: Path) -> None:
    backbone, _ = load_backbone(str(tiny_bert))
    discriminator = Discriminator(backbone)
    own = {id(parameter) for parameter in discriminator.parameters()}
    assert not own & {id(parameter) for parameter in backbone.parameters()}
    assert isinstance(discriminator.classifier, nn.Linear)
    copied = dict(discriminator.backbone.named_parameters())
    assert all(torch.equal(parameter, copied[name]) for name, parameter in backbone.named_parameters())
    assert all(name.startswith(("backbone.", "classifier.")) for name in discriminator.state_dict())
