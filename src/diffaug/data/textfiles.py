"""Text files, plain or compressed: their lines with numbers, and the cells that lines of CSV and JSON hold."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from diffaug.data.problems import Problem, quoted
from diffaug.data.tables import Row
from diffaug.errors import DiffaugError

Report = Callable[[Problem], None]
Line = tuple[int, str | None]
"""A line's number, from 1, and its text without the end; None if the line was reported as unreadable."""

COMPRESSIONS = {".gz": "gzip", ".xz": "xz"}
_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ": ".xz"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"


def open_binary(path: Path, compression: str) -> IO[bytes]:
    """The file's bytes, decompressed if ``compression`` is an ending of `COMPRESSIONS`."""
    try:
        if not compression:
            return path.open("rb")
        # The decompressors hand out lines through Python code; a buffer around them does it in C.
        opener = gzip.open if compression == ".gz" else lzma.open
        return io.BufferedReader(cast(Any, opener(path)), 1 << 16)
    except OSError as error:
        raise DiffaugError(f"{path} cannot be read: {error.strerror or error}") from error


def numbered_lines(file: IO[bytes], path: Path, compression: str, report: Report) -> Iterator[Line]:
    """All lines of a file. Only a newline ends one: U+2028 and its kin are text."""
    number = 0
    try:
        for number, raw in enumerate(file, start=1):
            if number == 1:
                _check_start(raw, path, compression)
                raw = raw.removeprefix(_BOM)
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                byte = f"byte {error.start + 1} (0x{raw[error.start]:02x})"
                detail = f"{byte} is not UTF-8; convert the file (iconv -t utf-8)"
                report(Problem(str(path), "line", number, "not UTF-8", detail))
                yield number, None
                continue
            if "\0" in text:
                report(Problem(str(path), "line", number, "NUL byte", "holds a NUL byte, so it is not clean text"))
                yield number, None
                continue
            yield number, text.removesuffix("\n").removesuffix("\r")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if not compression:
            raise DiffaugError(f"{path} cannot be read after line {number:,}: {error}") from error
        kind = COMPRESSIONS[compression]
        if number == 0 and not isinstance(error, EOFError):
            raise DiffaugError(f"{path} is no {kind} file, whatever its name says, or it is damaged") from error
        raise DiffaugError(
            f"{path} is damaged or cut off: its {kind} data ends badly after line {number:,}; fetch or make it again"
        ) from error


def _check_start(raw: bytes, path: Path, compression: str) -> None:
    """Kinds of files that would only give a riddle of errors line by line."""
    if raw.startswith(_UTF16):
        raise DiffaugError(f"{path} is UTF-16, not UTF-8; convert it first (iconv -f utf-16 -t utf-8)")
    if not compression:
        for magic, ending in _MAGIC.items():
            if raw.startswith(magic):
                raise DiffaugError(
                    f"{path} is compressed with {COMPRESSIONS[ending]}; let its name say so ({path.name}{ending})"
                )


def filled_lines(
    lines: Iterable[Line], name: str, report: Report, *, harmless: bool = False
) -> Iterator[tuple[int, str]]:
    """The lines that hold something. Empty ones are reported, except at the file's end, where they mean nothing.

    Args:
        lines: of the file.
        name: what messages call it.
        report: where empty lines go.
        harmless: an empty line is nothing bad, as in raw text.
    """
    empty: list[int] = []
    for number, text in lines:
        if text is None:
            continue
        if not text or text.isspace():
            empty.append(number)
            continue
        if empty:
            _report_empty(empty, name, report, harmless)
        yield number, text


def _report_empty(numbers: list[int], name: str, report: Report, harmless: bool = False) -> None:
    for number in numbers:
        report(Problem(name, "line", number, "empty line", "the line is empty", harmless))
    numbers.clear()


def json_objects(lines: Iterable[tuple[int, str]], name: str, report: Report) -> Iterator[tuple[int, object]]:
    """What each line of a JSON Lines file says."""
    for number, text in lines:
        try:
            yield number, json.loads(text)
        except (ValueError, RecursionError) as error:
            what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            report(Problem(name, "line", number, "not JSON", f"not JSON ({what}): {quoted(text)}"))


class _UnreadableLineError(Exception):
    """The parser asked for a line that was reported already."""


class _CsvFeed:
    """Hands lines to the CSV parser, remembers those of the record at hand, and can take back all but the first."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._again: list[Line] = []
        self.record: list[Line] = []

    def __iter__(self) -> _CsvFeed:
        return self

    def __next__(self) -> str:
        line = self._again.pop() if self._again else next(self._lines)
        self.record.append(line)
        if line[1] is None:
            raise _UnreadableLineError
        return line[1] + "\n"

    def take_back(self) -> None:
        self._again.extend(reversed(self.record[1:]))


def csv_rows(lines: Iterator[Line], name: str, report: Report) -> Iterator[Row]:
    """Records by RFC 4180. After broken quoting, reading goes on with the next line: a stray quote costs one line."""
    feed = _CsvFeed(lines)
    reader = csv.reader(feed, strict=True)
    empty: list[int] = []
    while True:
        feed.record.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except (csv.Error, _UnreadableLineError) as error:
            number, text = feed.record[0]
            if text is not None:
                report(Problem(name, "line", number, "broken quoting", _csv_detail(error, feed.record[-1][0])))
            feed.take_back()
            reader = csv.reader(feed, strict=True)
            continue
        number = feed.record[0][0]
        if all(not cell or cell.isspace() for cell in cells):
            empty.append(number)
            continue
        if empty:
            _report_empty(empty, name, report)
        yield number, cells


def _csv_detail(error: Exception, last_line: int) -> str:
    text = str(error)
    if isinstance(error, _UnreadableLineError):
        return f"a quote opens a cell here that runs into line {last_line:,}, which cannot be read"
    if "expected after" in text:
        return (
            f"a quoted cell ends on line {last_line:,} with something other than a comma behind it; quotes inside a "
            'quoted cell are doubled ("")'
        )
    if "unexpected end" in text:
        return "a quote opens a cell here and is never closed"
    if "field larger" in text:
        return f"a quote opens a cell here that is not closed within {csv.field_size_limit():,} characters"
    return f"broken CSV ({text})"
