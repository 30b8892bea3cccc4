"""Tokenised sentences: in memory as one array, and on disk as a cache that several processes share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, exclusive_lock
from diffaug.progress import progress_bar

# Fewer sentences are tokenised faster than they are looked up.
_WORTH_CACHING = 20_000
_CHUNK = 10_000

Tokens = tuple[NDArray[np.int32], NDArray[np.int64]]
"""The token ids of all sentences, concatenated, and the number of tokens of each sentence."""


def tokenise(collator: Collator, sentences: Sequence[str]) -> Tokens:
    """Tokenise sentences the way the collator does."""
    chunks, lengths = [np.empty(0, np.int32)], list[int]()
    with progress_bar("tokenising", len(sentences)) as advance:
        for start in range(0, len(sentences), _CHUNK):
            ids, _ = collator.ids(sentences[start : start + _CHUNK])
            lengths += [len(row) for row in ids]
            chunks.append(np.fromiter((token for row in ids for token in row), np.int32))
            advance(len(ids))
    return np.concatenate(chunks), np.array(lengths, np.int64)


class TokenCache:
    """A folder of tokenised sentences, shared by processes that train on the same data.

    The name of a file is a hash of the sentences and of everything that decides how they are tokenised. The first
    process tokenises; others wait for it and read the file.

    Args:
        folder: created when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tokenise(self, collator: Collator, sentences: Sequence[str]) -> Tokens:
        """As the function `tokenise`; large inputs are read from the cache, or written to it."""
        if len(sentences) < _WORTH_CACHING or (settings := fingerprint(collator)) is None:
            return tokenise(collator, sentences)
        digest = hashlib.sha256(settings)
        for sentence in sentences:
            digest.update(sentence.encode("utf-8", "surrogatepass") + b"\0")
        path = self._folder / f"{digest.hexdigest()[:32]}.npz"
        self._folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(path.with_suffix(".lock")):
            if not path.exists():
                ids, lengths = tokenise(collator, sentences)
                # If the disk is full, other processes tokenise again; this one goes on.
                with suppress(DiffaugError), atomic_file(path) as temporary:
                    np.savez(temporary, pieces=ids, lengths=lengths)
                return ids, lengths
        with np.load(path) as found:
            return found["pieces"], found["lengths"]


def fingerprint(collator: Collator) -> bytes | None:
    """Everything that decides how a collator tokenises; None if its tokenizer cannot be serialised."""
    tokenizer, *others = collator.cache_key
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    description = json.loads(backend.to_str())
    # Left over from the last call; the collator sets both in each call.
    description["truncation"] = description["padding"] = None
    return json.dumps([description, repr(others)], sort_keys=True).encode()


class TokenColumn(Protocol):
    """The token ids of a list of sentences, in memory or on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> list[int]: ...

    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sentence."""


class TokenStore:
    """The token ids of sentences in one array, four bytes per token. Each distinct sentence is tokenised once.

    NLI data repeats its premises, the pairs of stage 1 repeat the triplets of stage 2, and a draw of labels is part of
    a larger one: columns of all of them share a store.

    Args:
        collator: tokenises the sentences.
        cache: shared with other processes.
    """

    def __init__(self, collator: Collator, cache: TokenCache | None = None) -> None:
        self._collator = collator
        self._cache = cache
        self._index: dict[str, int] = {}
        self._ids = np.empty(0, np.int32)
        self._offsets = np.zeros(1, np.int64)

    def column(self, sentences: Sequence[str]) -> StoreColumn:
        """The token ids of these sentences; new sentences are tokenised now."""
        self._add([sentence for sentence in dict.fromkeys(sentences) if sentence not in self._index])
        return StoreColumn(self, np.fromiter(map(self._index.__getitem__, sentences), np.int64, len(sentences)))

    def ids(self, index: int) -> list[int]:
        """The token ids of one sentence."""
        ids: list[int] = self._ids[self._offsets[index] : self._offsets[index + 1]].tolist()
        return ids

    def lengths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of tokens of some sentences."""
        lengths: NDArray[np.int64] = self._offsets[indices + 1] - self._offsets[indices]
        return lengths

    def _add(self, sentences: list[str]) -> None:
        make = tokenise if self._cache is None else self._cache.tokenise
        ids, lengths = make(self._collator, sentences)
        self._ids = np.concatenate([self._ids, ids])
        self._offsets = np.concatenate([self._offsets, self._offsets[-1] + np.cumsum(lengths)])
        self._index.update(zip(sentences, range(len(self._index), len(self._index) + len(sentences)), strict=True))


class StoreColumn:
    """Some of the sentences in a `TokenStore`; a `TokenColumn`."""

    def __init__(self, store: TokenStore, indices: NDArray[np.int64]) -> None:
        self._store = store
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> list[int]:
        return self._store.ids(self._indices[index])

    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each sentence."""
        return self._store.lengths(self._indices)
