"""Read a released checkpoint: configuration, tokenizer, and weights with their original names."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from diffaug.errors import DiffaugError
from diffaug.models.backbone import load_tokenizer

SAFE = "model.safetensors"
PICKLED = "pytorch_model.bin"
# Keys of a released config.json that are not settings of the backbone.
_NOT_OF_THE_BACKBONE = ("architectures", "_name_or_path", "transformers_version", "prefix_len")


@dataclass(frozen=True)
class Checkpoint:
    """A released checkpoint.

    Attributes:
        folder: the checkpoint's folder.
        config: the backbone's settings.
        weights: every tensor of the file.
        tokenizer: its tokenizer.
    """

    folder: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]
    tokenizer: PreTrainedTokenizerBase

    @property
    def family(self) -> str:
        """``bert`` or ``roberta``, which is also the backbone's attribute in the authors' classes."""
        return str(self.config["model_type"])


def read_checkpoint(folder: Path, *, allow_pickle: bool = False) -> Checkpoint:
    """Read a folder written by ``Trainer.save_model`` or ``save_pretrained``.

    Args:
        folder: with config.json, the tokenizer's files, and the weights.
        allow_pickle: read pickled weights, with torch's ``weights_only`` loader.

    Raises:
        DiffaugError: a file is missing or damaged, the backbone is not supported, or the weights are pickled and
            ``allow_pickle`` is off.
    """
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DiffaugError(f"{folder / 'config.json'} cannot be read as JSON ({error})") from error
    if not isinstance(config, dict) or config.get("model_type") not in ("bert", "roberta"):
        family = config.get("model_type") if isinstance(config, dict) else None
        raise DiffaugError(f"{folder / 'config.json'}: model_type must be 'bert' or 'roberta', got {family!r}")
    weights = _read_weights(folder, allow_pickle)
    kept = {key: value for key, value in config.items() if key not in _NOT_OF_THE_BACKBONE}
    return Checkpoint(folder, kept, weights, load_tokenizer(str(folder)))


def _read_weights(folder: Path, allow_pickle: bool) -> dict[str, Tensor]:
    safe, pickled = folder / SAFE, folder / PICKLED
    if safe.is_file():
        try:
            return load_file(safe)
        except (SafetensorError, OSError) as error:
            raise DiffaugError(f"{safe} is truncated or damaged ({error}); download it again") from error
    if not pickled.is_file():
        raise DiffaugError(f"{folder} has neither {SAFE} nor {PICKLED}")
    if not allow_pickle:
        raise DiffaugError(
            f"{pickled} is a pickle; pass --allow-pickle to read it with torch's weights_only loader, which runs "
            "no code"
        )
    try:
        found = torch.load(pickled, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DiffaugError(
            f"{pickled} contains more than tensors and could run arbitrary code; it is not read"
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise DiffaugError(f"{pickled} is truncated or damaged ({str(error)[:200]}); download it again") from error
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise DiffaugError(f"{pickled} does not contain a state dict")
    return {str(name): tensor.contiguous() for name, tensor in found.items()}
