"""Encode files of any size with constant memory, shard by shard."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from diffaug.cluster import Engine, check_engine
from diffaug.data.collate import Collator
from diffaug.data.columns import Columns
from diffaug.data.documents import DocumentReader
from diffaug.data.problems import OnBad
from diffaug.errors import DiffaugError
from diffaug.files import check_output
from diffaug.inference.manifest import VectorSet
from diffaug.inference.outputs import Output, open_output
from diffaug.inference.quantize import PRECISIONS, Precision
from diffaug.inference.runner import Runner
from diffaug.inference.workers import ShardEncoder, Task, encode_here, encode_in_processes, encode_on_ray
from diffaug.progress import rate_progress
from diffaug.provenance import RunProvenance, device_name, record_reads

SHARD_SIZE = 32_768
_STREAM_SIZE = 1_024  # rows after which a stream is written


@dataclass(frozen=True)
class EncodedFiles:
    """The result of `encode_files`.

    Attributes:
        rows: number of vectors.
        width: the length of a vector.
        continued: how many rows an earlier, interrupted call had already encoded.
    """

    rows: int
    width: int
    continued: int = 0


@dataclass(frozen=True)
class Model:
    """What encoding needs of an `Embedder`; ``width`` may be less than that of the runner."""

    runner: Runner
    collator: Collator
    name: str | None
    width: int


def encode_files(
    model: Model,
    sources: str | Path | Sequence[str | Path],
    out: str | Path | IO[bytes],
    *,
    columns: Columns | None = None,
    keep: Sequence[str] | None = None,
    on_bad: OnBad = "error",
    precision: Precision = "float32",
    normalize: bool = True,
    batch_size: int | None = None,
    shard_size: int | None = None,
    devices: Sequence[str | torch.device] | None = None,
    workers: int | None = None,
    engine: Engine = "local",
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> EncodedFiles:
    """Encode files; see `Embedder.encode_files`."""
    streamed = not isinstance(out, (str, Path))
    shard_size = shard_size or (_STREAM_SIZE if streamed else SHARD_SIZE)
    for name, value in (("shard_size", shard_size), ("workers", workers), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise DiffaugError(f"{name} must be at least 1, got {value}")
    if precision not in PRECISIONS:
        raise DiffaugError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    check_engine(engine)
    if engine == "ray" and devices is not None:
        raise DiffaugError("devices do not apply to the engine ray: each worker has a GPU or a core")
    reader = DocumentReader(sources, columns, keep, on_bad)
    if not streamed:
        _check_output(Path(str(out)), sources, [*reader.sources, model.name])
    runner = model.runner
    runners = [runner] if devices is None or workers is not None else [runner.on(device) for device in devices]
    fingerprint = runner.fingerprint()
    vectors = VectorSet(fingerprint, model.name, model.width, precision, normalize, reader.columns, shard_size)
    truncated = 0
    total = None if show_progress is False else reader.estimated_rows()
    with (
        record_reads() as hashes,
        open_output(out, reader, vectors, overwrite=overwrite) as output,
        rate_progress("encoding", "sentences", total, continued := output.rows, show_progress) as advance,
    ):
        counted = _Tasks(reader, output, shard_size)
        encoder = ShardEncoder(model.collator, runners, output.writer, precision, normalize, batch_size, model.width)
        if engine == "ray":
            results = encode_on_ray(encoder, iter(counted), advance, workers, ordered=output.ordered)
        elif workers is None:
            results = encode_here(encoder, iter(counted), advance)
        else:
            each = _worker_devices(runner, workers, devices)
            results = encode_in_processes(encoder, iter(counted), advance, each, ordered=output.ordered)
        try:
            for written, too_long in results:
                output.commit(written)
                truncated += too_long
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_interrupted(output)) from None
        finally:
            results.close()  # ends the worker processes
        provenance = RunProvenance.now(device_name(runner.device), {"sentences": hashes}, {"model": fingerprint})
        output.complete({"rows": counted.rows, **provenance.to_dict()})
    if truncated:
        warnings.warn(
            f"{truncated:,} of {counted.rows:,} sentences were truncated to {model.collator.max_length} tokens",
            stacklevel=2,
        )
    return EncodedFiles(counted.rows, model.width, continued)


class _Tasks:
    """The shards that are not finished yet; counts the rows of all."""

    def __init__(self, reader: DocumentReader, output: Output, size: int) -> None:
        self.rows = 0
        self._reader, self._output, self._size = reader, output, size

    def __iter__(self) -> Iterator[Task]:
        finished = dict(self._output.finished)
        for index, documents in enumerate(self._reader.blocks(self._size)):
            self.rows += len(documents)
            shard = finished.pop(index, None)
            if shard is None:
                yield index, documents
            elif documents.digest(shard.rows) != shard.input or len(documents) < shard.rows:
                first = index * self._size + 1
                raise DiffaugError(
                    f"the input has changed: its rows {first:,} to {first + shard.rows - 1:,} are not those of the "
                    f"finished shard {index}; restore it, choose another output, or start again with --overwrite"
                )
            elif len(documents) > shard.rows:  # the input has grown since
                if self._output.ordered:
                    raise DiffaugError("the input has grown since the encode was interrupted; use --overwrite")
                yield index, documents
        if finished:
            raise DiffaugError(
                f"the input has changed: it has {self.rows:,} rows, and the output has more; restore it, choose "
                "another output, or start again with --overwrite"
            )


def _worker_devices(
    runner: Runner, workers: int, devices: Sequence[str | torch.device] | None
) -> list[str | torch.device]:
    """One device per worker: those given, or all GPUs, in turn."""
    if devices is None:
        kind = runner.device.type
        gpus = torch.cuda.device_count() if kind == "cuda" else 0
        devices = [f"cuda:{number}" for number in range(gpus)] or [kind]
    return [devices[number % len(devices)] for number in range(workers)]


def _check_output(out: Path, given: str | Path | Sequence[str | Path], inputs: Sequence[str | None]) -> None:
    check_output(out, inputs)
    for folder in [given] if isinstance(given, (str, Path)) else given:
        # The same command would read its own output the next time.
        if Path(folder).is_dir() and Path(folder).resolve() in out.resolve().parents:
            raise DiffaugError(f"the output {out} is inside the input folder {folder}; choose another --out")


def _interrupted(output: Output) -> str:
    if not output.resumable:
        return ""
    stored = f"{output.rows:,} sentences in {len(output.finished):,} finished shards are stored"
    return f"{stored}; the same command continues from there"
