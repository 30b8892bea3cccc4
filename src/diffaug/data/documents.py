"""Documents: sentences with the other columns of their rows, read from any number of files in a stream.

Text is read line by line, empty lines included; tables by column. All files must have the same columns.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import lzma
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from diffaug.data.columns import Columns, Kind, Layout, find_layout
from diffaug.data.lines import COMPRESSIONS, read_lines
from diffaug.data.problems import SKIP_OPTION, OnBad, Reporter
from diffaug.data.read import open_source, usable_rows
from diffaug.data.table import HUB_PREFIX, MISSING, SAMPLE_PREFIX, Table, source_path
from diffaug.errors import DiffaugError

STDIN = "-"
_TABLES = {".csv", ".tsv", ".jsonl", ".parquet"}
_SAMPLE = 10_000  # lines that are read to estimate the number of lines of a file


@dataclass(frozen=True)
class Documents:
    """Consecutive rows: their sentences, and the other columns by name."""

    sentences: list[str]
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sentences)

    def digest(self, rows: int | None = None) -> str:
        """SHA-256, in hex, of the first ``rows``, or of all."""
        digest = hashlib.sha256()
        for row in islice(zip(self.sentences, *self.columns.values(), strict=True), rows):
            digest.update(repr(row).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


class DocumentReader:
    """Reads documents from files, folders, globs, data sets on the hub or standard input.

    Args:
        sources: the text column of .csv, .tsv, .jsonl and .parquet files, the lines of others; ``-`` is standard input.
        columns: ``{"sentence": NAME}``, where the column of the sentences is not called ``sentence`` or ``text``.
        keep: the other columns to read; default: all, except columns of lists in Parquet files.
        on_bad: what to do with rows that cannot be used.

    Attributes:
        sources: the files, in the order in which they are read.
        columns: names of the other columns.
        sample: the first values of each of these columns.

    Raises:
        DiffaugError: there is no such file, or a column is missing in one of the files.
    """

    def __init__(
        self,
        sources: str | Path | Sequence[str | Path],
        columns: Columns | None = None,
        keep: Sequence[str] | None = None,
        on_bad: OnBad = "error",
    ) -> None:
        given = [sources] if isinstance(sources, (str, Path)) else list(sources)
        self.sources = [source for one in given for source in expand(str(one))]
        self._columns = columns
        self._keep = keep
        self._on_bad = on_bad
        self.columns: tuple[str, ...] = ()
        self.sample: dict[str, list[Any]] = {}
        for source in self.sources:
            names, sample = self._inspect(source)
            if source == self.sources[0]:
                self.columns, self.sample = names, sample
            elif set(names) != set(self.columns):
                raise self._other_columns(source, names)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """The rows: the sentence, then the other columns."""
        for source in self.sources:
            if not is_table(source):
                reporter = Reporter(self._on_bad, SKIP_OPTION)
                stream: IO[bytes] | None = sys.stdin.buffer if source == STDIN else None
                used = 0
                for _, line in read_lines(Path(source), reporter, stream=stream):
                    used += 1
                    yield (line,)
                if reporter.bad:
                    reporter.finish(source, used)
                continue
            table, layout, reporter = self._open(source)
            places = dict(self._others(table, layout))
            indices = [places[name] for name in self.columns]
            used = 0
            for _, texts, cells in usable_rows(table, layout, reporter):
                used += 1
                yield (texts[0], *(_value(cells[i]) for i in indices))
            reporter.finish(table.name, used)
            if self._keep is None:
                for name, number in table.late_names.items():
                    warnings.warn(
                        f"{source}, {table.unit} {number:,}: the column {name!r} first occurs here and is not carried "
                        "along; name the columns with --keep",
                        stacklevel=2,
                    )

    def blocks(self, size: int) -> Iterator[Documents]:
        """The rows in blocks of ``size``."""
        rows = iter(self)
        while block := list(islice(rows, size)):
            sentences, *columns = (list(column) for column in zip(*block, strict=True))
            yield Documents(sentences, dict(zip(self.columns, columns, strict=True)))

    def estimated_rows(self) -> int | None:
        """About how many rows there are; None if that is unknown."""
        counts = [_estimated_rows(source) for source in self.sources]
        return None if None in counts else sum(count for count in counts if count is not None)

    def _open(self, source: str) -> tuple[Table, Layout, Reporter]:
        table, reporter = open_source(source, self._on_bad, SKIP_OPTION)
        return table, find_layout(table, Kind.SENTENCES, self._columns), reporter

    def _others(self, table: Table, layout: Layout) -> Iterable[tuple[str, int]]:
        """Name and index of each column that is carried along."""
        names = layout.column_names(table)
        places = {name: i for i, name in enumerate(names) if i != layout.indices[0] and name}
        if self._keep is None:
            return places.items()
        for name in self._keep:
            if name not in places:
                there = ", ".join(places) or "none"
                raise DiffaugError(f"{table.name} has no other column {name!r}; its other columns are: {there}")
        return [(name, places[name]) for name in self._keep]

    def _inspect(self, source: str) -> tuple[tuple[str, ...], dict[str, list[Any]]]:
        """The names and the first values of the other columns."""
        if is_table(source):
            if _is_stream(source):
                raise DiffaugError(f"{source} is a pipe, and a table is read twice; write it to a file first")
            table, layout, _ = self._open(source)
            places = dict(self._others(table, layout))
            rows = [cells for _, cells in table.head()[1 if layout.header else 0 :]]
            rows = [cells for cells in rows if layout.width in (None, len(cells))]
            return tuple(places), {name: [_value(cells[i]) for cells in rows] for name, i in places.items()}
        for option, given in (("--column", self._columns), ("--keep", self._keep)):
            if given:
                raise DiffaugError(
                    f"{option} is for .csv, .tsv, .jsonl and .parquet files; {source} is read line by line"
                )
        if not _is_stream(source):
            try:
                Path(source).open("rb").close()
            except OSError as error:
                raise DiffaugError(f"{source} cannot be read: {error.strerror}") from error
        return (), {}

    def _other_columns(self, source: str, names: Sequence[str]) -> DiffaugError:
        without, other = source, self.sources[0]
        differing = [name for name in self.columns if name not in names]
        if not differing:
            without, other = other, source
            differing = [name for name in names if name not in self.columns]
        return DiffaugError(
            f"{without} has no column {differing[0]!r}, which {other} has; all files must have the same columns, or "
            "choose those to carry along with --keep NAME"
        )


def read_documents(
    source: str | Path, columns: Columns | None = None, keep: Sequence[str] | None = None, on_bad: OnBad = "error"
) -> Documents:
    """All rows of files, without those whose sentence is empty; see `DocumentReader`.

    Raises:
        DiffaugError: they cannot be read, or there are none.
    """
    reader = DocumentReader(source, columns, keep, on_bad)
    rows = [row for row in reader if row[0].strip()]
    if not rows:
        raise DiffaugError(f"{source} contains no sentences")
    sentences, *others = (list(values) for values in zip(*rows, strict=True))
    return Documents(sentences, dict(zip(reader.columns, others, strict=True)))


def _value(cell: object) -> object:
    return None if cell is MISSING else cell


def expand(source: str) -> list[str]:
    """The files of a source: itself, the data files in a folder and its subfolders, or those that match a glob."""
    if source == STDIN or source.startswith(HUB_PREFIX):
        return [source]
    if source.startswith(SAMPLE_PREFIX):
        return [str(source_path(source))]
    path = Path(source).expanduser()
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file() and is_data_file(file))
        visible = [str(file) for file in inside if not any(part[0] in "._" for part in file.relative_to(path).parts)]
        if not visible:
            raise DiffaugError(f"the folder {source} has no .txt, .csv, .tsv, .jsonl or .parquet files")
        return visible
    if glob.has_magic(source) and not path.exists():
        found = sorted(file for file in glob.glob(str(path), recursive=True) if Path(file).is_file())
        if not found:
            raise DiffaugError(f"no file matches {source}")
        return found
    return [str(path)]


def is_table(source: str) -> bool:
    """Whether a source is read by column, not line by line."""
    return source.startswith(HUB_PREFIX) or (source != STDIN and _format(Path(source)) in _TABLES)


def finite(value: Any) -> Any:
    """The value of a column, or several, with None instead of numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    # Embeddings are long lists of numbers, known to be finite.
    if isinstance(value, list) and not (value and isinstance(value[0], float)):
        return [finite(each) for each in value]
    return value


def _is_stream(source: str) -> bool:
    """Whether a source can be read only once: standard input, or a pipe such as <(COMMAND) in a shell."""
    return source == STDIN or Path(source).is_fifo() or Path(source).is_char_device()


def is_data_file(path: Path) -> bool:
    """Whether a file in a folder of data is read."""
    return _format(path) in {".txt", *_TABLES}


def _format(path: Path) -> str:
    """The suffix without that of a compression."""
    return Path(path.stem if path.suffix.lower() in COMPRESSIONS else path).suffix.lower()


def _estimated_rows(source: str) -> int | None:
    if source.startswith(HUB_PREFIX) or _is_stream(source):
        return None
    path = Path(source)
    try:
        if _format(path) == ".parquet":
            import pyarrow.parquet

            return int(pyarrow.parquet.read_metadata(path).num_rows)
        with path.open("rb") as raw:
            opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower())
            file: Any = raw if opener is None else opener(raw)  # type: ignore[operator]
            lines = sum(1 for _ in islice(file, _SAMPLE))
            position = raw.tell()
        return lines if lines < _SAMPLE else lines * path.stat().st_size // max(1, position)
    except Exception:  # an estimate for a progress bar; reading the file will raise the error
        return None
