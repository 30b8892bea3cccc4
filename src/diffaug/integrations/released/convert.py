"""Converting a released checkpoint to a model of ours."""

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
"""The templates the releases are evaluated with, to the letter: a space before the mask may be a token of its own."""
PROMPTBERT_ENDS = ".?\"'"
"""PromptBERT's evaluation gives a sentence that ends in an exclamation mark a full stop all the same."""
# Bare templates that go through the backbone at a time.
_TABLE_BATCH = 64


@dataclass(frozen=True)
class Converted:
    """What was made: the release it came from, and whether it is its unsupervised or its supervised model."""

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
    """Turn a released SimCSE, PromptBERT, DiffCSE or DiffAug checkpoint into a saved model with the same embeddings.

    Args:
        source: the checkpoint's folder, as trained or as the authors' script rewrote it, or its name on the hub.
        out: the folder to write.
        kind: the release; left out, the names of the weights tell.
        setting: unsupervised or supervised SimCSE and PromptBERT embed differently; left out, weights and name tell.
        template: of PromptBERT or DiffAug, if not the one their scripts use, with ``{}`` and ``[MASK]``.
        allow_pickle: read pickled weights, through torch's reader for tensors only.
        revision: the version on the hub.
        overwrite: replace what is in ``out``.

    Raises:
        DiffaugError: a checkpoint that is none of these, is not whole, or leaves in doubt what it is.
    """
    # Pickled weights are fetched only if they may be read.
    files = (*FILES, PICKLED) if allow_pickle else FILES
    checkpoint = read_checkpoint(find_folder(str(source), revision, files), allow_pickle=allow_pickle)
    kind = kind or recognise(checkpoint)
    setting = setting or setting_of(checkpoint, kind, Path(source).name)
    if template is not None and kind in ("simcse", "diffcse"):
        raise DiffaugError(f"{kind} reads a sentence without a template; leave it out")
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
    """The first token's state; supervised, through the head it was trained with."""
    width = int(backbone.config.hidden_size)
    trained = Encoder(backbone, ModelConfig(pooling="cls", head=(DenseConfig(width, width),)))
    # Also of an unsupervised model: one without this head was trained with a pooling that nobody knows here.
    _fill_head(trained.head, parts, where)
    return trained if setting == "sup" else Encoder(backbone, ModelConfig(pooling="cls"))


def _promptbert(
    backbone: PreTrainedModel, parts: Parts, setting: Setting, template: Template, text: str, where: str
) -> Encoder:
    """The mask token's state; supervised, less the bare template's, on one or the other side of the head.

    With BERT the head is the masked language model's, and the template's state goes through it before it is taken
    off. With RoBERTa the head is SimCSE's and comes last.
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
    """(lengths, width): the mask token's state in a template around no sentence, as if there were one of each length.

    The release counts positions from 0, with RoBERTa too, whose sentences start behind the padding's number.
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
    """The mask token's state behind all prefixes. Their evaluation adds no full stop, and leaves the head out."""
    names = {
        "embedding.weight": "embedding.weight",
        **{f"trans1.{i}.{end}": f"mlp.{i}.{end}" for i in (0, 2) for end in ("weight", "bias")},
    }
    _complain_of_names(parts.prefix, names, where, "prefix_encoder")
    length = len(parts.prefix["embedding.weight"])
    if length % 2:
        raise DiffaugError(f"{where}: the prefix has {length} vectors, which do not make two views of equal length")
    settings = PrefixConfig(views=2, length=length // 2)
    prefix = ReparametrisedPrefix(settings, attention_shape(backbone))
    fill(prefix, {names[name]: tensor for name, tensor in parts.prefix.items()}, where, "prefix_encoder")
    return Encoder(backbone, ModelConfig(pooling="mask", template=template, prefix=settings), prefix)


def _fill_head(head: nn.Module, parts: Parts, where: str) -> None:
    """A release's head, as one dense layer of ours: linear, activation, and a norm if it has one."""
    layers = {"0": "dense", "2": "LayerNorm"}
    names = {}
    for ours in head.state_dict():  # 0.0.weight: of the first dense layer, its linear part
        _, part, end = ours.split(".")
        names[f"{layers[part]}.{end}"] = ours
    _complain_of_names(parts.head, names, where, "pooler" if parts.rewritten else "mlp")
    fill(head, {names[name]: tensor for name, tensor in parts.head.items()}, where, "head")


def _complain_of_names(found: dict[str, Tensor], names: dict[str, str], where: str, part: str) -> None:
    """Raise, in the release's own names, if not exactly these weights were found."""
    complain(
        where,
        missing=[f"{part}.{name}" for name in names.keys() - found.keys()],
        unexpected=[f"{part}.{name}" for name in found.keys() - names.keys()],
    )
