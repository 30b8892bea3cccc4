"""The manifest of a set of vectors: the model and settings, then one line for every finished shard.

It is a JSON Lines file that is only appended to, so that an interruption loses at most its last line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from diffaug.errors import DiffaugError
from diffaug.files import write_errors
from diffaug.inference.quantize import PRECISIONS, Precision

FORMAT = "diffaug vectors 1"
# Readers of a folder of Parquet files ignore names with an underscore.
MANIFEST = "_manifest"


@dataclass(frozen=True)
class VectorSet:
    """What all vectors of a set have in common.

    Attributes:
        fingerprint: of the model.
        model: its name or path, as it was given.
        width: the length of a vector.
        precision: how the components are stored.
        normalize: whether the vectors were scaled to length 1.
        columns: names of the other columns.
        shard_size: rows per shard.
    """

    fingerprint: str
    model: str | None
    width: int
    precision: Precision = "float32"
    normalize: bool = True
    columns: tuple[str, ...] = ()
    shard_size: int = 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"format": FORMAT, **asdict(self), "columns": list(self.columns)}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> VectorSet:
        """Read what `to_dict` returned."""
        if not isinstance(values, Mapping) or not str(values.get("format")).startswith("diffaug vectors"):
            raise DiffaugError(f"{where} does not describe vectors of diffaug")
        if values["format"] != FORMAT:
            raise DiffaugError(f"{where} was written by a newer version of diffaug ({values['format']})")
        try:
            found = cls(**{name: values[name] for name in cls.__dataclass_fields__})
            if found.precision not in PRECISIONS or not isinstance(found.width, int):
                raise ValueError("invalid width or precision")
            return replace(found, columns=tuple(found.columns))
        except (KeyError, TypeError, ValueError) as error:
            raise DiffaugError(f"{where} is damaged ({type(error).__name__}: {error}); encode again") from error

    def require_model(self, fingerprint: str, model: str | None, where: str) -> None:
        """Raise an error if the vectors are not those of this model."""
        if fingerprint != self.fingerprint:
            raise DiffaugError(
                f"{where} holds vectors of {_named(self.model, self.fingerprint)}, which cannot be combined with those "
                f"of {_named(model, fingerprint)}; use the same model for both"
            )

    def require_same(self, other: VectorSet, where: str) -> None:
        """Raise an error if ``other`` must not be written to the same place."""
        self.require_model(other.fingerprint, other.model, where)
        before, now = self.to_dict(), other.to_dict()
        for name in ("width", "precision", "normalize", "columns", "shard_size"):
            if before[name] != now[name]:
                raise DiffaugError(
                    f"{where} was started with {name} {before[name]}, now it is {now[name]}; repeat the first command, "
                    "choose another output, or start again with --overwrite"
                )


def _named(model: str | None, fingerprint: str) -> str:
    return f"{'another model' if model is None else model} (fingerprint {fingerprint[:12]})"


@dataclass(frozen=True)
class Shard:
    """A finished shard.

    Attributes:
        index: its number, starting at 0.
        rows: number of rows.
        sha256: of its file, or of its part of the file.
        bytes: the size of that.
        input: SHA-256 of the rows that were encoded.
    """

    index: int
    rows: int
    sha256: str
    bytes: int
    input: str


@dataclass
class Manifest:
    """The content of a manifest file.

    Attributes:
        path: of the file.
        vectors: its first line.
        shards: the finished shards by number.
        provenance: of the finished set, see `diffaug.provenance`; None while it is incomplete.
    """

    path: Path
    vectors: VectorSet
    shards: dict[int, Shard] = field(default_factory=dict)
    provenance: Mapping[str, Any] | None = None

    @property
    def rows(self) -> int:
        """The number of rows of the finished shards."""
        return sum(shard.rows for shard in self.shards.values())

    @classmethod
    def create(cls, path: Path, vectors: VectorSet) -> Manifest:
        """Start a new file."""
        with write_errors(path):
            path.unlink(missing_ok=True)
        manifest = cls(path, vectors)
        manifest._append(vectors.to_dict())
        return manifest

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a file. An incomplete last line is ignored.

        Raises:
            DiffaugError: it cannot be read or is damaged.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DiffaugError(f"{path} cannot be read: {error.strerror}") from error
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        try:
            first, *others = (json.loads(line) for line in lines)
            manifest = cls(path, VectorSet.from_dict(first, str(path)))
            for line in others:
                manifest.provenance = line.get("complete")
                if "shard" in line:
                    shard = Shard(**line["shard"])
                    manifest.shards[shard.index] = shard
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DiffaugError(f"{path} is damaged ({type(error).__name__}); encode again with --overwrite") from error
        return manifest

    def add(self, shard: Shard) -> None:
        """Record a finished shard."""
        self.shards[shard.index] = shard
        self.provenance = None
        self._append({"shard": asdict(shard)})

    def complete(self, provenance: Mapping[str, Any]) -> None:
        """Record that all rows are encoded."""
        self.provenance = provenance
        self._append({"complete": dict(provenance)})

    def keep_only(self, indices: Iterable[int]) -> None:
        """Drop the other shards, for example because their files are gone; they are finished again later."""
        self.shards = {index: self.shards[index] for index in indices}
        self.provenance = None

    def _append(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        with write_errors(self.path), self.path.open("a+b") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read() != b"\n":  # the rest of an interrupted write
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
