"""A table is what every data source looks like to the readers: numbered rows of cells, with or without column names.

A source is a file (.txt, .csv, .tsv, .jsonl, each also .gz and .xz, or .parquet), a data set on the hub
(``hub:owner/name/config/split``, with a revision ``hub:owner/name@REVISION/config/split``), the sample data
(``sample:name``), or rows in memory.

Some public data sets are not in the format that their file names say. They are recognised by their content, and a
quotation mark in them is text.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

from diffaug.data.labels import parse_score
from diffaug.data.lines import COMPRESSIONS, Line, Report, csv_records, json_values, read_lines, skip_blank
from diffaug.data.problems import Problem
from diffaug.errors import DiffaugError
from diffaug.provenance import checksum, report_read

HUB_PREFIX = "hub:"
SAMPLE_PREFIX = "sample:"
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
IN_MEMORY = "passed in memory"
"""What a recipe records, in place of a file name, for data that was passed in Python."""

SAMPLE_FOLDER = Path(__file__).parent.parent / "assets" / "sample"
SAMPLE_FILES = {
    "sentences": SAMPLE_FOLDER / "sentences.txt",
    "triplets": SAMPLE_FOLDER / "triplets.csv",
    "dev": SAMPLE_FOLDER / "dev.tsv",
    "test": SAMPLE_FOLDER / "test.tsv",
}
_FORMATS = {
    ".txt": "a text file",
    ".csv": "a CSV file",
    ".tsv": "a TSV file",
    ".jsonl": "a JSON Lines file",
    ".parquet": "a Parquet file",
}
_WORKBOOKS = {".xlsx", ".xls", ".xlsm", ".ods"}
# Rows that are inspected to find out what the columns are: enough to see that a class repeats.
_HEAD = 1000

STSB_COLUMNS = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
"""The columns of sts-train.csv, sts-dev.csv and sts-test.csv: tab-separated, no header, and in some rows more columns
at the end with the sources of the sentences."""
_HIGHEST_STS_SCORE = 5
# SNLI and MultiNLI are published as snli_1.0_train.txt with these and other columns.
_NLI_COLUMNS = {"gold_label", "sentence1", "sentence2"}
# AllNLI.tsv and stsbenchmark.tsv of sentence-transformers, which hold all splits.
_COLUMNS_WITH_SPLIT = (
    ("split", "dataset", "filename", "sentence1", "sentence2", "label"),
    ("split", "genre", "dataset", "year", "sid", "score", "sentence1", "sentence2"),
)

Row = tuple[int, Sequence[object]]
"""A row's number and its cells."""


class _Missing:
    """A named cell that a row does not have."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass(frozen=True)
class InMemoryRows:
    """Rows passed in Python, in a form that can be counted and read repeatedly.

    Attributes:
        name: for messages, as in "the data passed as nli".
        rows: mappings, sequences or strings.
    """

    name: str
    rows: Any

    @classmethod
    def collect(cls, name: str, source: Iterable[Any]) -> InMemoryRows:
        """Use what can be read repeatedly (a list, a data set) as it is; read a generator into a list."""
        rows = iterate(source)
        return cls(name, rows if isinstance(rows, Sized) else list(rows))

    def __str__(self) -> str:
        """What a recipe records in place of a file name."""
        return f"{IN_MEMORY}, {len(self.rows):,} rows"


Source = str | os.PathLike[str] | Iterable[Any] | InMemoryRows
"""A file, ``hub:owner/name/config/split``, ``sample:name``, or rows: an iterable of mappings, sequences or strings, a
`datasets.Dataset`, or a table of pandas, polars or pyarrow."""


@dataclass
class Table:
    """Rows from one source.

    Attributes:
        name: of the source, for messages.
        format: in words.
        names: the column names; None if the columns have no names, or only perhaps (see ``may_have_header``).
        rows: the rows with their numbers, starting at 1: in a text file the line number (of the first line, if a row
            spans several), otherwise the row number.
        unit: what row numbers count, ``line`` or ``row``.
        may_have_header: the first row may be a header (CSV and TSV).
        separator: the character between the cells of a text file.
        plain_text: each row is one line of plain text.
        late_names: column names that first occur after the inspected rows, with the number of the row; filled while
            reading.
    """

    name: str
    format: str
    names: tuple[str, ...] | None
    rows: Iterator[Row]
    unit: str = "row"
    may_have_header: bool = False
    separator: str | None = None
    plain_text: bool = False
    late_names: dict[str, int] = field(default_factory=dict)

    def head(self) -> list[Row]:
        """The first rows; they are not consumed."""
        first = list(islice(self.rows, _HEAD))
        self.rows = chain(first, self.rows)
        return first


def open_table(source: Source, report: Report) -> Table:
    """Open any source. Lines that cannot be parsed are passed to ``report`` while the table is read.

    Raises:
        DiffaugError: the source does not exist, cannot be read, or has an unknown format. A truncated compressed file
            is always an error, since nobody knows what is missing.
    """
    if isinstance(source, str) and source.startswith(HUB_PREFIX):
        return _hub_table(source)
    if not isinstance(source, (str, os.PathLike)):
        rows = source if isinstance(source, InMemoryRows) else InMemoryRows("the data given", iterate(source))
        return _table_from_values(_hashed(enumerate(rows.rows, start=1), rows.name), rows.name, "Python objects", "row")
    path = source_path(source)
    suffix, compressed = _format(path)
    if suffix == ".parquet":
        return _parquet_table(path)
    return _text_table(suffix, read_lines(path, report), str(path), compressed, report)


def source_path(source: str | os.PathLike[str]) -> Path:
    """The file that a source names: a path, or ``sample:`` and the name of a sample file."""
    if not (isinstance(source, str) and source.startswith(SAMPLE_PREFIX)):
        return Path(source).expanduser()
    name = source.removeprefix(SAMPLE_PREFIX)
    if name not in SAMPLE_FILES:
        raise DiffaugError(f"there is no sample data {name!r}; choose one of {', '.join(SAMPLE_FILES)}")
    return SAMPLE_FILES[name]


def hub_parts(source: str) -> tuple[str, str | None, str | None, str]:
    """Name, revision, configuration and split of a ``hub:`` source. The last two are given together or not at all."""
    parts = source.removeprefix(HUB_PREFIX).split("/")
    count = len(parts) if len(parts) <= 2 else len(parts) - 2
    name, at, revision = "/".join(parts[:count]).partition("@")
    if not 1 <= len(parts) <= 4 or not parts[-1] or not all(name.split("/")) or (at and not revision):
        raise DiffaugError(
            f"{source} is not a valid hub source; write hub:owner/name for the train split, or "
            "hub:owner/name/config/split (the config may be empty: hub:owner/name//test); a revision follows the name: "
            "hub:owner/name@REVISION"
        )
    config, split = parts[count:] or ("", "train")
    return name, revision or None, config or None, split


def is_pinned(source: str) -> bool:
    """Whether a ``hub:`` source names a commit."""
    return re.fullmatch("[0-9a-f]{40}", hub_parts(source)[1] or "") is not None


def pin_revision(source: str) -> str:
    """A ``hub:`` source with the commit that its revision is now, so that it can be read again.

    Without a connection, the source is returned as it is.
    """
    if is_pinned(source):
        return source
    name, revision, _, _ = hub_parts(source)
    try:
        from huggingface_hub import HfApi, constants

        commit = HfApi().dataset_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT).sha
    except Exception:  # if the data set does not exist, the error comes when it is read
        return source
    rest = source.removeprefix(f"{HUB_PREFIX}{name}" + ("" if revision is None else f"@{revision}"))
    return f"{HUB_PREFIX}{name}@{commit}{rest}"


def split_index(names: Sequence[str]) -> int | None:
    """The index of the column with each row's split, in a public file that holds several splits."""
    return names.index("split") if tuple(names) in _COLUMNS_WITH_SPLIT else None


def iterate(source: Any) -> Iterable[Any]:
    """The rows of a Python object: any iterable of rows, a `datasets.Dataset`, or a table of pandas, polars or pyarrow.

    Raises:
        DiffaugError: it is not iterable, or holds several data sets.
    """
    if isinstance(source, Mapping):
        keys = ", ".join(repr(key) for key in list(source)[:4])
        raise DiffaugError(
            f"cannot read data from a {type(source).__name__} with {keys}; pass one of its entries, or a list of rows"
        )
    if hasattr(source, "columns"):  # a table: iterating over one gives its columns, or their names
        for method, arguments in (("to_pylist", ()), ("to_dicts", ()), ("to_dict", ("records",))):
            if hasattr(source, method):
                rows: list[Any] = getattr(source, method)(*arguments)
                return rows
    if not isinstance(source, Iterable) or isinstance(source, (str, bytes)):
        raise DiffaugError(
            f"cannot read data from a {type(source).__name__}; give a file, a hub name or a list of rows"
        )
    if hasattr(source, "features") and hasattr(source, "column_names"):
        plain: Any = source.with_format(None)  # type: ignore[attr-defined] # plain numbers, not numpy's or torch's
        return _DatasetRows(plain) if isinstance(plain, Sized) else _with_label_names(plain)
    return source


class _DatasetRows:
    """The rows of a `datasets.Dataset`, read anew each time and never copied."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[dict[str, object]]:
        return _with_label_names(self._dataset)


def _with_label_names(dataset: Any) -> Iterator[dict[str, object]]:
    """Rows with label codes replaced by names: what code 0 means differs between data sets."""
    named = {
        column: feature.names
        for column, feature in (dataset.features or {}).items()
        if getattr(feature, "names", None) is not None
    }
    for row in dataset:
        yield {**row, **{column: _label_name(row[column], names) for column, names in named.items()}} if named else row


def _label_name(code: Any, names: Sequence[str]) -> Any:
    """The name of a label code; other codes, such as -1 for no gold label, stay."""
    return names[code] if isinstance(code, int) and 0 <= code < len(names) else code


def _format(path: Path) -> tuple[str, str]:
    """The suffix of the format, and words about the compression (empty if there is none)."""
    try:
        exists = path.exists()
    except OSError as error:  # for example a name that is too long
        raise DiffaugError(f"{str(path)[:100]} cannot be read: {error.strerror}") from error
    if path.is_dir():
        inside = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        listing = f" (it contains {', '.join(inside[:5])}{' ...' if len(inside) > 5 else ''})" if inside else ""
        raise DiffaugError(f"{path} is a directory; name a file{listing}")
    if not exists:
        raise DiffaugError(f"there is no file {path}")
    if path.suffix.lower() in _WORKBOOKS:
        raise DiffaugError(f"{path} is a spreadsheet; save it as 'CSV UTF-8', and use the .csv file")
    compression = COMPRESSIONS.get(path.suffix.lower())
    suffix = Path(path.stem if compression else path).suffix.lower()
    if suffix not in _FORMATS or (suffix == ".parquet" and compression):
        raise DiffaugError(
            f"unknown format of {path}: the name must end in {', '.join(_FORMATS)}; all but .parquet may be compressed "
            "(.gz, .xz)"
        )
    return suffix, f", compressed with {compression}" if compression else ""


def _text_table(suffix: str, lines: Iterator[Line], name: str, compressed: str, report: Report) -> Table:
    words = _FORMATS[suffix] + compressed
    if suffix == ".jsonl":
        values = json_values(skip_blank(lines, name, report), name, report)
        return _table_from_values(values, name, words, "line")
    head = list(islice(lines, 1))
    first = head[0][1].split("\t") if head else []
    if suffix != ".csv" and set(first) >= _NLI_COLUMNS:
        columns = tuple(cell.strip() for cell in first)
        words = f"a tab-separated file in the form of SNLI and MultiNLI{compressed}"
        rows = _nli_rows(skip_blank(lines, name, report), columns, name, report)
        return Table(name, words, columns, rows, "line", separator="\t")
    if _is_stsb(first):
        head += islice(lines, _HEAD - 1)
        texts = [text for _, text in head if text]
        if sum(_is_stsb(text.split("\t")) for text in texts) > 0.9 * len(texts):
            words = f"a tab-separated file in the form of the STS Benchmark{compressed}"
            rows = _stsb_rows(skip_blank(chain(head, lines), name, report))
            return Table(name, words, STSB_COLUMNS, rows, "line", separator="\t")
    lines = chain(head, lines)
    if suffix == ".csv":
        head = list(islice(lines, _HEAD))
        stated = re.fullmatch("sep=(.)", head[0][1]) if head else None  # a line for Excel
        head = head[1:] if stated else head
        separator = stated[1] if stated else _separator([text for _, text in head if text])
        if separator in SEPARATORS and separator != ",":
            words = words.replace("CSV file", f"CSV file separated by {SEPARATORS[separator]}")
        records = skip_blank(csv_records(chain(head, lines), name, report, separator), name, report)
        return Table(name, words, None, records, "line", may_have_header=True, separator=separator)
    filled = skip_blank(lines, name, report, harmless=suffix == ".txt")
    if suffix == ".tsv":
        # No quoting: in TSV files of sentences a quotation mark is text.
        cells: Iterator[Row] = ((number, text.split("\t")) for number, text in filled)
        return Table(name, words, None, cells, "line", may_have_header=True, separator="\t")
    sentences: Iterator[Row] = ((number, (text,)) for number, text in filled)
    return Table(name, words, ("sentence",), sentences, "line", plain_text=True)


def _separator(lines: list[str]) -> str:
    """What separates the cells of a CSV file: semicolons, as Excel writes it in many countries, tabs, bars or commas.

    The first line says so: in a file of one line, or where a character does not occur equally often in nearly all
    lines, it may be punctuation.
    """
    for separator in SEPARATORS:
        if separator != "," and len(lines) > 1 and "," not in lines[0] and separator in lines[0]:
            widths = _record_widths(lines, separator)
            width, times = widths.most_common(1)[0] if widths else (0, 0)
            if width > 1 and times > 0.9 * widths.total():
                return separator
    return ","


def _record_widths(lines: list[str], separator: str) -> Counter[int]:
    """How many records have how many cells; empty if the lines are no CSV."""
    texts = (text.replace("\r", " ") + "\n" for text in lines)
    try:
        return Counter(map(len, csv.reader(texts, delimiter=separator)))
    except csv.Error:
        return Counter()


def _is_stsb(cells: Sequence[str]) -> bool:
    if len(cells) < len(STSB_COLUMNS):
        return False
    score, first, second = cells[len(STSB_COLUMNS) - 3 : len(STSB_COLUMNS)]
    number = parse_score(score)
    in_range = number is not None and 0 <= number <= _HIGHEST_STS_SCORE
    return in_range and parse_score(first) is None and parse_score(second) is None


def _stsb_rows(lines: Iterable[Line]) -> Iterator[Row]:
    for number, text in lines:
        yield number, _padded(text.split("\t")[: len(STSB_COLUMNS)], len(STSB_COLUMNS))


def _nli_rows(lines: Iterable[Line], columns: Sequence[str], name: str, report: Report) -> Iterator[Row]:
    """Rows may lack their last cells, the labels of single annotators. More cells mean a tab in a sentence."""
    for number, text in lines:
        cells = text.split("\t")
        if len(cells) > len(columns):
            detail = f"expected {len(columns)} columns, got {len(cells)}; a sentence must not contain a tab"
            report(Problem(name, "line", number, "wrong number of columns", detail))
        else:
            yield number, _padded(cells, len(columns))


def _padded(cells: Sequence[object], width: int) -> Sequence[object]:
    return [*cells, *[MISSING] * (width - len(cells))]


def _table_from_values(values: Iterable[tuple[int, object]], name: str, format: str, unit: str) -> Table:
    """A table of strings, sequences of cells, or mappings. Mappings need not all have the same keys."""
    values = iter(values)
    head = list(islice(values, _HEAD))
    mappings = [value for _, value in head if isinstance(value, Mapping)]
    names = tuple(dict.fromkeys(str(key) for mapping in mappings for key in mapping)) or None
    late_names: dict[str, int] = {}
    return Table(name, format, names, _cells(chain(head, values), names, late_names), unit, late_names=late_names)


def _hashed(values: Iterable[tuple[int, object]], name: str) -> Iterator[tuple[int, object]]:
    """Values that are not in a file: the SHA-256 of their representation is reported after the last one."""
    digest = hashlib.sha256()
    for number, value in values:
        digest.update(repr(value).encode("utf-8", "surrogatepass") + b"\n")
        yield number, value
    report_read(name, digest.hexdigest())


def _cells(
    values: Iterable[tuple[int, object]], names: tuple[str, ...] | None, late_names: dict[str, int]
) -> Iterator[Row]:
    known = frozenset(names or ())
    for number, value in values:
        if isinstance(value, Mapping):
            if not value.keys() <= known:
                for key in value:
                    if str(key) not in known:
                        late_names.setdefault(str(key), number)
            yield number, [value.get(name, MISSING) for name in names or ()]
        elif names is not None:
            yield number, [MISSING] * len(names)
        elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
            yield number, value
        else:
            yield number, (value,)


def _parquet_table(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DiffaugError(f"{path}: reading .parquet needs pyarrow: pip install 'diffaug[parquet]'") from error
    try:
        # Before it is read: a Parquet file is not read from its start to its end.
        sha256 = checksum(path)
        file = pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DiffaugError(f"{path} cannot be read as Parquet: {_one_line(error)}") from error
    # Columns of lists, such as embeddings, are not used here and would take most of the time.
    names = tuple(column.name for column in file.schema_arrow if not pyarrow.types.is_nested(column.type))

    label_names = _parquet_label_names(file.schema_arrow.metadata or {})
    named = {i: label_names[name] for i, name in enumerate(names) if name in label_names}

    def rows() -> Iterator[Row]:
        number = 0
        try:
            with file:
                for batch in file.iter_batches(columns=list(names)):
                    columns = [column.to_pylist() for column in batch.columns]
                    for i, labels in named.items():
                        columns[i] = [_label_name(code, labels) for code in columns[i]]
                    for cells in zip(*columns, strict=True):
                        number += 1
                        yield number, cells
            report_read(str(path), sha256)
        except (OSError, pyarrow.ArrowException, ValueError, OverflowError) as error:  # bytes, dates out of range
            raise DiffaugError(f"{path} is damaged after row {number:,}: {_one_line(error)}") from error

    return Table(str(path), _FORMATS[".parquet"], names, rows())


def _parquet_label_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names of label codes by column, where `datasets` has written the file."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {column: feature["names"] for column, feature in features.items() if "names" in feature}
    except (KeyError, ValueError, TypeError):
        return {}


def _hub_table(source: str) -> Table:
    name, revision, config, split = hub_parts(pin_revision(source))
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise DiffaugError(f"{source}: reading from the hub needs datasets: pip install 'diffaug[hub]'") from error
    try:
        rows = datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # the library raises its own errors, those of the HTTP client and of the system
        raise DiffaugError(f"{source} could not be loaded from the hub: {_one_line(error)}") from error
    words = f"a data set on the hub, {f'revision {revision}' if revision else 'unknown revision'}"
    return _table_from_values(_hashed(enumerate(iterate(rows), start=1), source), source, words, "row")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
