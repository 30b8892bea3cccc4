"""A cache of first stages: runs with the same first stage train it once.

Every stage has its own random seed, optimiser and batches. So stage 2 depends on stage 1 only through the weights, the
measurements, and the state of fp16's loss scaling. A run that loads these gives the same result as if it had trained
its first stage itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from diffaug.config import Recipe
from diffaug.data.cache import file_key
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file
from diffaug.methods.base import Method, Stage
from diffaug.version import __version__

# The one entry of the file's metadata.
_END = "end"


@dataclass(frozen=True)
class StageResult:
    """The result of a first stage, apart from the weights.

    Attributes:
        end: how and when it ended.
        curves: delta and kappa, as in `CompatibilityCurves`.
        scaler: the state of fp16's loss scaling.
        metrics: everything it logged, one mapping with `stage` and `step` per line.
    """

    end: str | None
    curves: dict[str, list[Any]]
    scaler: dict[str, Any]
    metrics: list[dict[str, Any]]


class CachedStage:
    """The file with the result of one first stage, shared by all runs with the same one.

    There is no lock: runs that train the stage at the same time all save it, and the last one stays.

    Args:
        path: the file, which may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, method: nn.Module) -> StageResult | None:
        """Load the weights into the method; None, and nothing is changed, if there is no file yet."""
        try:
            with safe_open(self._path, "pt") as file:
                values = json.loads(file.metadata()[_END])
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except (OSError, SafetensorError):
            return None
        method.load_state_dict(weights, strict=False)  # parameters that were frozen are unchanged
        return StageResult(end=values.pop("words"), **values)

    def save(self, method: nn.Module, learned: Collection[str], result: StageResult) -> None:
        """Save a finished stage. A failed write is ignored: this run does not need the file.

        Args:
            method: at the end of the stage.
            learned: the names of the parameters that were trained.
            result: everything else.
        """
        frozen = {name for name, _ in method.named_parameters()}.difference(learned)
        weights = {name: tensor for name, tensor in method.state_dict().items() if name not in frozen}
        try:
            with atomic_file(self._path) as temporary:
                copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
                values = {"words" if name == "end" else name: value for name, value in vars(result).items()}
                save_file(copies, temporary, {_END: json.dumps(values)})
        except (DiffaugError, SafetensorError):
            return


def first_stage_key(recipe: Recipe, method: Method, stages: Sequence[Stage], backbone: Hashable) -> str | None:
    """The cache key of a run's first stage; None if the run must train its own.

    Args:
        recipe: of the run.
        method: before its first step, on the device it is trained on.
        stages: as the method planned them.
        backbone: identifies the backbone's files.
    """
    data = recipe.data
    # A stage that selects checkpoints has more results than a `StageResult`; data passed as objects has no key.
    if len(stages) < 2 or stages[0].selects or data.nli is None:
        return None
    nli = file_key(data.nli, data.columns.get("nli"), data.on_bad)
    if nli is None:
        return None
    versions = (__version__, torch.__version__, transformers.__version__)
    parts = (versions, _machine(method), backbone, nli, _settings(recipe), _numbers(stages[0]))
    digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass"))
    # All weights, frozen ones too: with other modules for stage 2, other random numbers are drawn.
    for name, tensor in method.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _settings(recipe: Recipe) -> str:
    """The settings that affect stage 1."""
    values = recipe.to_dict()
    del values["name"], values["stage2"], values["data"]["unlabelled"], values["data"]["test"]
    for name in ("patience", "save_minutes", "trackers"):
        del values["loop"][name]
    return json.dumps(values, sort_keys=True)


def _numbers(stage: Stage) -> list[tuple[str, Any]]:
    """The planned stage, which may depend on other parts of the recipe."""
    streams = [(name, len(examples), size) for name, (examples, size) in stage.streams.items()]
    others = (field.name for field in fields(stage) if field.name != "streams")
    return [("streams", streams), *((name, getattr(stage, name)) for name in others)]


def _machine(method: Method) -> tuple[str, str | int]:
    """What affects the rounding of results."""
    device = next(method.parameters()).device
    return device.type, torch.cuda.get_device_name(device) if device.type == "cuda" else torch.get_num_threads()
