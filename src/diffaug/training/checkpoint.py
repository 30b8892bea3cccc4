"""The state of an interrupted run: enough to go on as if nothing had happened.

A checkpoint is a folder of its own under `checkpoints/`, named by stage and step. It appears at once and whole, and
`SHA256SUMS` in it has the checksums of its files. The one before it is kept, in case the newer one gets damaged.
Tensors are stored as safetensors and everything else as JSON: no pickle.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
from diffaug.provenance import checksum
from diffaug.training.random_state import random_state, set_random_state

_NAME = re.compile(r"stage(\d)-step(\d{7})$")
# Version 1 had no checksums.
_FORMAT_VERSION = 2
_STATE, _TENSORS, _CHECKSUMS = "state.json", "state.safetensors", "SHA256SUMS"


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
    """Write a checkpoint and remove all others except the one before it.

    Every process calls this; the main one writes.
    """
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
    # One of this step may be there: a damaged one, or that of a run that was resumed and stopped at once.
    with atomic_folder(target, overwrite=True) as temporary:
        save_file({k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}, temporary / _TENSORS)
        description = {"format_version": _FORMAT_VERSION, "processes": world_size(), **asdict(progress)}
        (temporary / _STATE).write_text(json.dumps(description) + "\n", "utf-8")
        sums = "".join(_line(temporary / name) for name in (_STATE, _TENSORS))
        (temporary / _CHECKSUMS).write_text(sums, "utf-8")
    found = checkpoints(folder)
    before = found[: found.index(target)][-1:]
    for other in found:
        # Later ones are damaged: the run went on from an earlier one.
        if other not in (target, *before):
            shutil.rmtree(other, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, oldest first."""
    found = [path for path in folder.glob("stage*-step*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.name)


class DamagedCheckpointError(DiffaugError):
    """A file of a checkpoint is missing or damaged."""


def last_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The last checkpoint that is not damaged, None if there is none at all; and a line about each damaged one.

    Raises:
        DiffaugError: all are damaged, or the last one was written by a newer version.
    """
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            return Checkpoint(path), damaged
        except DamagedCheckpointError as error:
            damaged.append(str(error))
    if damaged:
        raise DiffaugError(f"no checkpoint is left to resume from: {damaged[0]}; remove {folder} to start from step 0")
    return None, []


class Checkpoint:
    """A checkpoint that was read: first its progress, then, once the modules stand, its state.

    Raises:
        DamagedCheckpointError: a file is missing or damaged.
        DiffaugError: it was written by a newer version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with self._damage():
            _verify(folder)
            values = json.loads((folder / _STATE).read_text("utf-8"))
            version, self.processes = values.pop("format_version"), values.pop("processes")
            if version not in range(1, _FORMAT_VERSION + 1):
                raise DiffaugError(f"{folder} has format version {version}; this diffaug reads {_FORMAT_VERSION}")
            if version > 1 and not (folder / _CHECKSUMS).is_file():
                raise ValueError(f"{_CHECKSUMS} is missing")
            self._tensors = load_file(folder / _TENSORS)
            self.progress = Progress(**values)

    def restore_model(self, model: nn.Module) -> None:
        """Put the weights back."""
        with self._damage():
            model.load_state_dict(self._part("model."))

    def restore_optimizer(self, optimizer: Optimizer, names: dict[str, nn.Parameter]) -> None:
        """Put the optimiser's state back."""
        with self._damage():
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
        with self._damage():
            set_random_state(device, self._part(f"random.{dist.get_rank() if world_size() > 1 else 0}."))

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Errors of files that are missing or damaged, or do not fit the model."""
        try:
            yield
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, SafetensorError) as error:
            text = " ".join(str(error).split())[:200]
            raise DamagedCheckpointError(f"{self.folder} is damaged ({text})") from error

    def _part(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): t for name, t in self._tensors.items() if name.startswith(prefix)}


def _verify(folder: Path) -> None:
    """Compare the checksums of a checkpoint's files, if it has them."""
    path = folder / _CHECKSUMS
    if not path.is_file():
        return
    expected = path.read_text("utf-8")
    for name in (_STATE, _TENSORS):
        if _line(folder / name) not in expected:
            raise ValueError(f"{name} has another checksum than when it was written")


def _line(path: Path) -> str:
    """The line of a file in the form of `sha256sum`."""
    return f"{checksum(path)}  {path.name}\n"


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
