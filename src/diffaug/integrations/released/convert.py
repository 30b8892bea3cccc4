"""Convert a released checkpoint to a diffaug model."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffaug.errors import DiffaugError
from diffaug.integrations.released.checkpoint import PICKLED, read_checkpoint
from diffaug.integrations.released.layout import Kind, Parts, Setting, recognise, setting_of, take_apart
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import build_backbone, complain, fill
from diffaug.models.config import DenseConfig, ModelConfig, PrefixConfig, Provenance
from diffaug.models.denoise import denoise_config
from diffaug.models.encoder import Encoder
from diffaug.models.io.fetch import FILES, find_folder
from diffaug.models.io.saved import save_model
from diffaug.models.template import Template
from diffaug.models.views.prefix import ReparametrisedPrefix

TEMPLATES = {"bert": 'This sentence of "{}" means[MASK].', "roberta": "This sentence : ' {} ' means[MASK]."}
"""The exact templates of the releases' evaluation: a space before the mask may be a separate token."""
PROMPTBERT_ENDS = ".?\"'"
"""PromptBERT's evaluation adds a full stop unless a sentence ends with one of these; "!" is not among them."""
# Batch size for empty templates.
_TABLE_BATCH = 64


@dataclass(frozen=True)
class Converted:
    """The result: which release the checkpoint belongs to, and whether it is unsupervised or supervised."""

    kind: Kind
    setting: Setting


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    kind: Kind | None = None,
    *,
    setting: Setting | None = None,
    template: str | None = None,
    allow_pickle: bool = False,
    revision: str | None = None,
    overwrite: bool = False,
) -> Converted:
    """Convert a released SimCSE, PromptBERT, DiffCSE or DiffAug checkpoint to a saved model with the same embeddings.

    Args:
        source: the checkpoint's folder, as trained or as converted by the authors' script, or its name on the hub.
        out: the folder to write.
        kind: the release; default: recognised by the names of the weights.
        setting: ``unsup`` or ``sup``, which differ for SimCSE and PromptBERT; default: recognised by weights and name.
        template: template of PromptBERT or DiffAug, with ``{}`` and ``[MASK]``; default: that of their scripts.
        allow_pickle: read pickled weights, with torch's ``weights_only`` loader.
        revision: branch, tag or commit on the hub.
        overwrite: replace ``out`` if it exists.

    Raises:
        DiffaugError: the checkpoint is not one of these, is incomplete, or is ambiguous.
    """
    # Download pickled weights only if they may be read.
    files = (*FILES, PICKLED) if allow_pickle else FILES
    checkpoint = read_checkpoint(find_folder(str(source), revision, files), allow_pickle=allow_pickle)
    kind = kind or recognise(checkpoint)
    setting = setting or setting_of(checkpoint, kind, Path(source).name)
    if template is not None and kind in ("simcse", "diffcse"):
        raise DiffaugError(f"{kind} has no template; leave it out")
    parts = take_apart(checkpoint, kind)
    where = str(checkpoint.folder)
    backbone = build_backbone(checkpoint.config, parts.backbone, where)
    template = template or TEMPLATES[checkpoint.family]
    if kind == "simcse":
        encoder = _simcse(backbone, parts, setting, where)
    elif kind == "promptbert":
        encoder = _promptbert(backbone, parts, setting, Template.build(checkpoint.tokenizer, template), template, where)
    elif kind == "diffcse":
        encoder = Encoder(backbone, ModelConfig(pooling="cls"))
    else:
        encoder = _diffaug(backbone, parts, template, where)
    save_model(Path(out), encoder.eval(), checkpoint.tokenizer, Provenance(kind), overwrite=overwrite)
    return Converted(kind, setting)


def _simcse(backbone: PreTrainedModel, parts: Parts, setting: Setting, where: str) -> Encoder:
    """The first token's state; if supervised, followed by the trained head."""
    width = int(backbone.config.hidden_size)
    trained = Encoder(backbone, ModelConfig(pooling="cls", head=(DenseConfig(width, width),)))
    # Required for unsupervised models too: without this head the model was trained with an unknown pooling.
    _fill_head(trained.head, parts, where)
    return trained if setting == "sup" else Encoder(backbone, ModelConfig(pooling="cls"))


def _promptbert(
    backbone: PreTrainedModel, parts: Parts, setting: Setting, template: Template, text: str, where: str
) -> Encoder:
    """The mask token's state; if supervised, minus the empty template's state, after or before the head.

    With BERT the head is that of the masked language model, and both states go through it before the subtraction. With
    RoBERTa the head is SimCSE's and follows the subtraction.
    """
    config = ModelConfig(pooling="mask", template=text, final_stop=True, sentence_ends=PROMPTBERT_ENDS)
    if setting == "unsup":
        return Encoder(backbone, config)
    width = int(backbone.config.hidden_size)
    behind = "LayerNorm.weight" in parts.head
    dense = DenseConfig(width, width)
    if behind:
        dense = DenseConfig(width, width, activation="gelu", layer_norm=float(backbone.config.layer_norm_eps))
    denoise = denoise_config(config, backbone, template, behind_head=behind)
    encoder = Encoder(backbone, replace(config, head=(dense,), denoise=denoise)).eval()
    _fill_head(encoder.head, parts, where)
    assert encoder.denoise is not None
    table = _bare_templates(backbone.eval(), template, denoise.lengths)
    with torch.inference_mode():
        encoder.denoise.table.copy_(encoder.head(table) if behind else table)
    return encoder


@torch.inference_mode()
def _bare_templates(backbone: PreTrainedModel, template: Template, lengths: int) -> Tensor:
    """(lengths, width): the mask token's state in the empty template, with positions as for a sentence of each length.

    The release counts positions from 0, also with RoBERTa, where the positions of sentences start after the padding id.
    """
    ids = torch.tensor([*template.before, *template.after])
    place = torch.arange(len(ids))
    behind_slot = place >= len(template.before)
    states = []
    for start in range(0, lengths, _TABLE_BATCH):
        moved = torch.arange(start, min(start + _TABLE_BATCH, lengths)).unsqueeze(1)  # (rows, 1)
        positions = place + behind_slot * moved
        out = backbone(input_ids=ids.expand(len(moved), -1), position_ids=positions)
        states.append(out.last_hidden_state[:, template.mask_position(len(template))])
    return torch.cat(states)


def _diffaug(backbone: PreTrainedModel, parts: Parts, template: str, where: str) -> Encoder:
    """The mask token's state with all prefixes. Their evaluation adds no full stop and does not use the head."""
    names = {
        "embedding.weight": "embedding.weight",
        **{f"trans1.{i}.{end}": f"mlp.{i}.{end}" for i in (0, 2) for end in ("weight", "bias")},
    }
    _complain_of_names(parts.prefix, names, where, "prefix_encoder")
    length = len(parts.prefix["embedding.weight"])
    if length % 2:
        raise DiffaugError(f"{where}: the prefix length must be even for two views, got {length}")
    settings = PrefixConfig(views=2, length=length // 2)
    prefix = ReparametrisedPrefix(settings, attention_shape(backbone))
    fill(prefix, {names[name]: tensor for name, tensor in parts.prefix.items()}, where, "prefix_encoder")
    return Encoder(backbone, ModelConfig(pooling="mask", template=template, prefix=settings), prefix)


def _fill_head(head: nn.Module, parts: Parts, where: str) -> None:
    """Load a release's head into one dense layer: linear, activation, and optional layer norm."""
    layers = {"0": "dense", "2": "LayerNorm"}
    names = {}
    for ours in head.state_dict():  # 0.0.weight: of the first dense layer, its linear part
        _, part, end = ours.split(".")
        names[f"{layers[part]}.{end}"] = ours
    _complain_of_names(parts.head, names, where, "pooler" if parts.rewritten else "mlp")
    fill(head, {names[name]: tensor for name, tensor in parts.head.items()}, where, "head")


def _complain_of_names(found: dict[str, Tensor], names: dict[str, str], where: str, part: str) -> None:
    """Raise, with the release's names, unless exactly these weights were found."""
    complain(
        where,
        missing=[f"{part}.{name}" for name in names.keys() - found.keys()],
        unexpected=[f"{part}.{name}" for name in found.keys() - names.keys()],
    )
