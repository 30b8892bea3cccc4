"""A model exported to ONNX: its folder, and ONNX Runtime as what runs it.

The folder holds `model.onnx`, the tokenizer's files and `diffaug_onnx.json`. Nothing in it is named as another library
or this one names a PyTorch model, so that nobody takes it for one.
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
from diffaug.models.backbone import load_tokenizer
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
    """Whether ``folder`` holds a model that was exported to ONNX here."""
    return (folder / DESCRIPTION).is_file()


def load_onnx(folder: Path) -> tuple[OnnxRunner, PreTrainedTokenizerBase, Provenance]:
    """Read what `diffaug.integrations.onnx.export_onnx` wrote.

    Raises:
        DiffaugError: ONNX Runtime is not installed, or a file is missing, damaged, or does not belong to the others.
    """
    description = read_description(folder / DESCRIPTION, "an ONNX model", FORMAT_VERSION, KEYS)
    try:
        config = ModelConfig.from_dict(description["model"])
    except DiffaugError as error:
        raise DiffaugError(f"{folder / DESCRIPTION}: {error}") from error
    runner = OnnxRunner(folder / GRAPH, config)
    if runner.width != description["width"]:
        raise DiffaugError(
            f"{folder / GRAPH} gives vectors of {runner.width} numbers, and {DESCRIPTION} beside it says "
            f"{description['width']}; the two belong to different models"
        )
    tokenizer = load_tokenizer(str(folder))
    if describe_input(runner.collator(tokenizer), config) != description["input"]:
        raise DiffaugError(f"the tokenizer in {folder} is not the one the model was exported with; export it again")
    return runner, tokenizer, Provenance(description["method"], description["recipe"], description["scores"])


def describe_input(collator: Collator, config: ModelConfig) -> dict[str, Any]:
    """How a sentence becomes a row of the graph's ``input_ids``, for whoever makes them without this library."""
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
    """A graph, run by ONNX Runtime.

    Args:
        path: the file of the graph.
        config: how sentences are read, its ``max_length`` being all that the graph has positions for.
    """

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self.path = path
        self.config = config
        self._device = torch.device("cpu")
        self._session = _session(path, self._device)
        names = tuple(entry.name for entry in self._session.get_inputs())
        outputs = self._session.get_outputs()
        if names != INPUTS or [entry.name for entry in outputs] != [OUTPUT]:
            raise DiffaugError(f"{path} does not turn {' and '.join(INPUTS)} into {OUTPUT}; it is no export of diffaug")
        self._width = int(outputs[0].shape[1])

    @property
    def width(self) -> int:
        return self._width

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def encoder(self) -> Encoder:
        raise DiffaugError(
            f"the model in {self.path.parent} is run by ONNX Runtime, and there is no PyTorch module to work on or to "
            "save; load the model that it was exported from"
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
            return self  # a session may be run by several threads
        runner = OnnxRunner(self.path, self.config)
        runner.move(device)
        return runner

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        return Collator(tokenizer, self.config)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps(self.config.to_dict(), sort_keys=True).encode())
        for path in sorted(self.path.parent.glob(f"{GRAPH}*")):  # a large model's weights lie beside the graph
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
    """A package of the extra ``onnx``."""
    try:
        return import_module(name)
    except ImportError as error:
        raise DiffaugError(f"ONNX models need the package {name}: pip install 'diffaug[onnx]'") from error


def _session(path: Path, device: torch.device) -> Any:
    runtime = required("onnxruntime")
    if not path.is_file():
        raise DiffaugError(f"{path} is missing; copy or export the model again")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # which follows OMP_NUM_THREADS, as for other models
    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(device.type)
    if provider not in runtime.get_available_providers():
        raise DiffaugError(
            f"the ONNX Runtime installed here does not run on the device {str(device)!r} (it has "
            f"{', '.join(runtime.get_available_providers())}); for NVIDIA GPUs install onnxruntime-gpu in its place"
        )
    settings = {"device_id": device.index or 0} if device.type == "cuda" else {}
    try:
        session = runtime.InferenceSession(
            path, options, providers=[(provider, settings), *(["CPUExecutionProvider"] if settings else [])]
        )
    except Exception as error:  # ONNX Runtime raises a class of its own for each of its codes
        reason = " ".join(str(error).split())[:300]
        raise DiffaugError(f"{path} cannot be run by ONNX Runtime {runtime.__version__}: {reason}") from error
    if session.get_providers()[0] != provider:
        raise DiffaugError(f"ONNX Runtime found no way to run on the device {str(device)!r}; its messages say why")
    return session
