"""From sentences to vectors: distinct sentences, batched by length, on one device or several."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.inference.runner import Runner, Vectors, run_parallel

# Sentences that are tokenised and sorted by length at a time: enough that most batches need no padding, few enough that
# the tokens need little memory.
_WINDOW = 16_384
# Tokens per batch if the caller gives no batch size. On a CPU the activations should fit its cache; on a GPU a batch
# should be large enough to use all cores.
_TOKEN_BUDGET = {"cpu": 2_048, "cuda": 65_536, "mps": 16_384}

# A CPU model is split into runners of at least this many sentences: fewer are encoded before its copies are made.
_SENTENCES_PER_SPLIT = 32
# Batches per device, if there are several: they finish at different times, and the last ones leave devices idle.
_BATCHES_PER_DEVICE = 4


def encode_texts(
    texts: list[str],
    collator: Collator,
    runners: Sequence[Runner],
    batch_size: int | None = None,
    *,
    normalize: bool = True,
    width: int | None = None,
    advance: Callable[[int], None] = lambda sentences: None,
) -> tuple[Vectors, int]:
    """Encode each distinct text once; see `Embedder.encode`.

    Args:
        texts: the sentences.
        collator: the model's.
        runners: the model, or copies of it on several devices.
        batch_size: as for `Embedder.encode`.
        normalize: scale the vectors to length 1.
        width: truncate the vectors to this many components before they are normalised; default: all.
        advance: called with the number of sentences after each batch, in any thread; all calls sum to ``len(texts)``.

    Returns:
        float32 of shape (len(texts), width), and the number of truncated sentences.
    """
    if batch_size is not None and batch_size < 1:
        raise DiffaugError(f"batch_size must be at least 1, got {batch_size}")
    first = _first_occurrences(texts)
    distinct = np.flatnonzero(first == np.arange(len(first)))
    vectors = np.empty((len(texts), width or runners[0].width), dtype=np.float32)
    if len(runners) == 1:
        runners = runners[0].split(len(distinct) // _SENTENCES_PER_SPLIT)
    devices = [runner.device for runner in runners]
    truncated = 0

    def batches() -> Iterator[tuple[NDArray[np.int64], list[list[int]]]]:
        """Indices in ``texts``, and the token ids of these sentences."""
        nonlocal truncated
        for start in range(0, len(distinct), _WINDOW):
            window = distinct[start : start + _WINDOW]
            ids, too_long = collator.ids([texts[i] for i in window])
            truncated += too_long
            for batch in length_batches([len(row) for row in ids], len(collator.template), devices, batch_size):
                yield window[batch], [ids[i] for i in batch]
            if len(window) == _WINDOW:
                _return_memory()

    def embed(runner: Runner, batch: tuple[NDArray[np.int64], list[list[int]]]) -> None:
        indices, ids = batch
        found = runner(collator.rows(ids))[:, :width]
        vectors[indices] = unit(found) if normalize else found
        advance(len(indices))

    run_parallel(batches(), runners, embed)
    repeated = np.flatnonzero(first != np.arange(len(first)))
    for block in np.array_split(repeated, len(repeated) // _WINDOW + 1):
        vectors[block] = vectors[first[block]]
    if len(repeated):
        advance(len(repeated))
    return vectors, truncated


def length_batches(
    lengths: list[int], around: int, devices: Sequence[torch.device], batch_size: int | None = None
) -> Iterator[list[int]]:
    """Indices of the sentences of each batch, longest first, so that memory runs out in the first batch or never.

    Args:
        lengths: number of tokens of each sentence.
        around: number of tokens of the template.
        devices: devices that the batches are for.
        batch_size: sentences per batch; default: as many as fit the devices' token budget.
    """
    budget = token_budget(devices)
    if len(devices) > 1:
        budget = min(budget, (sum(lengths) + around * len(lengths)) // (_BATCHES_PER_DEVICE * len(devices)))
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch:
            width = lengths[batch[0]] + around
            if batch_size is None:
                # If the batch is at least half full, a new length starts a new batch, which avoids padding.
                room = budget if lengths[i] == lengths[batch[0]] else budget // 2
                full = (len(batch) + 1) * width > room
            else:
                full = len(batch) == batch_size
            if full:
                yield batch
                batch = []
        batch.append(i)
    if batch:
        yield batch


def token_budget(devices: Sequence[torch.device]) -> int:
    """Tokens per batch that suit all of these devices."""
    return min(_TOKEN_BUDGET.get(device.type, _TOKEN_BUDGET["cpu"]) for device in devices)


def _return_memory() -> None:
    """Return free memory to the system.

    Without this, glibc keeps what the threads of the runners free, in pieces that larger batches do not fit into, and a
    long encode takes more and more memory.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library or system
        ctypes.CDLL(None).malloc_trim(0)


def unit(vectors: Vectors) -> Vectors:
    """Scale vectors to length 1; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def _first_occurrences(texts: list[str]) -> NDArray[np.int64]:
    """For each text, the index of the first equal text."""
    seen: dict[str, int] = {}
    first = np.empty(len(texts), dtype=np.int64)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise DiffaugError(f"sentence {i} must be a string, got {type(text).__name__}: {text!r:.80}")
        first[i] = seen.setdefault(text, i)
    return first
