"""The line reader: every text file that a user names is read here, plain or compressed (.gz, .xz).

Lines carry their numbers, so that an error can point at one. Only a newline ends a line: U+2028 and similar characters
are text. Functions below turn lines into CSV records and JSON values.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from diffaug.data.problems import Problem, quoted, raise_problem
from diffaug.errors import DiffaugError
from diffaug.provenance import HashingFile, report_read

Report = Callable[[Problem], None]
Line = tuple[int, str]
"""A line's number, starting at 1, and its text without the line end."""

Cells = TypeVar("Cells", str, list[str])

COMPRESSIONS = {".gz": "gzip", ".xz": "xz"}
_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ": ".xz"}
# A zip archive, which .xlsx and .ods are, and the format of old .xls files.
_EXCEL = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"


def read_lines(
    path: Path, report: Report = raise_problem, encoding: str = "utf-8", stream: IO[bytes] | None = None
) -> Iterator[Line]:
    """The lines of a text file, empty ones included; a byte order mark and line ends are removed.

    Args:
        path: the file; it is decompressed if its name ends in .gz or .xz.
        report: called for each line that cannot be decoded. Such lines are not yielded.
        encoding: of the text.
        stream: read this instead, for example standard input; ``path`` is then used in messages only.

    Raises:
        DiffaugError: the file cannot be read, is truncated, or is UTF-16.
    """
    compression = path.suffix.lower() if stream is None and path.suffix.lower() in COMPRESSIONS else ""
    number = 0
    try:
        with nullcontext(stream) if stream is not None else _open(path, compression) as file:
            for number, raw in enumerate(file, start=1):
                if number == 1 and encoding == "utf-8":
                    _check_first_line(raw, path, compression)
                    raw = raw.removeprefix(_BOM)
                if number == 1 and not raw.endswith(b"\n") and b"\r" in raw.rstrip(b"\r"):
                    raise DiffaugError(
                        f"{path} has carriage returns as line ends; convert it first (tr '\\r' '\\n' < FILE > NEW)"
                    )
                try:
                    text = raw.decode(encoding)
                except UnicodeDecodeError as error:
                    byte = f"byte {error.start + 1} (0x{raw[error.start]:02x})"
                    detail = f"{byte} is not {encoding.upper()}; convert the file (iconv -t utf-8)"
                    report(Problem(str(path), "line", number, f"not {encoding.upper()}", detail))
                else:
                    yield number, text.removesuffix("\n").removesuffix("\r")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if number == 0 and isinstance(error, OSError) and error.strerror:
            raise DiffaugError(f"{path} cannot be read: {error.strerror}") from error
        if not compression:
            raise DiffaugError(f"{path} cannot be read after line {number:,}: {error}") from error
        kind = COMPRESSIONS[compression]
        if number == 0 and not isinstance(error, EOFError):
            raise DiffaugError(f"{path} is not a valid {kind} file; check its name, or download it again") from error
        raise DiffaugError(
            f"{path} is damaged or truncated: its {kind} data ends unexpectedly after line {number:,}; download or "
            "create it again"
        ) from error


@contextmanager
def _open(path: Path, compression: str) -> Iterator[IO[bytes]]:
    """Open a file, and report its SHA-256 when it has been read to its end."""
    with path.open("rb", buffering=0) as file:
        hashing = HashingFile(file)
        content = io.BufferedReader(hashing, 1 << 16)
        if compression:
            # gzip and lzma split lines in Python code; a buffer around them does it in C.
            unpacked = (gzip.open if compression == ".gz" else lzma.open)(content)
            yield io.BufferedReader(cast(Any, unpacked), 1 << 16)
        else:
            yield content
        report_read(str(path), hashing.finish())


def _check_first_line(raw: bytes, path: Path, compression: str) -> None:
    """Detect files of which every line would be an error."""
    if raw.startswith(_EXCEL):
        raise DiffaugError(
            f"{path} is an Excel workbook or another archive, whatever its name says; save it as 'CSV UTF-8' in Excel"
        )
    for magic, suffix in _MAGIC.items():
        if not compression and raw.startswith(magic):
            raise DiffaugError(f"{path} is compressed with {COMPRESSIONS[suffix]}; rename it to {path.name}{suffix}")
    if encoding := utf16_name(raw):
        raise DiffaugError(f"{path} is UTF-16, not UTF-8; convert it first (iconv -f {encoding} -t utf-8)")


def utf16_name(raw: bytes) -> str | None:
    """The name of the UTF-16 encoding of the first bytes of a file; None if they are not UTF-16."""
    if raw.startswith(_UTF16):
        return "utf-16"
    # Without a byte order mark: one byte of each Latin character is zero.
    for encoding, zeros, others in (("utf-16-le", raw[1:61:2], raw[:60:2]), ("utf-16-be", raw[:60:2], raw[1:61:2])):
        if len(zeros) > 1 and 2 * zeros.count(0) > len(zeros) and not others.count(0):
            return encoding
    return None


def skip_blank(
    rows: Iterable[tuple[int, Cells]], name: str, report: Report, *, harmless: bool = False
) -> Iterator[tuple[int, Cells]]:
    """The lines or records that are not blank. Blank ones are reported, except those at the end of the file.

    Args:
        rows: lines, or records of cells, with their numbers.
        name: the file's name for messages.
        report: called for each blank line.
        harmless: blank lines are not errors, as in plain text.
    """
    blank: list[int] = []
    for number, cells in rows:
        text = cells if isinstance(cells, str) else "".join(cells)
        if not text or text.isspace():
            blank.append(number)
            continue
        for empty in blank:
            report(Problem(name, "line", empty, "empty line", "the line is empty", harmless))
        blank.clear()
        yield number, cells


def json_values(lines: Iterable[Line], name: str, report: Report) -> Iterator[tuple[int, Any]]:
    """The value on each line of a JSON Lines file.

    Raises:
        DiffaugError: the file is one JSON array.
    """
    for number, text in lines:
        if number == 1 and re.fullmatch(r"\s*\[\s*(\{.*)?", text):
            raise DiffaugError(f"{name} is one JSON array; write one object per line instead")
        try:
            yield number, json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            report(Problem(name, "line", number, "invalid JSON", f"invalid JSON ({reason}): {quoted(text)}"))


class _CsvFeed:
    """Feeds lines to the CSV parser. Stores those of the current record, and can put back all but the first."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = iter(lines)
        self._pending: list[Line] = []
        self.record: list[Line] = []

    def __iter__(self) -> _CsvFeed:
        return self

    def __next__(self) -> str:
        self.record.append(self._pending.pop() if self._pending else next(self._lines))
        return self.record[-1][1] + "\n"

    def put_back(self) -> None:
        self._pending.extend(reversed(self.record[1:]))


def csv_records(
    lines: Iterable[Line], name: str, report: Report, separator: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Records as in RFC 4180, each with the number of its first line.

    After broken quoting, parsing continues on the next line: one stray quote costs one line, not the rest of the file.
    """
    feed = _CsvFeed(lines)
    reader = csv.reader(feed, strict=True, delimiter=separator)
    while True:
        feed.record.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            detail = _csv_detail(error, feed.record[-1][0])
            report(Problem(name, "line", feed.record[0][0], "broken quoting", detail))
            feed.put_back()
            reader = csv.reader(feed, strict=True, delimiter=separator)
        else:
            yield feed.record[0][0], cells


def _csv_detail(error: csv.Error, last_line: int) -> str:
    text = str(error)
    if "expected after" in text:
        return f'text follows the closing quote on line {last_line:,}; double the quotes inside a quoted cell ("")'
    if "unexpected end" in text:
        return "a quote opens a cell here and is never closed"
    if "field larger" in text:
        return f"a quote opens a cell here and is not closed within {csv.field_size_limit():,} characters"
    return f"invalid CSV ({text})"
