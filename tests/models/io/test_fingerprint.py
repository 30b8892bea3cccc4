"""A fingerprint stays with the model and changes with any of its parts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import torch

from diffaug.embedder import Embedder
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import load_backbone
from diffaug.models.config import ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.io.fingerprint import fingerprint
from diffaug.models.views.prefix import FoldedPrefix, ReparametrisedPrefix


def test_saving_loading_and_moving_change_nothing(tiny_bert: Path, tmp_path: Path) -> None:
    embedder = Embedder.from_pretrained(tiny_bert, device="cpu")
    found = fingerprint(embedder.encoder)
    assert len(found) == 64
    embedder.save(tmp_path / "saved")
    assert fingerprint(Embedder.from_pretrained(tmp_path / "saved", device="cpu").encoder) == found
    shutil.copytree(tiny_bert, tmp_path / "elsewhere")
    assert fingerprint(Embedder.from_pretrained(tmp_path / "elsewhere", device="cpu").encoder) == found


def test_a_weight_or_a_setting_changes_it(tiny_bert: Path) -> None:
    encoder = Embedder.from_pretrained(tiny_bert, device="cpu").encoder
    found = {fingerprint(encoder)}
    found.add(fingerprint(Embedder.from_pretrained(tiny_bert, pooling="cls", device="cpu").encoder))
    encoder.config = replace(encoder.config, max_length=20)
    found.add(fingerprint(encoder))
    with torch.no_grad():
        next(encoder.parameters())[0, 0] += 1e-3
    found.add(fingerprint(encoder))
    assert len(found) == 4


def test_a_prefix_in_training_form_is_the_folded_one(tiny_bert: Path) -> None:
    backbone, _ = load_backbone(str(tiny_bert))
    config = ModelConfig(prefix=PrefixConfig(length=3))
    torch.manual_seed(0)
    assert config.prefix is not None
    prefix = ReparametrisedPrefix(config.prefix, attention_shape(backbone)).train()
    found = fingerprint(Encoder(backbone, config, prefix))
    assert fingerprint(Encoder(backbone, config, prefix.fold())) == found
    assert fingerprint(Encoder(backbone, config, FoldedPrefix(config.prefix, attention_shape(backbone)))) != found
