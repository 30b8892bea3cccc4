"""Provenance: what decided a run, an evaluation or a file of vectors, and what has changed since.

Readers of data files report the SHA-256 of every file that they have read to its end. `record_reads` collects them.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, NamedTuple

from diffaug.errors import DiffaugError
from diffaug.files import atomic_file
from diffaug.version import __version__

PROVENANCE = "provenance.json"
"""The file in the folder of a run."""

_PACKAGE = Path(__file__).parent
_PACKAGES = ("torch", "transformers")
_BLOCK = 1 << 20
_reads: ContextVar[dict[str, str] | None] = ContextVar("reads", default=None)


class Changes(NamedTuple):
    """What differs between two provenances, each as "X was A, is B".

    Attributes:
        inputs: data and models. Results from different inputs must not be mixed.
        environment: versions and device, which change results only by rounding, unless diffaug itself was changed.
    """

    inputs: list[str]
    environment: list[str]


@dataclass(frozen=True)
class RunProvenance:
    """Everything that decided a result, apart from settings and seeds.

    Attributes:
        data: for each role, such as ``nli`` or ``dev``, the SHA-256 of each file by its name, as it was read.
        models: fingerprints: ``backbone``, ``tokenizer`` and ``generator`` of a run; ``model`` of vectors or scores.
        versions: of diffaug, torch and transformers, and diffaug's git commit if it was run from a checkout.
        device: the name of the GPU, or the type of the CPU.
        changes: what changed while the run was interrupted; changes of inputs start with "forced".
    """

    data: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    changes: tuple[str, ...] = ()

    @classmethod
    def now(
        cls, device: str, data: Mapping[str, Mapping[str, str]] | None = None, models: Mapping[str, str] | None = None
    ) -> RunProvenance:
        """With the versions of this process; for ``device`` see `device_name`."""
        return cls(data or {}, models or {}, versions(), device)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "changes": list(self.changes)}

    @classmethod
    def from_dict(cls, values: Any) -> RunProvenance:
        """Read what `to_dict` returned; entries of later versions are ignored.

        Raises:
            DiffaugError: it is something else.
        """
        try:
            data = {role: _texts(files) for role, files in dict(values["data"]).items()}
            models, found = _texts(values["models"]), _texts(values["versions"])
            return cls(data, models, found, str(values["device"]), tuple(map(str, values["changes"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DiffaugError(f"not a valid provenance ({type(error).__name__}: {error})") from error

    def save(self, folder: Path) -> None:
        """Write it to a run's folder."""
        with atomic_file(folder / PROVENANCE) as temporary:
            temporary.write_text(json.dumps(self.to_dict(), indent=2) + "\n", "utf-8")

    @classmethod
    def load(cls, folder: Path) -> RunProvenance | None:
        """The provenance of the run in a folder; None if it was started by a version that did not record it.

        Raises:
            DiffaugError: the file is damaged.
        """
        path = folder / PROVENANCE
        try:
            return cls.from_dict(json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, DiffaugError) as error:
            raise DiffaugError(f"{path} is damaged ({error}); remove it to continue without a comparison") from error

    def changed(self, now: RunProvenance) -> Changes:
        """What differs ``now``. Files are compared by content and order, not by name; what one side lacks is ignored.

        A file is named only if the number of files is the same.
        """
        inputs = []
        for role in self.data.keys() & now.data.keys():
            before, after = self.data[role], now.data[role]
            if len(before) != len(after):
                inputs.append(f"data.{role} was {len(before)} files, is {len(after)}")
                continue
            for name, old, new in zip(after, before.values(), after.values(), strict=True):
                if old != new:
                    inputs.append(f"data.{role} ({Path(name).name}) was {_short(old)}, is {_short(new)}")
        inputs += _differences(self.models, now.models)
        environment = _differences(self.versions, now.versions)
        if self.device and now.device and self.device != now.device:
            environment.append(f"device was {self.device}, is {now.device}")
        return Changes(sorted(inputs), environment)

    def continued(self, now: RunProvenance, forced: bool) -> RunProvenance:
        """The provenance of a run that goes on: that of its start, with what has changed added to ``changes``."""
        changes = self.changed(now)
        new = [*(f"forced: {text}" for text in changes.inputs if forced), *changes.environment]
        return replace(self, changes=(*self.changes, *(text for text in new if text not in self.changes)))


@cache
def versions() -> dict[str, str]:
    """The versions of diffaug, torch and transformers, and diffaug's git commit if it runs from a checkout."""
    found = {"diffaug": __version__}
    if (commit := _commit()) is not None:
        found["commit"] = commit
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a build without metadata
            continue
    return found


def device_name(device: Any) -> str:
    """The name of a torch device: a GPU's, or the type of the CPU."""
    if getattr(device, "type", None) == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    machine = platform.processor() or platform.machine()
    kind = getattr(device, "type", str(device))
    return machine if kind == "cpu" else f"{kind} ({machine})"


@contextmanager
def record_reads() -> Iterator[dict[str, str]]:
    """Collect the SHA-256 of all data that is read in the block, by the name of its source."""
    found: dict[str, str] = {}
    token = _reads.set(found)
    try:
        yield found
    finally:
        _reads.reset(token)
    outer = _reads.get()
    if outer is not None:
        outer.update(found)


def report_read(name: str, sha256: str) -> None:
    """Called by readers when a source has been read to its end."""
    if (found := _reads.get()) is not None:
        found[name] = sha256


class HashingFile(io.RawIOBase):
    """A binary file that computes the SHA-256 of what is read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self._digest.update(data)
        buffer[: len(data)] = data
        return len(data)

    def finish(self) -> str:
        """Read what is left, for example after the end of compressed data, and return the SHA-256 in hex."""
        while data := self._file.read(_BLOCK):
            self._digest.update(data)
        return self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()


def checksum(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return HashingFile(file).finish()


@cache
def _commit() -> str | None:
    """The commit of the checkout that this package is run from, marked if files of the package were changed."""
    root = _PACKAGE.parents[1]
    if root / "src" / "diffaug" != _PACKAGE or not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+changes" if _git(root, "status", "--porcelain", "--", str(_PACKAGE)) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *command: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    shared = [name for name in before if name in now]
    return [
        f"{name} was {_short(before[name])}, is {_short(now[name])}" for name in shared if before[name] != now[name]
    ]


def _short(value: str) -> str:
    """The first characters of a long hash."""
    mark = "+changes" if value.endswith("+changes") else ""
    return value if len(value) < 40 else value[:12] + mark


def _texts(values: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in dict(values).items()}
