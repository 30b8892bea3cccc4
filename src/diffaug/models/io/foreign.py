"""Load models of other libraries: plain transformers checkpoints and sentence-transformers folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.tokenization_utils_base import LARGE_INTEGER

from diffaug.errors import DiffaugError
from diffaug.models.backbone import fill, load_backbone, loader
from diffaug.models.config import Activation, DenseConfig, ModelConfig, Pooling
from diffaug.models.encoder import Encoder

MODULES = "modules.json"
# Settings of their Transformer module; older versions named the file after the backbone.
_TRANSFORMER_FILES = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
# Settings that are read here, or that do not change the vectors of text.
_TRANSFORMER_SETTINGS = {
    "max_seq_length",
    "do_lower_case",
    "transformer_task",
    "modality_config",
    "module_output_name",
    "unpad_inputs",
}

_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls"}
# Files of sentence-transformers before version 6 have one flag per pooling instead of a name.
_POOLING_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS: dict[str, Activation] = {"Tanh": "tanh", "Identity": "identity", "GELU": "gelu", "ReLU": "relu"}


# Our prompt applies to every sentence, so in an export it is their default prompt and also replaces their two
# predefined ones, which are empty.
EXPORTED_PROMPTS = ("default", "query", "document")


def is_sentence_transformers(folder: Path) -> bool:
    """Whether ``folder`` was saved by sentence-transformers."""
    return (folder / MODULES).is_file()


def load_transformers(
    source: str,
    config: ModelConfig,
    *,
    trust_remote_code: bool = False,
    revision: str | None = None,
    plain: bool = False,
) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """Load a plain checkpoint, with the pooling of ``config``; ``plain``: as for `load_backbone`."""
    backbone, tokenizer = load_backbone(source, trust_remote_code=trust_remote_code, revision=revision, plain=plain)
    return Encoder(backbone, config).eval(), tokenizer


@loader
def load_sentence_transformers(
    folder: Path, *, trust_remote_code: bool = False, plain: bool = False
) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """Load a sentence-transformers folder: Transformer, Pooling, then any number of Dense and Normalize modules.

    ``plain``: as for `load_backbone`.

    Raises:
        DiffaugError: a module or an option that changes the vectors is not supported.
    """
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}:
        raise DiffaugError(
            f"{folder} has the modules {', '.join(kinds)}; only Transformer and Pooling, followed by Dense and "
            "Normalize, are supported"
        )
    if "Normalize" in kinds and kinds.index("Normalize") != len(kinds) - 1:
        raise DiffaugError(f"{folder} has modules after Normalize, which is not supported")

    transformer = modules[0][1]
    settings = _transformer_settings(transformer)
    backbone, tokenizer = load_backbone(str(transformer), trust_remote_code=trust_remote_code, plain=plain)
    limit = settings.get("max_seq_length") or tokenizer.model_max_length
    lowercase = bool(settings.get("do_lower_case", False))
    prompt, prompts = _prompts(folder / "config_sentence_transformers.json")
    head = [_dense(path) for kind, path in modules if kind == "Dense"]
    config = ModelConfig(
        pooling=_pooling(modules[1][1] / "config.json"),
        head=tuple(dense for dense, _ in head),
        normalize="Normalize" in kinds,
        # Their limit includes special tokens, ours does not.
        max_length=None if limit >= LARGE_INTEGER else max(1, limit - tokenizer.num_special_tokens_to_add()),
        lowercase=lowercase,
        prompt=prompt.lower() if lowercase else prompt,  # they lowercase prompt and sentence together
        prompts=prompts,
    )
    if config.prompt and not _json(modules[1][1] / "config.json").get("include_prompt", True):
        raise DiffaugError(f"{folder} excludes its prompt from the pooling, which is not supported")
    encoder = Encoder(backbone, config)
    for module, (_, weights) in zip(encoder.head, head, strict=True):
        fill(module[0], weights, str(folder), "linear")  # type: ignore[index]
    return encoder.eval(), tokenizer


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Kind and folder of each module; a module of another library keeps its full name, and is then rejected."""
    found = []
    for entry in _json(folder / MODULES):
        try:
            kind, path = str(entry["type"]), folder / entry["path"]
        except (KeyError, TypeError) as error:
            raise DiffaugError(f"{folder / MODULES} lists a module without type and path: {entry!r:.80}") from error
        found.append((kind.rsplit(".", 1)[-1] if kind.startswith("sentence_transformers.") else kind, path))
    return found


def _transformer_settings(folder: Path) -> dict[str, Any]:
    path = next((folder / name for name in _TRANSFORMER_FILES if (folder / name).exists()), None)
    settings = {} if path is None else _json(path)
    if others := sorted(name for name in settings.keys() - _TRANSFORMER_SETTINGS if settings[name]):
        raise DiffaugError(f"{path} sets {', '.join(others)}, which is not supported")
    text = settings.get("modality_config", {}).get("text", {})
    if (
        settings.get("transformer_task", "feature-extraction") != "feature-extraction"
        or text.get("method_output_name", "last_hidden_state") != "last_hidden_state"
    ):
        raise DiffaugError(f"{path} uses another output than the last hidden state, which is not supported")
    return settings


def _pooling(path: Path) -> Pooling:
    settings = _json(path)
    names = settings.get("pooling_mode") or [n for switch, n in _POOLING_SWITCHES.items() if settings.get(switch)]
    names = [names] if isinstance(names, str) else list(names)
    if len(names) != 1 or names[0] not in _POOLINGS:
        raise DiffaugError(f"{path}: pooling must be mean or cls, got {'+'.join(names) or 'none'}")
    return _POOLINGS[names[0]]


def _dense(folder: Path) -> tuple[DenseConfig, dict[str, Tensor]]:
    settings = _json(folder / "config.json")
    activation = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    module, _, name = activation.rpartition(".")
    if not module.startswith("torch.nn") or name not in _ACTIVATIONS:
        raise DiffaugError(f"{folder}: a Dense layer with the activation {activation} is not supported")
    names = {settings.get(f"module_{end}_name") or "sentence_embedding" for end in ("input", "output")}
    if settings.get("use_residual", False) or names != {"sentence_embedding"}:
        raise DiffaugError(
            f"{folder}: a Dense layer with a residual, or on another output than the sentence embedding, is "
            "not supported"
        )
    weights = folder / "model.safetensors"
    try:
        state = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise DiffaugError(f"{weights} is missing or damaged ({error}); pickles are not supported") from error
    try:
        inputs, outputs = settings["in_features"], settings["out_features"]
    except KeyError as error:
        raise DiffaugError(f"{folder / 'config.json'} lacks {error}") from error
    dense = DenseConfig(inputs, outputs, settings.get("bias", True), _ACTIVATIONS[name])
    return dense, {key.removeprefix("linear."): tensor for key, tensor in state.items()}


def _prompts(path: Path) -> tuple[str, dict[str, str]]:
    """The default prompt, and all prompts that are not empty by name."""
    settings = _json(path, default={})
    if settings.get("truncate_dim") is not None:
        raise DiffaugError(f"{path} truncates vectors to {settings['truncate_dim']} dimensions, which is not supported")
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if name is not None and name not in prompts:
        raise DiffaugError(f"{path}: the default prompt {name!r} is not defined")
    named = {key: str(text) for key, text in prompts.items() if text}
    default = "" if name is None else str(prompts[name])
    if named == dict.fromkeys(EXPORTED_PROMPTS, default):  # the one prompt of a model that was exported
        named = {}
    return default, named


def _json(path: Path, default: Any = None) -> Any:
    if default is not None and not path.exists():
        return default
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DiffaugError(f"{path} cannot be read as JSON ({error})") from error
