"""Read vectors that `encode_files` wrote to Parquet: a folder of shards, or single files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffaug.data.documents import Documents, expand
from diffaug.errors import DiffaugError
from diffaug.inference.manifest import MANIFEST, Manifest, VectorSet
from diffaug.inference.outputs import shard_name
from diffaug.inference.parquet import EMBEDDING, SENTENCE, pyarrow_modules, stored_set
from diffaug.inference.quantize import dequantize
from diffaug.inference.runner import Vectors
from diffaug.inference.search import Hit, VectorStore, search_blocks
from diffaug.provenance import checksum

_BLOCK = 16_384  # rows in memory at a time


@dataclass(frozen=True)
class StoredVectors(VectorStore):
    """Vectors in Parquet files, read in blocks.

    Attributes:
        name: the first source, for messages.
        files: in order.
        vectors: what they have in common.
        rows: their number.
    """

    name: str
    files: tuple[Path, ...]
    vectors: VectorSet
    rows: int

    @classmethod
    def open(cls, sources: str | Path | Sequence[str | Path], *, verify: bool = False) -> StoredVectors | None:
        """Open the output of `encode_files`; None if the sources are something else.

        Args:
            sources: folders, files or globs.
            verify: compare the checksums of shards in folders with their manifests.

        Raises:
            DiffaugError: a shard is missing or has changed, an encode is unfinished, or the files belong to different
                models.
        """
        given = [sources] if isinstance(sources, (str, Path)) else list(sources)
        files: list[Path] = []
        for source in given:
            if (Path(source) / MANIFEST).is_file():
                files += _shards(Path(source), verify)
                continue
            found = [Path(file) for file in expand(str(source))]
            if not all(file.suffix.lower() == ".parquet" for file in found):
                return None
            files += found
        sets = [_read_set(file) for file in files]
        present = [one for one in sets if one is not None]
        if not present:
            if not files:  # of a folder without shards
                raise DiffaugError(f"{given[0]} contains no sentences")
            return None
        first = present[0][0]
        for file, one in zip(files, sets, strict=True):
            if one is None:
                raise DiffaugError(f"{file} holds no vectors of `diffaug encode`, but other files do; encode it first")
            other = one[0]
            first.require_model(other.fingerprint, other.model, str(files[0]))
            for setting, option in (("width", "--truncate-dim"), ("precision", "--precision"), ("columns", "--keep")):
                if getattr(other, setting) != getattr(first, setting):
                    raise DiffaugError(f"{file} and {files[0]} differ in {setting}; encode both with the same {option}")
        return cls(str(given[0]), tuple(files), first, sum(rows for _, rows in present))

    def blocks(self) -> Iterator[tuple[Documents, Vectors]]:
        """Rows with their vectors in float32."""
        for batch, vectors in self.batches():
            columns = {name: batch.column(name).to_pylist() for name in self.vectors.columns}
            yield Documents(batch.column(SENTENCE).to_pylist(), columns), vectors

    def load(self) -> tuple[Documents, Vectors]:
        """All rows with their vectors in float32.

        Raises:
            DiffaugError: there are none.
        """
        if not self.rows:
            raise DiffaugError(f"{self.name} contains no sentences")
        blocks = list(self.blocks())
        columns = {
            name: [v for documents, _ in blocks for v in documents.columns[name]] for name in self.vectors.columns
        }
        documents = Documents([text for documents, _ in blocks for text in documents.sentences], columns)
        return documents, np.concatenate([vectors for _, vectors in blocks])

    def batches(self) -> Iterator[tuple[Any, Vectors]]:
        """Record batches of pyarrow, and their vectors in float32."""
        pyarrow, parquet = pyarrow_modules("reading")
        for path in self.files:
            try:
                with parquet.ParquetFile(path) as file:
                    for batch in file.iter_batches(_BLOCK):
                        flat = batch.column(EMBEDDING).flatten().to_numpy(zero_copy_only=False)
                        stored = flat.reshape(len(batch), -1)
                        yield batch, dequantize(stored, self.vectors.precision, self.vectors.width)
            except (OSError, pyarrow.ArrowException, KeyError) as error:
                reason = " ".join(str(error).split())[:200]
                raise DiffaugError(f"{path} cannot be read: {reason}; encode it again") from error

    def schema(self) -> Any:
        """The schema of the files."""
        _, parquet = pyarrow_modules("reading")
        return parquet.read_schema(self.files[0])

    def search(self, queries: Vectors, k: int) -> list[list[Hit]]:
        """Exact search; see `Embedder.search`."""
        return search_blocks(self.blocks(), queries, k)


def _shards(folder: Path, verify: bool) -> list[Path]:
    """The files of a finished folder."""
    manifest = Manifest.load(folder / MANIFEST)
    if manifest.provenance is None:
        raise DiffaugError(f"the encode in {folder} is not finished; repeat its command to continue it")
    files = []
    for shard in sorted(manifest.shards.values(), key=lambda shard: shard.index):
        path = folder / shard_name(shard.index)
        if not path.is_file():
            raise DiffaugError(f"{path} is missing; repeat the command of {folder} to encode it again")
        if path.stat().st_size != shard.bytes or (verify and checksum(path) != shard.sha256):
            raise DiffaugError(
                f"{path} has changed since it was written; repeat the command of {folder} to encode it again"
            )
        files.append(path)
    return files


def _read_set(path: Path) -> tuple[VectorSet, int] | None:
    pyarrow, parquet = pyarrow_modules("reading")
    try:
        with parquet.ParquetFile(path) as file:
            found = stored_set(path, file.schema_arrow.metadata)
            return None if found is None else (found, int(file.metadata.num_rows))
    except (OSError, pyarrow.ArrowException) as error:
        raise DiffaugError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from error
