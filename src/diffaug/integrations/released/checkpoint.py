"""Reading a released checkpoint: its configuration, its tokenizer, and its weights under the names they have there."""

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
# What a released config.json has beyond the backbone's settings: it would stay in ours for no reason.
_NOT_OF_THE_BACKBONE = ("architectures", "_name_or_path", "transformers_version", "prefix_len")


@dataclass(frozen=True)
class Checkpoint:
    """A released checkpoint.

    Attributes:
        folder: where it lies.
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
        """``bert`` or ``roberta``: also the name under which the authors' classes keep the backbone."""
        return str(self.config["model_type"])


def read_checkpoint(folder: Path, *, allow_pickle: bool = False) -> Checkpoint:
    """Read a folder as ``Trainer.save_model`` and ``save_pretrained`` write it.

    Args:
        folder: with config.json, the tokenizer's files, and the weights.
        allow_pickle: read weights that are pickled, with torch's reader that makes tensors and nothing else.

    Raises:
        DiffaugError: something is missing or damaged, a backbone of another family, or pickled weights without leave.
    """
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DiffaugError(f"{folder / 'config.json'} cannot be read as JSON ({error})") from error
    if not isinstance(config, dict) or config.get("model_type") not in ("bert", "roberta"):
        family = config.get("model_type") if isinstance(config, dict) else None
        raise DiffaugError(
            f"{folder / 'config.json'} is about a {family!r} model; released checkpoints are 'bert' or 'roberta'"
        )
    weights = _read_weights(folder, allow_pickle)
    kept = {key: value for key, value in config.items() if key not in _NOT_OF_THE_BACKBONE}
    return Checkpoint(folder, kept, weights, load_tokenizer(str(folder)))


def _read_weights(folder: Path, allow_pickle: bool) -> dict[str, Tensor]:
    safe, pickled = folder / SAFE, folder / PICKLED
    if safe.is_file():
        try:
            return load_file(safe)
        except (SafetensorError, OSError) as error:
            raise DiffaugError(f"{safe} is truncated or damaged ({error}); fetch it again") from error
    if not pickled.is_file():
        raise DiffaugError(f"{folder} has neither {SAFE} nor {PICKLED}")
    if not allow_pickle:
        raise DiffaugError(
            f"{pickled} is a pickle, which is not read unless you allow it: --allow-pickle reads it with torch's "
            "weights_only reader, which makes tensors and runs no code"
        )
    try:
        found = torch.load(pickled, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DiffaugError(
            f"{pickled} holds more than tensors and is not read: it could run any code on this machine"
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise DiffaugError(f"{pickled} is truncated or damaged ({str(error)[:200]}); fetch it again") from error
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise DiffaugError(f"{pickled} does not hold weights by name")
    return {str(name): tensor.contiguous() for name, tensor in found.items()}
