"""Data that several runs in one process read or tokenise only once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TypeVar

from diffaug.data.collate import Collator
from diffaug.data.columns import Columns
from diffaug.data.disk_cache import DiskCache
from diffaug.data.problems import OnBad
from diffaug.data.table import HUB_PREFIX, InMemoryRows, source_path
from diffaug.data.tokens import TokenCache, TokenStore

Value = TypeVar("Value")


class DataCache:
    """An in-memory cache without eviction.

    A file that has changed is read again. Sentences are cached by their text, so a run with another draw of the same
    file finds them tokenised, if its model tokenises sentences the same way.

    Args:
        folder: for tokenised sentences that other processes use as well.

    Attributes:
        disk: the cache of text that is too large for memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._token_cache = None if folder is None else TokenCache(folder)
        self.disk = DiskCache()
        self._values: dict[Hashable, object] = {}

    def once(self, key: Hashable | None, make: Callable[[], Value]) -> Value:
        """The cached value of ``key``; ``make`` is called if there is none, or if ``key`` is None."""
        if key is None:
            return make()
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]  # type: ignore[return-value] # each key belongs to one type

    def tokens(self, collator: Collator) -> TokenStore:
        """The tokenised sentences of all collators that tokenise like this one."""
        return self.once(("tokens", collator.cache_key), lambda: TokenStore(collator, self._token_cache))


def file_key(
    source: str | InMemoryRows | Sequence[str | InMemoryRows], columns: Columns | None, on_bad: OnBad
) -> Hashable | None:
    """The cache key of a source, or of a list of sources; None if one must not be cached: rows, or a missing file."""
    if isinstance(source, InMemoryRows):
        return None
    if not isinstance(source, str):
        keys = tuple(file_key(one, columns, on_bad) for one in source)
        return None if None in keys else keys
    how = (tuple(sorted(columns.items())) if columns else None, on_bad)
    if source.startswith(HUB_PREFIX):
        return source, how
    path = source_path(source)
    try:
        stat = path.stat()
    except OSError:
        return None
    return str(path.resolve()), stat.st_mtime_ns, stat.st_size, how
