"""Sentences on disk, for text that is too large for memory: read in a stream, and memory-mapped.

`store_text` reads the sources of a setting once and finds duplicates; `store_tokens` tokenises the distinct sentences.
Both are cached: the text by the content of its files, the tokens by the text and everything that decides how a model
tokenises it. What is read through a memory map is in the page cache of the system, which all processes share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from itertools import islice
from os.path import isfile
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from diffaug.data.collate import Collator
from diffaug.data.columns import Columns
from diffaug.data.disk_cache import DiskCache
from diffaug.data.leakage import Leakage
from diffaug.data.problems import OnBad
from diffaug.data.read import iterate_sentences
from diffaug.data.table import HUB_PREFIX, InMemoryRows, is_pinned, source_path
from diffaug.data.tokens import fingerprint
from diffaug.errors import DiffaugError
from diffaug.progress import rate_progress
from diffaug.provenance import checksum, record_reads, report_read
from diffaug.version import __version__

_FORMAT = 1  # of the files below
_LARGE = 8 << 20  # bytes; smaller files are read and tokenised in seconds, and stay in memory
_CHUNK = 10_000  # sentences that are in memory at a time
_PARTS = 64  # of the hashes of all sentences, one of which is in memory at a time
_HASHED = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<i8")])


class StoredText(Sequence[str]):
    """Sentences in a memory-mapped file, in the order of their sources and with duplicates. A slice copies nothing.

    Args:
        folder: where `store_text` has written them.
        key: identifies the content.

    Attributes:
        distinct: the rows of the file that no earlier row is equal to.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.key = key
        self.distinct: NDArray[np.int64] = _mapped(folder / "distinct.bin", np.int64)
        self._text = _mapped(folder / "text.bin", np.uint8).data
        self._offsets = _mapped(folder / "offsets.bin", np.int64)
        self._rows = range(len(self._offsets) - 1)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> StoredText: ...

    def __getitem__(self, index: int | slice) -> str | StoredText:
        if isinstance(index, slice):
            part = copy(self)
            part._rows = self._rows[index]
            return part
        return next(self.at(np.array([self._rows[index]])))

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _CHUNK):
            block = self._rows[start : start + _CHUNK]
            yield from self.at(np.arange(block.start, block.stop, block.step))

    def at(self, rows: NDArray[np.int64]) -> Iterator[str]:
        """The sentences in some rows of the file."""
        for start, end in zip(self._offsets[rows].tolist(), self._offsets[rows + 1].tolist(), strict=True):
            yield str(self._text[start:end], "utf-8", "surrogatepass")


class StoredTokens:
    """The token ids of sentences in a memory-mapped file; a `TokenColumn`.

    Args:
        folder: where `store_tokens` has written them.
        dtype: of a token id.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        self._ids = _mapped(folder / "ids.bin", dtype)
        self._offsets = _mapped(folder / "offsets.bin", np.int64)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> list[int]:
        ids: list[int] = self._ids[self._offsets[index] : self._offsets[index + 1]].tolist()
        return ids

    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sentence."""
        return np.diff(self._offsets)


def is_large(sources: Sequence[str | InMemoryRows]) -> bool:
    """Whether sentences are stored on disk: large files, and data sets on the hub, which may be large."""
    paths = []
    for source in sources:
        if not isinstance(source, str):
            return False
        if not source.startswith(HUB_PREFIX):
            paths.append(source_path(source))
        elif not is_pinned(source):
            return False  # the content is not known before it is read
    if not all(map(isfile, paths)):  # the reader says what is wrong
        return False
    return len(paths) < len(sources) or sum(path.stat().st_size for path in paths) >= _LARGE


def store_text(cache: DiskCache, sources: Sequence[str], columns: Columns | None, on_bad: OnBad) -> StoredText:
    """The sentences of all sources, read from the cache or written to it. See `iterate_sentences` for the arguments.

    Raises:
        DiffaugError: a source cannot be read, or is changed meanwhile.
    """
    names = [source if source.startswith(HUB_PREFIX) else str(source_path(source)) for source in sources]
    # A pinned commit stands for the content. The suffix of a file decides how it is read.
    content = [name if name.startswith(HUB_PREFIX) else (_sha256(name), Path(name).suffixes[-2:]) for name in names]
    key = _key(_FORMAT, __version__, content, sorted((columns or {}).items()), str(on_bad))

    def build(folder: Path) -> Mapping[str, Any]:
        with record_reads() as read:
            lines = (sentence for source in sources for sentence in iterate_sentences(source, columns, on_bad))
            total, distinct = _write_text(folder, lines)
        for name, expected in zip(names, content, strict=True):
            if not isinstance(expected, str) and read.get(name) != expected[0]:
                raise DiffaugError(f"{name} was changed while it was read; run the command again when it is complete")
        found = [read[name] for name in names]
        return {"what": "text", "sources": names, "sha256": found, "sentences": total, "distinct": distinct}

    entry = cache.entry(f"text-{key}", build)
    for name, sha256 in zip(names, entry.details["sha256"], strict=True):
        report_read(name, sha256)
    return StoredText(entry.folder, key)


def store_tokens(
    cache: DiskCache, collator: Collator, text: StoredText, sentences: Iterable[str] | None = None
) -> StoredTokens:
    """The tokens of the distinct sentences of a text, read from the cache or written to it.

    Args:
        cache: for the tokens.
        collator: tokenises the sentences.
        text: the sentences.
        sentences: one made from each distinct sentence of ``text``, to be tokenised instead; not cached.
    """
    settings = fingerprint(collator) if sentences is None else None
    name = None if settings is None else f"tokens-{_key(_FORMAT, __version__, text.key, settings.decode())}"

    def build(folder: Path) -> Mapping[str, Any]:
        dtype = "uint16" if len(collator.tokenizer) <= 1 << 16 else "int32"
        given = distinct_sentences(text) if sentences is None else sentences
        tokens = _write_tokens(folder, collator, given, len(text.distinct), np.dtype(dtype))
        return {"what": "tokens", "text": text.key, "dtype": dtype, "sentences": len(text.distinct), "tokens": tokens}

    entry = cache.entry(name, build)
    return StoredTokens(entry.folder, entry.details["dtype"])


def stored_leakage(
    cache: DiskCache, key: Sequence[Any], compare: Callable[[], Mapping[str, Leakage]]
) -> dict[str, Leakage]:
    """What ``compare`` returns, read from the cache or written to it.

    Args:
        cache: for the result.
        key: the content of all data that are compared, as JSON values.
        compare: compares evaluation data with a stored text.
    """

    def build(folder: Path) -> Mapping[str, Any]:
        return {"what": "leakage", "leakage": {name: found.to_dict() for name, found in compare().items()}}

    found = cache.entry(f"leakage-{_key(*key)}", build).details["leakage"]
    return {name: Leakage(**{**values, "example": tuple(values["example"])}) for name, values in found.items()}


def distinct_sentences(text: StoredText) -> Iterator[str]:
    """The sentences without duplicates, in their order."""
    for start in range(0, len(text.distinct), _CHUNK):
        yield from text.at(text.distinct[start : start + _CHUNK])


def _write_text(folder: Path, sentences: Iterable[str]) -> tuple[int, int]:
    """Write text.bin, offsets.bin and distinct.bin; returns how many sentences there are, and how many are distinct.

    The hash of each sentence, with its row 24 bytes, goes to one of several files by its first bits. Duplicates have
    equal hashes (128 bits), so each file is then searched on its own. In memory are one byte per sentence and one file.
    """
    rows, end = 0, 0
    parts = [folder / f"hashes-{i}" for i in range(_PARTS)]
    with ExitStack() as stack:
        text, offsets, *hashes = (
            stack.enter_context(path.open("wb")) for path in (folder / "text.bin", folder / "offsets.bin", *parts)
        )
        advance = stack.enter_context(rate_progress("reading", "sentences", None))
        offsets.write(np.zeros(1, np.int64).tobytes())
        for chunk in _chunks(sentences):
            encoded = [sentence.encode("utf-8", "surrogatepass") for sentence in chunk]
            text.write(b"".join(encoded))
            ends = end + np.cumsum([len(one) for one in encoded], dtype=np.int64)
            offsets.write(ends.tobytes())
            hashed = np.empty(len(chunk), _HASHED)
            digests = b"".join(hashlib.blake2b(one, digest_size=16).digest() for one in encoded)
            hashed["high"], hashed["low"] = np.frombuffer(digests, "<u8").reshape(-1, 2).T
            hashed["row"] = np.arange(rows, rows + len(chunk))
            part = hashed["high"] % _PARTS
            order = np.argsort(part, kind="stable")
            bounds = np.searchsorted(part[order], np.arange(_PARTS + 1))
            for i, file in enumerate(hashes):
                file.write(hashed[order[bounds[i] : bounds[i + 1]]].tobytes())
            rows, end = rows + len(chunk), int(ends[-1])
            advance(len(chunk))
    first = np.zeros(rows, bool)
    for path in parts:
        first[_first_rows(np.fromfile(path, _HASHED))] = True
        path.unlink()
    with (folder / "distinct.bin").open("wb") as file:
        for start in range(0, rows, _CHUNK):
            file.write((start + np.flatnonzero(first[start : start + _CHUNK])).astype(np.int64).tobytes())
    return rows, int(first.sum())


def _first_rows(hashed: NDArray[Any]) -> NDArray[np.int64]:
    """The first row of each hash."""
    hashed = hashed[np.lexsort((hashed["row"], hashed["low"], hashed["high"]))]
    differs = np.ones(len(hashed), bool)
    differs[1:] = (hashed["high"][1:] != hashed["high"][:-1]) | (hashed["low"][1:] != hashed["low"][:-1])
    rows: NDArray[np.int64] = hashed["row"][differs]
    return rows


def _write_tokens(folder: Path, collator: Collator, sentences: Iterable[str], total: int, dtype: np.dtype[Any]) -> int:
    """Write ids.bin and offsets.bin; returns the number of tokens."""
    end = 0
    with (
        (folder / "ids.bin").open("wb") as ids,
        (folder / "offsets.bin").open("wb") as offsets,
        rate_progress("tokenising", "sentences", total) as advance,
    ):
        offsets.write(np.zeros(1, np.int64).tobytes())
        for chunk in _chunks(sentences):
            rows, _ = collator.ids(chunk)
            ids.write(np.fromiter((token for row in rows for token in row), dtype).tobytes())
            ends = end + np.cumsum([len(row) for row in rows], dtype=np.int64)
            offsets.write(ends.tobytes())
            end = int(ends[-1])
            advance(len(chunk))
    return end


def _chunks(sentences: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(sentences)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _sha256(name: str) -> str:
    try:
        return checksum(Path(name))
    except OSError as error:
        raise DiffaugError(f"{name} cannot be read: {error.strerror}") from error


def _key(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _mapped(path: Path, dtype: DTypeLike) -> NDArray[Any]:
    # An empty file cannot be mapped.
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)
