"""How released checkpoints name their weights, and which release a checkpoint comes from.

There are two layouts. *Trained*: as the authors' training code saves its `BertForCL` or `RobertaForCL`, with the
backbone under ``bert.`` or ``roberta.`` beside heads of its own. *Rewritten*: as their scripts convert it for
`AutoModel`, without that name, and with the trained head in the place of BERT's pooler.
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

# Numbers of positions and the like, which older versions of transformers saved as if they were weights.
_BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}
# Parts of a release that only its training uses, by the first name of their weights.
_TRAINING_ONLY: dict[Kind, set[str]] = {
    "simcse": {"lm_head"},
    "promptbert": set(),
    # SimCSE's script, which takes every "bert." out of a name, leaves the last two of aux_bert.
    "diffcse": {"mlp", "lm_head", "generator", "electra_head", "aux_bert", "aux_embeddings", "aux_encoder"},
    "diffaug": {"mlp", "lm_head", "sup_classifier"},
}


@dataclass(frozen=True)
class Parts:
    """A checkpoint's weights, by what they are for.

    Attributes:
        backbone: as transformers names them, without BERT's pooler, which no release uses as it was pre-trained.
        head: the release's own head (``dense.weight`` ...), whichever name it had; empty if there is none.
        prefix: DiffAug's prefix (``embedding.weight`` ...).
        rewritten: whether the authors' script had converted the checkpoint.
    """

    backbone: dict[str, Tensor]
    head: dict[str, Tensor]
    prefix: dict[str, Tensor]
    rewritten: bool


def recognise(checkpoint: Checkpoint) -> Kind:
    """The release a checkpoint comes from, as far as the names of its weights tell.

    Raises:
        DiffaugError: several have such names.
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
        f"the weights in {checkpoint.folder} have names that several releases use; say which it is with --kind "
        f"({', '.join(KINDS)})"
    )


def setting_of(checkpoint: Checkpoint, kind: Kind, name: str) -> Setting:
    """Whether a SimCSE or PromptBERT checkpoint is the unsupervised or the supervised one, which embed differently.

    SimCSE's weights have the same names in both; the authors' naming rule says which it is.

    Raises:
        DiffaugError: neither the weights nor the name tell.
    """
    if kind in ("diffcse", "diffaug"):
        return "unsup" if kind == "diffcse" else "sup"
    if kind == "promptbert":
        # Their script rewrites the supervised checkpoints and leaves the unsupervised ones as they were trained.
        return "sup" if _is_rewritten(checkpoint) or "mlp.LayerNorm.weight" in checkpoint.weights else "unsup"
    found = re.search(r"(?<![a-z])(unsup|sup)(?![a-z])", name.lower())
    if found is None:
        raise DiffaugError(
            f"{name} may be supervised SimCSE, whose head belongs to the model, or unsupervised, where it was for "
            "training only; say which with --setting sup or --setting unsup"
        )
    return "sup" if found[1] == "sup" else "unsup"


def take_apart(checkpoint: Checkpoint, kind: Kind) -> Parts:
    """Sort a checkpoint's weights.

    Raises:
        DiffaugError: weights that have no place in such a release, by name.
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
            # In the trained layout BERT's own, which nothing uses; in the rewritten one the release's head.
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
