"""ONNX exports: their folder format, and a runner that uses ONNX Runtime.

The folder contains `model.onnx`, the tokenizer's files and `diffaug_onnx.json`. No file has the name of a file of a
PyTorch model, so that no library mistakes the folder for one.
"""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.inference.runner import Runner, Vectors
from diffaug.models.backbone import load_tokenizer, loader
from diffaug.models.batch import PaddedBatch
from diffaug.models.config import ModelConfig, Provenance
from diffaug.models.encoder import Encoder
from diffaug.models.io.description import read_description

FORMAT_VERSION = 1
DESCRIPTION = "diffaug_onnx.json"
GRAPH = "model.onnx"
INPUTS = ("input_ids", "attention_mask")
OUTPUT = "sentence_embedding"
KEYS = {
    *("format_version", "diffaug_version", "precision", "width", "input", "model"),
    *("method", "recipe", "scores"),
}


def is_onnx_export(folder: Path) -> bool:
    """Whether ``folder`` is an ONNX export of diffaug."""
    return (folder / DESCRIPTION).is_file()


@loader
def load_onnx(folder: Path) -> tuple[OnnxRunner, PreTrainedTokenizerBase, Provenance]:
    """Load an export of `diffaug.integrations.onnx.export_onnx`.

    Raises:
        DiffaugError: ONNX Runtime is not installed, or a file is missing, damaged or inconsistent with the others.
    """
    description = read_description(folder / DESCRIPTION, "an ONNX model", FORMAT_VERSION, KEYS)
    try:
        config = ModelConfig.from_dict(description["model"])
    except DiffaugError as error:
        raise DiffaugError(f"{folder / DESCRIPTION}: {error}") from error
    runner = OnnxRunner(folder / GRAPH, config)
    if runner.width != description["width"]:
        raise DiffaugError(
            f"{folder / GRAPH} has vectors of width {runner.width}, but {DESCRIPTION} says {description['width']}; the "
            "files belong to different models, export the model again"
        )
    tokenizer = load_tokenizer(str(folder))
    if describe_input(runner.collator(tokenizer), config) != description["input"]:
        raise DiffaugError(f"the tokenizer in {folder} is not that of the exported model; export the model again")
    return runner, tokenizer, Provenance(description["method"], description["recipe"], description["scores"])


def describe_input(collator: Collator, config: ModelConfig) -> dict[str, Any]:
    """How a sentence is converted to ``input_ids``, for use of the graph without this library."""
    template = collator.template
    return {
        "lowercase": config.lowercase,
        "final_stop": config.final_stop,
        "sentence_ends": config.sentence_ends,
        "text_before": config.prompt or (" " if template.spaced else ""),
        "max_length": collator.max_length,
        "truncation_side": collator.tokenizer.truncation_side,
        "ids_before": list(template.before),
        "ids_after": list(template.after),
        "pad_id": collator.tokenizer.pad_token_id or 0,
    }


class OnnxRunner(Runner):
    """Runs an exported graph in ONNX Runtime.

    Args:
        path: the graph's file.
        config: how sentences are tokenised; ``max_length`` is the graph's number of positions.
    """

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self.path = path
        self.config = config
        self._device = torch.device("cpu")
        self._session = _session(path, self._device)
        names = tuple(entry.name for entry in self._session.get_inputs())
        outputs = self._session.get_outputs()
        if names != INPUTS or [entry.name for entry in outputs] != [OUTPUT]:
            raise DiffaugError(
                f"{path} must have the inputs {' and '.join(INPUTS)} and the output {OUTPUT}; "
                "it is not an export of diffaug"
            )
        self._width = int(outputs[0].shape[1])

    def __reduce__(self) -> tuple[type[OnnxRunner], tuple[Path, ModelConfig]]:
        return OnnxRunner, (self.path, self.config)  # another process opens the file itself

    @property
    def width(self) -> int:
        return self._width

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def encoder(self) -> Encoder:
        raise DiffaugError(
            f"the model in {self.path.parent} runs in ONNX Runtime and has no PyTorch module; load the original model"
        )

    def move(self, device: str | torch.device | None) -> None:
        try:
            wanted = torch.device("cpu" if device is None else device)
        except RuntimeError as error:
            raise DiffaugError(f"the model cannot run on the device {device!r}: {error}") from error
        if wanted != self._device:
            self._session = _session(self.path, wanted)
            self._device = wanted

    def on(self, device: str | torch.device) -> Runner:
        if str(device) == str(self._device):
            return self  # a session is thread-safe
        runner = OnnxRunner(self.path, self.config)
        runner.move(device)
        return runner

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        return Collator(tokenizer, self.config)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps(self.config.to_dict(), sort_keys=True).encode())
        for path in sorted(self.path.parent.glob(f"{GRAPH}*")):  # large models have separate weight files
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    def __call__(self, batch: PaddedBatch) -> Vectors:
        ids = batch.input_ids.numpy()
        mask = np.ones_like(ids) if batch.attention_mask is None else batch.attention_mask.numpy()
        vectors: Vectors = self._session.run([OUTPUT], dict(zip(INPUTS, (ids, mask), strict=True)))[0]
        return vectors


def required(name: str) -> ModuleType:
    """Import a package of the extra ``onnx``."""
    try:
        return import_module(name)
    except ImportError as error:
        raise DiffaugError(f"ONNX models need the package {name}: pip install 'diffaug[onnx]'") from error


def _session(path: Path, device: torch.device) -> Any:
    runtime = required("onnxruntime")
    if not path.is_file():
        raise DiffaugError(f"{path} does not exist; copy or export the model again")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # respects OMP_NUM_THREADS, as PyTorch does
    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(device.type)
    if provider not in runtime.get_available_providers():
        raise DiffaugError(
            f"the installed ONNX Runtime does not support the device {str(device)!r} (it has "
            f"{', '.join(runtime.get_available_providers())}); for NVIDIA GPUs install onnxruntime-gpu instead"
        )
    settings = {"device_id": device.index or 0} if device.type == "cuda" else {}
    try:
        session = runtime.InferenceSession(
            path, options, providers=[(provider, settings), *(["CPUExecutionProvider"] if settings else [])]
        )
    except Exception as error:  # ONNX Runtime has one exception class per error code
        reason = " ".join(str(error).split())[:300]
        raise DiffaugError(f"{path} cannot be loaded by ONNX Runtime {runtime.__version__}: {reason}") from error
    if session.get_providers()[0] != provider:
        raise DiffaugError(f"ONNX Runtime cannot use the device {str(device)!r}; see its messages above")
    return session
