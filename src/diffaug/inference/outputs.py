"""Where `encode_files` writes: a folder of Parquet shards, a .npy, .jsonl or .parquet file, or a stream of JSON lines.

A folder, a .npy and a .jsonl file are written shard by shard. Every finished shard is recorded in a manifest with its
checksum, and an interrupted encode continues after the finished shards.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from diffaug.data.documents import DocumentReader, Documents, finite
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, exclusive_lock, flush, sweep, write_errors
from diffaug.inference.manifest import MANIFEST, Manifest, Shard, VectorSet
from diffaug.inference.parquet import arrow_schema, arrow_table, pyarrow_modules
from diffaug.inference.quantize import DTYPES, stored_width
from diffaug.provenance import checksum

FILE_SUFFIXES = (".npy", ".parquet", ".jsonl")
_NPY_HEADER = 128  # bytes: room for any number of rows


class Writer(ABC):
    """Turns the vectors of a shard into what the output stores; runs in the process that computed them."""

    @abstractmethod
    def __call__(self, index: int, documents: Documents, stored: NDArray[Any]) -> Any:
        """Convert or write a shard, and return what `Output.commit` needs."""


class Output(ABC):
    """An open output; a context manager, which holds the lock.

    Attributes:
        writer: converts shards; can be sent to other processes.
        ordered: shards must be committed in order.
        resumable: an interrupted encode continues after the finished shards.
        finished: shards that need not be encoded.
    """

    writer: Writer
    ordered = True
    resumable = True

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.finished: Mapping[int, Shard] = {}

    @property
    def rows(self) -> int:
        """The number of rows of the finished shards."""
        return sum(shard.rows for shard in self.finished.values())

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @abstractmethod
    def commit(self, written: Any) -> None:
        """Store a shard for good."""

    @abstractmethod
    def complete(self, provenance: Mapping[str, Any]) -> None:
        """Called after the last shard."""


def open_output(
    out: str | Path | IO[bytes], reader: DocumentReader, vectors: VectorSet, *, overwrite: bool = False
) -> Output:
    """Open the output that ``out`` names: a stream, a file by its suffix, or else a folder.

    Raises:
        DiffaugError: it is in use, belongs to another model or other settings, or cannot be written.
    """
    if not isinstance(out, (str, Path)):
        return StreamOutput(out)
    path = Path(out)
    if path.suffix == ".parquet" and not path.is_dir():
        return ParquetOutput(path, reader, vectors)
    if path.suffix in FILE_SUFFIXES and not path.is_dir():
        return AppendedOutput(path, vectors, overwrite)
    return FolderOutput(path, reader, vectors, overwrite)


def shard_name(index: int) -> str:
    """The file of a shard."""
    return f"shard-{index:06d}.parquet"


@dataclass(frozen=True)
class _ShardWriter(Writer):
    folder: Path
    schema: Any

    def __call__(self, index: int, documents: Documents, stored: NDArray[Any]) -> Shard:
        _, parquet = pyarrow_modules()
        path = self.folder / shard_name(index)
        with atomic_file(path) as temporary:
            parquet.write_table(arrow_table(documents, stored, self.schema), temporary)
            sha256, size = checksum(temporary), temporary.stat().st_size
        return Shard(index, len(documents), sha256, size, documents.digest())


class FolderOutput(Output):
    """A folder of Parquet files with a manifest."""

    ordered = False

    def __init__(self, folder: Path, reader: DocumentReader, vectors: VectorSet, overwrite: bool) -> None:
        super().__init__()
        schema = arrow_schema(reader, vectors)
        if folder.exists() and not folder.is_dir():
            raise DiffaugError(f"{folder} is a file; --out must be a folder, or end in {', '.join(FILE_SUFFIXES)}")
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        path = folder / MANIFEST
        if not path.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise DiffaugError(f"{folder} is not empty and has no {MANIFEST}; choose another folder")
        busy = f"{folder} is in use by another process; wait until it ends, or choose another folder"
        self._stack.enter_context(exclusive_lock(folder / ".lock", busy))
        try:
            earlier = Manifest.load(path) if path.exists() and not overwrite else None
            if earlier is not None and earlier.shards:
                self._manifest = earlier
                self._manifest.vectors.require_same(vectors, str(folder))
                self._manifest.keep_only(
                    [shard.index for shard in self._manifest.shards.values() if _intact(folder, shard)]
                )
            else:
                for shard in folder.glob("shard-*.parquet"):
                    shard.unlink()
                self._manifest = Manifest.create(path, vectors)
            sweep(folder)
        except BaseException:
            self._stack.close()
            raise
        self.finished = self._manifest.shards
        self.writer = _ShardWriter(folder, schema)
        self._folder = folder

    def commit(self, written: Shard) -> None:
        path = self._folder / shard_name(written.index)
        if not path.is_file():
            raise DiffaugError(
                f"{path} was written but is not there; something has removed it, or the worker that wrote it does not "
                "share this folder (with --engine ray, --out must be on a file system that all nodes share)"
            )
        self._manifest.add(written)

    def complete(self, provenance: Mapping[str, Any]) -> None:
        sweep(self._folder)  # what workers that were lost had begun
        self._manifest.complete(provenance)


def _intact(folder: Path, shard: Shard) -> bool:
    path = folder / shard_name(shard.index)
    if not path.is_file():
        warnings.warn(f"{path} is missing and will be encoded again", stacklevel=2)
        return False
    if path.stat().st_size != shard.bytes or checksum(path) != shard.sha256:
        warnings.warn(f"{path} has changed since it was written and will be encoded again", stacklevel=2)
        return False
    return True


@dataclass(frozen=True)
class _BytesWriter(Writer):
    """Rows as bytes: of an array, or JSON lines."""

    json: bool

    def __call__(self, index: int, documents: Documents, stored: NDArray[Any]) -> tuple[Shard, bytes]:
        if self.json:
            data = b"".join(json_line(documents, row, vector) for row, vector in enumerate(stored))
        else:
            data = np.ascontiguousarray(stored).tobytes()
        return Shard(index, len(documents), hashlib.sha256(data).hexdigest(), len(data), documents.digest()), data


def json_line(documents: Documents, row: int, vector: NDArray[Any]) -> bytes:
    """A row with its vector as a line of JSON."""
    # Nine significant digits are enough to restore a float32 exactly. JSON is UTF-8, whatever the terminal's encoding.
    numbers = [float(f"{x:.9g}") for x in vector.tolist()] if vector.dtype.kind == "f" else vector.tolist()
    others = {name: values[row] for name, values in documents.columns.items()}
    record = {**finite(others), "sentence": documents.sentences[row], "embedding": numbers}
    return json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


class AppendedOutput(Output):
    """A .npy or .jsonl file. Until it is complete it is called FILE.part; its manifest is beside it."""

    def __init__(self, path: Path, vectors: VectorSet, overwrite: bool) -> None:
        super().__init__()
        path = Path(os.path.realpath(path))  # a link stays, and the file that it names is written
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._header = _NPY_HEADER if path.suffix == ".npy" else 0
        self._vectors = vectors
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock")
        self._stack.enter_context(exclusive_lock(lock, f"{path} is being written by another process"))
        try:
            manifest = path.with_name(f"{self._part.name}.manifest")
            if manifest.exists() and self._part.exists() and not overwrite:
                self._manifest = Manifest.load(manifest)
                self._manifest.vectors.require_same(vectors, str(self._part))
            else:
                self._manifest = Manifest.create(manifest, vectors)
            with write_errors(self._part):
                self._file = self._stack.enter_context(self._part.open("a+b"))
                self._manifest.keep_only(self._intact())
                end = self._header + sum(shard.bytes for shard in self._manifest.shards.values())
                self._file.truncate(end)  # removes the shard under way, or makes room for the header
        except BaseException:
            self._stack.close()
            raise
        self.finished = self._manifest.shards
        self.writer = _BytesWriter(json=path.suffix == ".jsonl")

    def __exit__(self, *error: Any) -> None:
        if not self.finished:
            self._manifest.path.unlink(missing_ok=True)
            self._part.unlink(missing_ok=True)
        super().__exit__(*error)

    def _intact(self) -> list[int]:
        """The shards, from the first on, whose bytes are as recorded."""
        self._file.seek(self._header)
        intact: list[int] = []
        while (shard := self._manifest.shards.get(len(intact))) is not None:
            if hashlib.sha256(self._file.read(shard.bytes)).hexdigest() != shard.sha256:
                break
            intact.append(shard.index)
        return intact

    def commit(self, written: tuple[Shard, bytes]) -> None:
        shard, data = written
        with write_errors(self._part):
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        self._manifest.add(shard)

    def complete(self, provenance: Mapping[str, Any]) -> None:
        self._manifest.complete(provenance)
        with write_errors(self._path):
            self._file.close()
            if self._header:
                with self._part.open("r+b") as file:
                    file.write(_npy_header(self._manifest.rows, self._vectors))
            flush(self._part)
            self._part.replace(self._path)
            self._manifest.path.replace(self._path.with_name(f"{self._path.name}.manifest"))
            flush(self._path.parent)


def _npy_header(rows: int, vectors: VectorSet) -> bytes:
    """The header of a .npy file (format 1.0), padded to a fixed size so that it can be written last."""
    shape = (rows, stored_width(vectors.width, vectors.precision))
    content = repr({"descr": DTYPES[vectors.precision].str, "fortran_order": False, "shape": shape}).encode()
    room = _NPY_HEADER - 10
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", room) + content.ljust(room - 1) + b"\n"


@dataclass(frozen=True)
class _TableWriter(Writer):
    schema: Any

    def __call__(self, index: int, documents: Documents, stored: NDArray[Any]) -> Any:
        return arrow_table(documents, stored, self.schema)


class ParquetOutput(Output):
    """One Parquet file with a row group per shard. It appears when it is complete, and cannot be continued."""

    resumable = False

    def __init__(self, path: Path, reader: DocumentReader, vectors: VectorSet) -> None:
        super().__init__()
        _, parquet = pyarrow_modules()
        schema = arrow_schema(reader, vectors)
        self.writer = _TableWriter(schema)
        temporary = self._stack.enter_context(atomic_file(path))
        self._file = self._stack.enter_context(parquet.ParquetWriter(temporary, schema))

    def commit(self, written: Any) -> None:
        self._file.write_table(written)

    def complete(self, provenance: Mapping[str, Any]) -> None:
        self._file.add_key_value_metadata({"provenance": json.dumps(dict(provenance))})


class StreamOutput(Output):
    """JSON lines on a stream, such as standard output."""

    resumable = False

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self.writer = _BytesWriter(json=True)

    def commit(self, written: tuple[Shard, bytes]) -> None:
        self._stream.write(written[1])
        self._stream.flush()

    def complete(self, provenance: Mapping[str, Any]) -> None:
        pass
