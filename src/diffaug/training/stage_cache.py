"""First stages that several runs have in common: the first run trains it, the others take over how it ended.

Every stage starts with random numbers, an optimiser and batches of its own. So a stage 2 knows of stage 1 only what
stage 1 has taught the model, what it has measured, and how far fp16's loss scaling has got. A run that takes this over
comes out as if it had trained its first stage itself.
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

# The one entry of the file's description.
_END = "end"


@dataclass(frozen=True)
class Ending:
    """What a first stage leaves to the next, beside the weights.

    Attributes:
        words: how and when it ended.
        curves: delta and kappa, as `Readiness` keeps them.
        scaler: the state of fp16's loss scaling.
        metrics: all that it logged, a mapping with `stage` and `step` a line.
    """

    words: str | None
    curves: dict[str, list[Any]]
    scaler: dict[str, Any]
    metrics: list[dict[str, Any]]


class Beginning:
    """The end of one first stage, as a file that runs with the very same first stage have in common.

    Nobody waits for it: runs that train the stage at the same time all do, and the last one's file stays.

    Args:
        path: where the file is, or will be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def take_over(self, method: nn.Module) -> Ending | None:
        """Give the method the weights at the end of the stage; None, and nothing, if no run has left them yet."""
        try:
            with safe_open(self._path, "pt") as file:
                ending = Ending(**json.loads(file.metadata()[_END]))
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except (OSError, SafetensorError):
            return None
        method.load_state_dict(weights, strict=False)  # whoever did not learn is as it was
        return ending

    def keep(self, method: nn.Module, learned: Collection[str], ending: Ending) -> None:
        """Leave a finished stage to others, as far as the disk allows: to this run it makes no difference.

        Args:
            method: at the end of the stage.
            learned: the names of the parameters that have changed.
            ending: all else.
        """
        frozen = {name for name, _ in method.named_parameters()}.difference(learned)
        weights = {name: tensor for name, tensor in method.state_dict().items() if name not in frozen}
        try:
            with atomic_file(self._path) as temporary:
                copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
                save_file(copies, temporary, {_END: json.dumps(vars(ending))})
        except (DiffaugError, SafetensorError):
            return


def first_stage_key(recipe: Recipe, method: Method, stages: Sequence[Stage], backbone: Hashable) -> str | None:
    """What runs with the very same first stage have in common, and others do not; None if the run must train its own.

    Args:
        recipe: of the run.
        method: before its first step, on the device that it is trained on.
        stages: as the method planned them.
        backbone: by what the files it came from are known again.
    """
    data = recipe.data
    # A stage that may choose the result leaves more than an `Ending`; rows that were passed have no name to go by.
    if len(stages) < 2 or stages[0].number != 1 or recipe.released.best_from_stage1 or data.nli is None:
        return None
    nli = file_key(data.nli, data.columns.get("nli"), data.on_bad)
    if nli is None:
        return None
    versions = (__version__, torch.__version__, transformers.__version__)
    parts = (versions, _machine(method), backbone, nli, _settings(recipe), _numbers(stages[0]))
    digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass"))
    # All of the model, also what does not learn: stage 2 may ask for other modules, and they for other random numbers.
    for name, tensor in method.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _settings(recipe: Recipe) -> str:
    """The recipe without what is read only after stage 1, or only by people."""
    values = recipe.to_dict()
    del values["name"], values["stage2"], values["data"]["unlabelled"], values["data"]["test"]
    for name in ("patience", "save_minutes", "trackers"):
        del values["loop"][name]
    return json.dumps(values, sort_keys=True)


def _numbers(stage: Stage) -> list[tuple[str, Any]]:
    """The stage as it is planned, some of which may follow from other parts of the recipe."""
    streams = [(name, len(examples), size) for name, (examples, size) in stage.streams.items()]
    others = (field.name for field in fields(stage) if field.name != "streams")
    return [("streams", streams), *((name, getattr(stage, name)) for name in others)]


def _machine(method: Method) -> tuple[str, str | int]:
    """What decides about the last bits of a sum."""
    device = next(method.parameters()).device
    return device.type, torch.cuda.get_device_name(device) if device.type == "cuda" else torch.get_num_threads()
