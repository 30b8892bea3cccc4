"""BERT without transformers' model classes: the same hidden states, vectors and fingerprint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel

from diffaug.embedder import Embedder
from diffaug.inference.runner import TorchRunner
from diffaug.models.backbone import load_backbone
from diffaug.models.plain_bert import PlainBert

TEXTS = ["A dog runs in the park.", "Yes.", "The market fell sharply after the news."]


def inner(embedder: Embedder) -> torch.nn.Module:
    assert isinstance(embedder.runner, TorchRunner)
    return embedder.runner._encoder.backbone


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
def test_hidden_states_are_those_of_transformers(tiny_bert: Path, padded: bool, shifted: bool) -> None:
    reference, _ = load_backbone(str(tiny_bert))
    plain, _ = load_backbone(str(tiny_bert), plain=True)
    assert isinstance(reference, BertModel)
    assert isinstance(plain, PlainBert)
    ids = torch.randint(5, 30, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.tensor([[9], [4], [1]]) if padded else None
    positions = torch.arange(3, 12)[None] if shifted else None
    options = {"attention_mask": None if mask is None else mask.long(), "position_ids": positions}
    with torch.no_grad():
        wanted = reference(input_ids=ids, output_hidden_states=True, **options)
        found = plain(input_ids=ids, output_hidden_states=True, **options)
        assert plain(input_ids=ids, **options).get("hidden_states") is None
    real = torch.ones(3, 9, dtype=torch.bool) if mask is None else mask
    for ours, theirs in zip(found["hidden_states"], wanted.hidden_states, strict=True):
        torch.testing.assert_close(ours[real], theirs[real], atol=1e-6, rtol=0)
    assert found.last_hidden_state[real].std() > 0.1  # guard: something was computed


def test_an_embedder_has_the_vectors_and_the_fingerprint_of_transformers(tiny_bert: Path, tmp_path: Path) -> None:
    embedder = Embedder.from_pretrained(tiny_bert, device="cpu")
    assert isinstance(inner(embedder), PlainBert)
    vectors, fingerprint = embedder.encode(TEXTS), embedder.fingerprint()
    assert isinstance(embedder.encoder.backbone, BertModel)  # whoever asks for the module gets transformers' own
    assert isinstance(inner(embedder), BertModel)
    np.testing.assert_allclose(embedder.encode(TEXTS), vectors, atol=1e-6)
    assert embedder.fingerprint() == fingerprint
    embedder.save(tmp_path / "saved")
    saved = Embedder.from_pretrained(tmp_path / "saved", device="cpu")
    assert isinstance(inner(saved), PlainBert)
    np.testing.assert_allclose(saved.encode(TEXTS), vectors, atol=1e-6)
    assert saved.fingerprint() == fingerprint


@pytest.mark.parametrize("family", ["roberta", "distilbert", "modernbert"])
def test_other_backbones_are_those_of_transformers(tiny: Callable[[str], Path], family: str) -> None:
    assert not isinstance(inner(Embedder.from_pretrained(tiny(family), device="cpu")), PlainBert)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("hidden_act", "relu"), ("hidden_act", "gelu_new"), ("position_embedding_type", "relative_key")],
)
def test_settings_that_change_the_states_are_left_to_transformers(
    tiny_bert: Path, tmp_path: Path, setting: str, value: str
) -> None:
    for file in tiny_bert.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, setting: value}))
    backbone, _ = load_backbone(str(tmp_path), plain=True)
    assert isinstance(backbone, BertModel)
