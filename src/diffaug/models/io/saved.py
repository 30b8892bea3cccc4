"""Save and load models: one folder with `diffaug.json`, `diffaug.safetensors` and the tokenizer's files.

The folder deliberately has no `config.json` and no `model.safetensors`: other libraries would load a plain backbone and
silently drop template, prefix and head. The backbone's settings are in `diffaug.json`. Two small files let
sentence-transformers find our module (see `st_folder`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

from diffaug.errors import DiffaugError
from diffaug.files import atomic_folder
from diffaug.models.backbone import build_backbone, fill, load_tokenizer, loader
from diffaug.models.classifier import Classifier
from diffaug.models.config import SENTENCE_ENDS, VIEW_PARTS, ModelConfig, Provenance
from diffaug.models.encoder import Encoder
from diffaug.models.io.description import read_description
from diffaug.models.io.st_folder import check_nothing_added, write_st_files
from diffaug.models.views.build import build_views, check_plugin
from diffaug.version import __version__

FORMAT_VERSION = 3
DESCRIPTION = "diffaug.json"
WEIGHTS = "diffaug.safetensors"
_PARTS = ("backbone", *VIEW_PARTS, "flow", "denoise", "head")
_KEYS = {"format_version", "diffaug_version", "backbone", "model", "method", "recipe", "scores"}


def is_saved_model(folder: Path) -> bool:
    """Whether ``folder`` is a model saved by diffaug."""
    return (folder / DESCRIPTION).is_file()


def save_model(
    folder: Path,
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    provenance: Provenance,
    *,
    weights: dict[str, Tensor] | None = None,
    classifier: Classifier | None = None,
    overwrite: bool = False,
) -> None:
    """Write everything inference needs, atomically.

    ``weights``, as returned by `model_weights`, replaces the current weights.
    """
    description = {
        "format_version": FORMAT_VERSION,
        "diffaug_version": __version__,
        "backbone": encoder.backbone.config.to_diff_dict(),
        "model": encoder.config.to_dict(),
        "method": provenance.method,
        "recipe": provenance.recipe,
        "scores": provenance.scores,
    }
    if type(encoder.backbone).__module__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME):
        raise DiffaugError(f"a '{encoder.backbone.config.model_type}' backbone with remote code cannot be saved")
    state = {name: tensor.cpu() for name, tensor in (weights or model_weights(encoder)).items()}
    with atomic_folder(folder, overwrite=overwrite) as temporary:
        save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
        tokenizer.save_pretrained(temporary)
        if classifier is not None:
            classifier.save(temporary)
        (temporary / DESCRIPTION).write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n", "utf-8")
        # Our module puts the default prompt before every sentence; with one by name there would be two.
        write_st_files(temporary, None if encoder.config.prompt else encoder.config.prompts)


@loader
def load_model(
    folder: Path, *, allow_more_modules: bool = False, plain: bool = False
) -> tuple[Encoder, PreTrainedTokenizerBase, Provenance]:
    """Load a model that `save_model` wrote.

    Args:
        folder: the model's folder.
        allow_more_modules: accept modules, prompts and similar settings that sentence-transformers added; the caller
            handles them. By default they are an error.
        plain: as for `load_backbone`, for a model without views.

    Raises:
        DiffaugError: a file is missing, truncated or damaged, has a newer format, weights and description do not match,
            or the plugin of its views is not loaded.
    """
    description = read_description(folder / DESCRIPTION, "a diffaug model", FORMAT_VERSION, _KEYS)
    if not allow_more_modules:
        check_nothing_added(folder)
    try:
        config = ModelConfig.from_dict(_upgraded(description))
        check_plugin(config)
    except DiffaugError as error:
        raise DiffaugError(f"{folder / DESCRIPTION}: {error}") from error
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
    weights = _read_weights(folder / WEIGHTS)
    for name, tensor in weights.items():
        part, _, rest = name.partition(".")
        if part not in parts:
            raise DiffaugError(f"{folder / WEIGHTS}: unexpected weight {name!r}")
        parts[part][rest] = tensor

    plain = plain and config.views is None
    backbone = build_backbone(description["backbone"], parts["backbone"], source=str(folder / WEIGHTS), plain=plain)
    encoder = Encoder(backbone, config, build_views(config, backbone))
    modules = {**_learned_views(encoder), **_after_pooling(encoder)}
    for part in parts.keys() - {"backbone"}:
        fill(modules.get(part) or nn.Identity(), parts[part], str(folder / WEIGHTS), part)
    provenance = Provenance(description["method"], description["recipe"], description["scores"])
    return encoder.eval(), load_tokenizer(str(folder)), provenance


def model_weights(encoder: Encoder) -> dict[str, Tensor]:
    """A copy, on the same device, of all weights inference needs. A reparametrised prefix is merged."""
    modules = {"backbone": encoder.backbone, **_learned_views(encoder), **_after_pooling(encoder)}
    state: dict[str, Tensor] = {}
    for part, module in modules.items():
        if part == "prefix":
            module = _folded(module)
        if module is not None:
            state |= {f"{part}.{name}": tensor for name, tensor in module.state_dict().items()}
    return {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}


def _folded(prefix: nn.Module | None) -> nn.Module | None:
    from diffaug.models.views.prefix import ReparametrisedPrefix  # see `plain_bert`

    return prefix.fold() if isinstance(prefix, ReparametrisedPrefix) else prefix


def _learned_views(encoder: Encoder) -> dict[str, nn.Module]:
    """The views' module by the name of its kind; empty if no views are saved with the model."""
    if encoder.views is None or encoder.views.config is None:
        return {}
    kind = next(name for name in VIEW_PARTS if getattr(encoder.config, name) is not None)
    return {kind: encoder.views}


def _after_pooling(encoder: Encoder) -> dict[str, nn.Module | None]:
    return {"flow": encoder.flow, "denoise": encoder.denoise, "head": encoder.head}


def _upgraded(description: dict[str, Any]) -> Any:
    """The model's settings in the current format: add the keys that older formats lack."""
    settings, version = description["model"], description["format_version"]
    if isinstance(settings, dict) and version < 2:
        settings = {"adapter": None, "lora": None, "flow": None, **settings}
    if isinstance(settings, dict) and version < 3:
        settings = {"denoise": None, "sentence_ends": SENTENCE_ENDS, **settings}
        if isinstance(head := settings.get("head"), list):
            settings["head"] = [{"layer_norm": None, **d} if isinstance(d, dict) else d for d in head]
    return settings


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        pickles = [p.name for p in path.parent.iterdir() if p.suffix in {".bin", ".pt", ".pth", ".ckpt", ".pkl"}]
        hint = f"; {pickles[0]} is a pickle, which is not supported" if pickles else ""
        raise DiffaugError(f"{path} does not exist{hint}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise DiffaugError(f"{path} is truncated or damaged ({error}); copy or save the model again") from error
