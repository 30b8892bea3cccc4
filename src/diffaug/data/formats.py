"""Sources of data: from a file, a data set on the hub or Python objects to a `Table`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from diffaug.data.given import Given, iterable_rows
from diffaug.data.published import published_table
from diffaug.data.sample import SAMPLE_PREFIX, sample_path
from diffaug.data.tables import Row, Table, table_from_numbered, table_from_objects
from diffaug.data.textfiles import (
    COMPRESSIONS,
    Line,
    Report,
    csv_rows,
    filled_lines,
    json_objects,
    numbered_lines,
    open_binary,
)
from diffaug.errors import DiffaugError

Source = str | os.PathLike[str] | Iterable[Any] | Given
"""A file, ``hub:owner/name/config/split``, ``sample:name``, or the rows themselves: an iterable of mappings, sequences
or strings, a `datasets.Dataset`, or a table of pandas, polars or pyarrow."""

HUB_PREFIX = "hub:"
FORMATS = {
    ".txt": "a text file",
    ".csv": "a CSV file",
    ".tsv": "a TSV file",
    ".jsonl": "a JSON Lines file",
    ".parquet": "a Parquet file",
}


@contextmanager
def open_table(source: Source, report: Report) -> Iterator[Table]:
    """Open any source. Lines that cannot be taken apart go to ``report`` while the table is read.

    Raises:
        DiffaugError: the source is not there, cannot be read, or is of no known format. A compressed file that ends
            early is an error whatever ``report`` does, since nobody knows what is missing.
    """
    if isinstance(source, str) and source.startswith(HUB_PREFIX):
        yield _hub_table(source)
    elif isinstance(source, (str, os.PathLike)):
        path = _path(source)
        suffix, compression = _endings(path)
        if suffix == ".parquet":
            with _parquet_table(path) as table:
                yield table
        else:
            with open_binary(path, compression) as file:
                lines = numbered_lines(file, path, compression, report)
                compressed = f", compressed with {COMPRESSIONS[compression]}" if compression else ""
                yield _text_table(suffix, lines, str(path), compressed, report)
    elif isinstance(source, Given):
        yield table_from_objects(source.rows, source.name, "Python objects")
    else:
        yield table_from_objects(iterable_rows(source), "the data given", "Python objects")


def _path(source: str | os.PathLike[str]) -> Path:
    if isinstance(source, str) and source.startswith(SAMPLE_PREFIX):
        return sample_path(source.removeprefix(SAMPLE_PREFIX))
    return Path(source).expanduser()


def _endings(path: Path) -> tuple[str, str]:
    """The ending that tells the format, and the one that tells the compression (or nothing)."""
    if path.is_dir():
        inside = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        listing = f" (in it: {', '.join(inside[:5])}{' ...' if len(inside) > 5 else ''})" if inside else ""
        raise DiffaugError(f"{path} is a directory; name a file{listing}")
    if not path.exists():
        raise DiffaugError(f"there is no file {path}")
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    suffix = Path(path.stem).suffix.lower() if compression else path.suffix.lower()
    if suffix not in FORMATS or (suffix == ".parquet" and compression):
        raise DiffaugError(
            f"cannot tell the format of {path}: its name must end in {', '.join(FORMATS)}, "
            "and all but the last may be compressed (.gz, .xz)"
        )
    return suffix, compression


def _text_table(suffix: str, lines: Iterator[Line], name: str, compressed: str, report: Report) -> Table:
    words = FORMATS[suffix] + compressed
    if suffix != ".jsonl":
        published, lines = published_table(suffix, lines, name, compressed, report)
        if published is not None:
            return published
    if suffix == ".csv":
        rows = csv_rows(lines, name, report)
        return Table(name, words, None, rows, "line", may_have_header=True, separator=",")
    filled = filled_lines(lines, name, report, harmless=suffix == ".txt")
    if suffix == ".tsv":
        # No quoting: in TSV files of sentences a quote is a quote.
        split: Iterator[Row] = ((number, text.split("\t")) for number, text in filled)
        return Table(name, words, None, split, "line", may_have_header=True, separator="\t")
    if suffix == ".jsonl":
        return table_from_numbered(json_objects(filled, name, report), name, words, "line")
    whole: Iterator[Row] = ((number, (text,)) for number, text in filled)
    return Table(name, words, ("sentence",), whole, "line", whole_lines=True)


@contextmanager
def _parquet_table(path: Path) -> Iterator[Table]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DiffaugError(f"{path}: reading .parquet needs pyarrow: pip install 'diffaug[parquet]'") from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DiffaugError(f"{path} cannot be read as Parquet: {_one_line(error)}") from error
    with file:
        # Columns of lists, such as embeddings, are of no use here and would cost most of the time.
        names = tuple(field.name for field in file.schema_arrow if not pyarrow.types.is_nested(field.type))
        yield Table(str(path), FORMATS[".parquet"], names, _parquet_rows(file, names, path))


def _parquet_rows(file: Any, names: tuple[str, ...], path: Path) -> Iterator[Row]:
    import pyarrow

    number = 0
    try:
        for batch in file.iter_batches(columns=list(names)):
            for cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                number += 1
                yield number, cells
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DiffaugError(f"{path} is damaged after row {number:,}: {_one_line(error)}") from error


def _hub_table(source: str) -> Table:
    name, config, split = hub_parts(source)
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise DiffaugError(f"{source}: reading from the hub needs datasets: pip install 'diffaug[hub]'") from error
    try:
        rows = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # the library raises its own, the HTTP client's and the system's errors
        raise DiffaugError(f"{source} could not be loaded from the hub: {_one_line(error)}") from error
    return table_from_objects(iterable_rows(rows), source, "a data set on the hub")


def hub_parts(source: str) -> tuple[str, str | None, str]:
    """Name, configuration and split of a ``hub:`` source; the last two come together or not at all."""
    parts = source.removeprefix(HUB_PREFIX).split("/")
    if not 1 <= len(parts) <= 4 or not parts[0] or not parts[-1]:
        raise DiffaugError(
            f"{source} is no hub source: write hub:owner/name for its train split, or hub:owner/name/config/split "
            "(the config may be empty: hub:owner/name//test)"
        )
    if len(parts) <= 2:
        return "/".join(parts), None, "train"
    return "/".join(parts[:-2]), parts[-2] or None, parts[-1]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
