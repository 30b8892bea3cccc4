"""The weight names of released checkpoints, and how to recognise the release of a checkpoint.

There are two layouts. *Trained*: as saved by the authors' `BertForCL` or `RobertaForCL`, with the backbone under
``bert.`` or ``roberta.``, next to the heads. *Rewritten*: as converted by their scripts for `AutoModel`, without this
prefix and with the trained head in place of BERT's pooler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from diffaug.errors import DiffaugError
from diffaug.integrations.released.checkpoint import Checkpoint
from diffaug.models.backbone import complain

Kind = Literal["simcse", "promptbert", "diffcse", "diffaug"]
Setting = Literal["unsup", "sup"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Buffers that older versions of transformers saved with the weights.
_BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}
# Parts that are only used in training, by the first component of their weight names.
_TRAINING_ONLY: dict[Kind, set[str]] = {
    "simcse": {"lm_head"},
    "promptbert": set(),
    # The last two are what SimCSE's script, which removes every "bert." from a name, makes of aux_bert.
    "diffcse": {"mlp", "lm_head", "generator", "electra_head", "aux_bert", "aux_embeddings", "aux_encoder"},
    "diffaug": {"mlp", "lm_head", "sup_classifier"},
}


@dataclass(frozen=True)
class Parts:
    """A checkpoint's weights, by purpose.

    Attributes:
        backbone: with transformers' names, without BERT's pre-trained pooler, which no release uses.
        head: the release's head (``dense.weight`` ...), independent of its original name; empty if there is none.
        prefix: DiffAug's prefix (``embedding.weight`` ...).
        rewritten: whether the authors' script converted the checkpoint.
    """

    backbone: dict[str, Tensor]
    head: dict[str, Tensor]
    prefix: dict[str, Tensor]
    rewritten: bool


def recognise(checkpoint: Checkpoint) -> Kind:
    """Recognise the release of a checkpoint by the names of its weights.

    Raises:
        DiffaugError: several releases have such names.
    """
    firsts = {_head_of(name) for name in checkpoint.weights}
    names = checkpoint.weights.keys()
    if "prefix_encoder" in firsts:
        return "diffaug"
    if {"aux_bert", "electra_head"} & firsts or any(name.startswith(("mlp.net.", "pooler.net.")) for name in names):
        return "diffcse"
    if {"mlp.LayerNorm.weight", "pooler.LayerNorm.weight"} & names:
        return "promptbert"
    pooler = f"{checkpoint.family}.pooler.dense.weight" in names
    if "mlp.dense.weight" in names and not pooler:
        return "simcse"
    raise DiffaugError(
        f"the weights in {checkpoint.folder} have names that several releases use; choose the release with --kind "
        f"({', '.join(KINDS)})"
    )


def setting_of(checkpoint: Checkpoint, kind: Kind, name: str) -> Setting:
    """Recognise whether a SimCSE or PromptBERT checkpoint is unsupervised or supervised.

    SimCSE's weights have the same names in both cases, so the checkpoint's name decides.

    Raises:
        DiffaugError: neither the weights nor the name are conclusive.
    """
    if kind in ("diffcse", "diffaug"):
        return "unsup" if kind == "diffcse" else "sup"
    if kind == "promptbert":
        # Their script converts supervised checkpoints only.
        return "sup" if _is_rewritten(checkpoint) or "mlp.LayerNorm.weight" in checkpoint.weights else "unsup"
    found = re.search(r"(?<![a-z])(unsup|sup)(?![a-z])", name.lower())
    if found is None:
        raise DiffaugError(
            f"{name} may be supervised SimCSE, which uses its head, or unsupervised, which does not; choose with "
            "--setting sup or --setting unsup"
        )
    return "sup" if found[1] == "sup" else "unsup"


def take_apart(checkpoint: Checkpoint, kind: Kind) -> Parts:
    """Sort a checkpoint's weights by purpose.

    Raises:
        DiffaugError: there are weights that such a release does not have.
    """
    parts = Parts({}, {}, {}, _is_rewritten(checkpoint))
    unknown = []
    for name, tensor in checkpoint.weights.items():
        inner = name.removeprefix(f"{checkpoint.family}.")
        of_backbone = parts.rewritten or inner != name
        first, _, rest = inner.partition(".")
        if inner in _BUFFERS or (first in _TRAINING_ONLY[kind] and (parts.rewritten or inner == name)):
            continue
        if of_backbone and first in ("embeddings", "encoder"):
            parts.backbone[inner] = tensor
        elif of_backbone and first == "pooler":
            # In the trained layout BERT's own pooler, which is not used; in the rewritten layout the release's head.
            if parts.rewritten:
                parts.head[rest] = tensor
        elif first == "mlp" and inner == name:
            parts.head[rest] = tensor
        elif first == "prefix_encoder" and kind == "diffaug" and inner == name:
            parts.prefix[rest] = tensor
        else:
            unknown.append(name)
    complain(str(checkpoint.folder), unexpected=unknown)
    return parts


def _is_rewritten(checkpoint: Checkpoint) -> bool:
    return not any(name.startswith(f"{checkpoint.family}.") for name in checkpoint.weights)


def _head_of(name: str) -> str:
    return name.partition(".")[0]
