"""Word pieces on disk, for processes that train on the same data: the first one tokenises, the others read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file, lock
from diffaug.progress import progress_bar

# Fewer are tokenised sooner than they are looked for.
_WORTH_SHARING = 20_000
_CHUNK = 10_000

Tokens = tuple[NDArray[np.int32], NDArray[np.int64]]
"""The word pieces of all sentences, one after the other, and how many each sentence has."""


def tokenise(collator: Collator, sentences: Sequence[str]) -> Tokens:
    """The word pieces of sentences, as the collator reads them."""
    pieces, lengths = [np.empty(0, np.int32)], list[int]()
    with progress_bar("tokenising", len(sentences)) as advance:
        for start in range(0, len(sentences), _CHUNK):
            ids, _ = collator.ids(sentences[start : start + _CHUNK])
            lengths += [len(row) for row in ids]
            pieces.append(np.fromiter((piece for row in ids for piece in row), np.int32))
            advance(len(ids))
    return np.concatenate(pieces), np.array(lengths, np.int64)


class SharedTokens:
    """A folder of tokenised sentences.

    A file goes by a hash of the sentences and of all that decides how they are read, so what is found is always right.
    Who looks for one that another process is making waits for it.

    Args:
        folder: where they are; it is made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tokenise(self, collator: Collator, sentences: Sequence[str]) -> Tokens:
        """As the function of that name; many sentences are looked for in the folder first, and left there."""
        if len(sentences) < _WORTH_SHARING or (how := _fingerprint(collator)) is None:
            return tokenise(collator, sentences)
        digest = hashlib.sha256(how)
        for sentence in sentences:
            digest.update(sentence.encode("utf-8", "surrogatepass") + b"\0")
        path = self._folder / f"{digest.hexdigest()[:32]}.npz"
        self._folder.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("a") as file:
            lock(file, shared=False, wait=True)
            if not path.exists():
                pieces, lengths = tokenise(collator, sentences)
                # A full disk costs the others time, and this process nothing.
                with suppress(DiffaugError), atomic_file(path) as temporary:
                    np.savez(temporary, pieces=pieces, lengths=lengths)
                return pieces, lengths
        with np.load(path) as found:
            return found["pieces"], found["lengths"]


def _fingerprint(collator: Collator) -> bytes | None:
    """All that decides how a collator reads sentences; None if its tokenizer cannot be written down."""
    tokenizer, *others = collator.reading
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    described = json.loads(backend.to_str())
    # What the last call has set: the collator sets them anew with every call.
    described["truncation"] = described["padding"] = None
    return json.dumps([described, repr(others)], sort_keys=True).encode()
