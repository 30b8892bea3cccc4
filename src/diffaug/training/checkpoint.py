"""The state of an interrupted run: enough to go on as if nothing had happened.

A checkpoint is a folder of its own under `checkpoints/`, named by stage and step. It appears at once and whole, and
older ones go only after it is there, so that there is a good one to resume from whenever the power fails. Tensors are
kept as safetensors and everything else as JSON: no pickle.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from diffaug.distributed import world_size
from diffaug.errors import DiffaugError
from diffaug.files import atomic_folder
from diffaug.training.random_state import random_state, set_random_state

_NAME = re.compile(r"stage(\d)-step(\d{7})$")
_FORMAT_VERSION = 1


@dataclass
class Progress:
    """Where a run stands.

    Attributes:
        stage, step: the stage, and how many of its steps are done.
        best: the best selection score so far, where it was reached, and all scores there.
        stale: evaluations since then.
        curves: delta and kappa of stage 1, as in `CompatibilityCurves`.
        stage1_end: how and when stage 1 ended, in words.
        metrics_bytes: the length of the metrics file at this point.
        scaler: the state of fp16's loss scaling.
        fast_failed: the fast path failed its check in this stage, so that the plain one runs.
    """

    stage: int = 1
    step: int = 0
    best: dict[str, Any] | None = None
    stale: int = 0
    curves: dict[str, list[Any]] = field(default_factory=dict)
    stage1_end: str | None = None
    metrics_bytes: int = 0
    scaler: dict[str, Any] = field(default_factory=dict)
    fast_failed: bool = False


def save_checkpoint(
    folder: Path,
    progress: Progress,
    model: nn.Module,
    optimizer: Optimizer,
    names: dict[str, nn.Parameter],
    device: torch.device,
    main: bool,
) -> None:
    """Write a checkpoint and remove older ones. Every process calls this; the main one writes."""
    random_states = _gathered_random_states(device)
    if not main:
        return
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in names.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}|{key}"] = value
    for rank, states in enumerate(random_states):
        tensors |= {f"random.{rank}.{kind}": state for kind, state in states.items()}
    target = folder / f"stage{progress.stage}-step{progress.step:07d}"
    if not target.exists():  # a run that was resumed and stopped at once has it already
        with atomic_folder(target) as temporary:
            save_file(
                {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}, temporary / "state.safetensors"
            )
            description = {"format_version": _FORMAT_VERSION, "processes": world_size(), **asdict(progress)}
            (temporary / "state.json").write_text(json.dumps(description) + "\n", "utf-8")
    for other in checkpoints(folder):
        if other != target:
            shutil.rmtree(other, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, oldest first."""
    found = [path for path in folder.glob("stage*-step*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.name)


class Checkpoint:
    """A checkpoint that was read: first its progress, then, once the modules stand, its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            values = json.loads((folder / "state.json").read_text("utf-8"))
            self._tensors = load_file(folder / "state.safetensors")
            version, self.processes = values.pop("format_version"), values.pop("processes")
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise DiffaugError(f"{folder} is no whole checkpoint ({error}); start the run anew") from error
        if version != _FORMAT_VERSION:
            raise DiffaugError(f"{folder} has format version {version}; this diffaug reads {_FORMAT_VERSION}")
        self.progress = Progress(**values)

    def restore_model(self, model: nn.Module) -> None:
        """Put the weights back."""
        model.load_state_dict(self._part("model."))

    def restore_optimizer(self, optimizer: Optimizer, names: dict[str, nn.Parameter]) -> None:
        """Put the optimiser's state back."""
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for path, tensor in self._part("optimizer.").items():
            name, key = path.split("|")
            by_parameter.setdefault(name, {})[key] = tensor
        place = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
        state = {place[id(names[name])]: values for name, values in by_parameter.items()}
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})

    def restore_random_state(self, device: torch.device) -> None:
        """Put this process's random numbers back where they were."""
        if self.processes != world_size():
            raise DiffaugError(
                f"{self.folder} was written by {self.processes} process(es); resume it with as many, not {world_size()}"
            )
        set_random_state(device, self._part(f"random.{dist.get_rank() if world_size() > 1 else 0}."))

    def _part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in self._tensors.items() if name.startswith(prefix)}


def _gathered_random_states(device: torch.device) -> list[dict[str, Tensor]]:
    """The random states of all processes."""
    own = random_state(device)
    if world_size() == 1:
        return [own]
    gathered: list[dict[str, Tensor]] = [{} for _ in range(world_size())]
    for kind, state in own.items():
        parts = [torch.empty_like(state, device=device) for _ in range(world_size())]
        dist.all_gather(parts, state.to(device))
        for states, part in zip(gathered, parts, strict=True):
            states[kind] = part.cpu()
    return gathered
