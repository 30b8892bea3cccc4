"""Models made elsewhere: plain transformers checkpoints and sentence-transformers folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from diffaug.errors import DiffaugError
from diffaug.models.backbone import load_backbone
from diffaug.models.config import Activation, DenseConfig, ModelConfig, Pooling
from diffaug.models.encoder import Encoder

MODULES = "modules.json"

_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls"}
# Files written before sentence-transformers 6 hold a switch for each pooling instead of a name.
_POOLING_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS: dict[str, Activation] = {"Tanh": "tanh", "Identity": "identity", "GELU": "gelu", "ReLU": "relu"}


def is_sentence_transformers(folder: Path) -> bool:
    """Whether ``folder`` was saved by sentence-transformers."""
    return (folder / MODULES).is_file()


def load_transformers(
    source: str, config: ModelConfig, *, trust_remote_code: bool = False, revision: str | None = None
) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """A plain checkpoint, pooled as ``config`` says."""
    backbone, tokenizer = load_backbone(source, trust_remote_code=trust_remote_code, revision=revision)
    return Encoder(backbone, config).eval(), tokenizer


def load_sentence_transformers(
    folder: Path, *, trust_remote_code: bool = False
) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """A sentence-transformers folder: a Transformer, a Pooling, and any Dense and Normalize behind them.

    Raises:
        DiffaugError: a module or an option that would change the vectors and has no counterpart here.
    """
    modules = [(entry["type"].rsplit(".", 1)[-1], folder / entry["path"]) for entry in _json(folder / MODULES)]
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}:
        raise DiffaugError(
            f"{folder} is made of {', '.join(kinds)}; only a Transformer and a Pooling, followed by Dense and "
            "Normalize, can be read"
        )
    if "Normalize" in kinds and kinds.index("Normalize") != len(kinds) - 1:
        raise DiffaugError(f"{folder} has modules behind Normalize, which cannot be read")

    transformer = modules[0][1]
    settings = _json(transformer / "sentence_bert_config.json", default={})
    backbone, tokenizer = load_backbone(str(transformer), trust_remote_code=trust_remote_code)
    # Their limit counts the special tokens, ours does not.
    limit = settings.get("max_seq_length") or tokenizer.model_max_length
    head = [_dense(path) for kind, path in modules if kind == "Dense"]
    config = ModelConfig(
        pooling=_pooling(modules[1][1] / "config.json"),
        head=tuple(dense for dense, _ in head),
        normalize="Normalize" in kinds,
        max_length=max(1, limit - tokenizer.num_special_tokens_to_add()),
        lowercase=bool(settings.get("do_lower_case", False)),
        prompt=_prompt(folder / "config_sentence_transformers.json"),
    )
    if config.prompt and not _json(modules[1][1] / "config.json").get("include_prompt", True):
        raise DiffaugError(f"{folder} leaves its prompt out of the pooling, which cannot be read")
    encoder = Encoder(backbone, config)
    for i, (_, weights) in enumerate(head):
        encoder.head[i][0].load_state_dict(weights)  # type: ignore[index]
    return encoder.eval(), tokenizer


def _pooling(path: Path) -> Pooling:
    settings = _json(path)
    names = settings.get("pooling_mode") or [n for switch, n in _POOLING_SWITCHES.items() if settings.get(switch)]
    names = [names] if isinstance(names, str) else list(names)
    if len(names) != 1 or names[0] not in _POOLINGS:
        raise DiffaugError(f"{path}: pooling {'+'.join(names) or 'of no kind'} cannot be read, only mean or cls")
    return _POOLINGS[names[0]]


def _dense(folder: Path) -> tuple[DenseConfig, dict[str, Tensor]]:
    settings = _json(folder / "config.json")
    activation = settings.get("activation_function", "Tanh").rsplit(".", 1)[-1]
    if activation not in _ACTIVATIONS or settings.get("use_residual", False):
        raise DiffaugError(f"{folder}: a Dense layer with {activation} or a residual connection cannot be read")
    weights = folder / "model.safetensors"
    try:
        state = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise DiffaugError(f"{weights} is missing or damaged ({error}); pickled weights are never read") from error
    dense = DenseConfig(
        settings["in_features"],
        settings["out_features"],
        settings.get("bias", True),
        _ACTIVATIONS[activation],
    )
    return dense, {name.removeprefix("linear."): tensor for name, tensor in state.items()}


def _prompt(path: Path) -> str:
    settings = _json(path, default={})
    name = settings.get("default_prompt_name")
    return "" if name is None else str((settings.get("prompts") or {}).get(name) or "")


def _json(path: Path, default: Any = None) -> Any:
    if default is not None and not path.exists():
        return default
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DiffaugError(f"{path} cannot be read as JSON ({error})") from error
