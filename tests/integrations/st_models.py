"""Tiny models of every kind, for the tests of other libraries that load them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from diffaug.embedder import Embedder
from diffaug.models.backbone import load_backbone
from diffaug.models.config import (
    AdapterConfig,
    DenoiseConfig,
    DenseConfig,
    FlowConfig,
    LoraConfig,
    ModelConfig,
    PrefixConfig,
    Provenance,
)
from diffaug.models.encoder import Encoder
from diffaug.models.views.build import build_views

BERT_TEMPLATE = 'This sentence of "{}" means [MASK].'
ROBERTA_TEMPLATE = "This sentence : ' {} ' means [MASK]."
PREFIX = PrefixConfig(views=2, length=3)
EVERYTHING = ModelConfig(
    "mask",
    BERT_TEMPLATE,
    final_stop=True,
    prefix=PREFIX,
    head=(DenseConfig(32, 16), DenseConfig(16, 8, False, "gelu")),
    normalize=True,
)
# Family and settings of a model of each kind.
KINDS: dict[str, tuple[str, ModelConfig]] = {
    **{name: ("bert", ModelConfig(name)) for name in ("cls", "mean", "first_last", "static_last", "last2")},
    "template": ("bert", ModelConfig("mask", BERT_TEMPLATE)),
    "template, final stop": ("bert", ModelConfig("mask", BERT_TEMPLATE, final_stop=True)),
    "template with spaces": ("roberta", ModelConfig("mask", ROBERTA_TEMPLATE, final_stop=True)),
    "template, denoised": (
        "bert",
        ModelConfig("mask", BERT_TEMPLATE, denoise=DenoiseConfig(lengths=118, template_tokens=11)),
    ),
    "PromptBERT, supervised": (
        "bert",
        ModelConfig(
            "mask",
            BERT_TEMPLATE,
            final_stop=True,
            head=(DenseConfig(32, 32, activation="gelu", layer_norm=1e-12),),
            denoise=DenoiseConfig(lengths=118, template_tokens=11, behind_head=True),
        ),
    ),
    "prefix": ("bert", ModelConfig("mean", prefix=PREFIX)),
    "prefix, RoBERTa": ("roberta", ModelConfig("cls", prefix=PREFIX)),
    "prefix, ModernBERT": ("modernbert", ModelConfig("mean", prefix=PREFIX)),
    "adapters": ("bert", ModelConfig("mean", adapter=AdapterConfig())),
    "LoRA": ("bert", ModelConfig("mean", lora=LoraConfig())),
    "flow": ("bert", ModelConfig("first_last", flow=FlowConfig(hidden=8))),
    "head": ("bert", ModelConfig("cls", head=(DenseConfig(32, 8),))),
    "normalisation": ("bert", ModelConfig("mean", normalize=True)),
    "lower case, prompt, limit": ("roberta", ModelConfig("mean", lowercase=True, prompt="query: ", max_length=9)),
    "everything": ("bert", EVERYTHING),
}


def build(folder: Path, config: ModelConfig, provenance: Provenance | None = None) -> Embedder:
    """A model around the backbone in ``folder``; all that is learned beside it is random."""
    torch.manual_seed(0)
    backbone, tokenizer = load_backbone(str(folder))
    encoder = Encoder(backbone, config, build_views(config, backbone))
    for part in (encoder.views, encoder.flow, encoder.denoise, encoder.head):
        for parameter in () if part is None else part.parameters():
            nn.init.normal_(parameter, std=0.3)
    if encoder.flow is not None:
        encoder.flow.initialised.fill_(True)  # as the flow of a trained model is
    return Embedder(encoder, tokenizer, provenance, device="cpu")
