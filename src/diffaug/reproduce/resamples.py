"""What bootstraps gave, kept in a grid's folder, so that tables are not drawn again by whoever reads them next.

To draw the pairs of some hundred runs a thousand times takes most of a minute. What comes of it depends on nothing but
the similarities and gold scores that go in, so it is kept under their fingerprint: runs of which one is new, gone or
different have another one, and there is nothing to keep up to date.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from diffaug.errors import DiffaugError
from diffaug.evaluation.statistics import Floats
from diffaug.files import atomic_file
from diffaug.version import __version__

FILE = ".resamples.npz"
Pairs = dict[str, NDArray[np.float32]]
"""A number for each sentence pair, by task."""
# To be raised when the same similarities give other numbers than before.
_METHOD = 1


class Resamples:
    """The file of a grid, as a context: what was used or added stays, what is no longer asked for goes.

    A file that is damaged, or cannot be written, costs time and nothing else.

    Args:
        folder: the grid's.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._kept: dict[str, Floats] = {}
        self._used: set[str] = set()
        self._new = False

    def __enter__(self) -> Resamples:
        # Whatever is wrong with the file, what it held can be computed.
        with suppress(Exception), np.load(self._path) as arrays:
            self._kept = {key: arrays[key] for key in arrays.files}
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if not self._new:
            return
        # Somebody who gave up half-way has not asked for everything yet.
        keep = self._kept if kind is not None else {key: self._kept[key] for key in self._kept if key in self._used}
        with suppress(DiffaugError), atomic_file(self._path) as temporary:
            np.savez(temporary, **keep)  # type: ignore[arg-type]

    def get(self, key: str, shape: tuple[int, int]) -> Floats | None:
        """What was kept under a fingerprint, if it has the shape it must have."""
        found = self._kept.get(key)
        if found is None or found.shape != shape or found.dtype != np.float64:
            return None
        self._used.add(key)
        return found

    def put(self, key: str, values: Floats) -> None:
        """Keep this."""
        self._kept[key] = values
        self._used.add(key)
        self._new = True


def fingerprint(cosines: Sequence[Pairs], gold: Pairs, tasks: Sequence[str], resamples: int, seed: int) -> str:
    """Of all that decides what comes of a bootstrap.

    Args:
        cosines: of each run, by task.
        gold: the scores of the same pairs, by task.
        tasks: their order.
        resamples, seed: of the bootstrap.
    """
    digest = hashlib.sha256()
    digest.update(json.dumps([_METHOD, __version__, list(tasks), len(cosines), resamples, seed]).encode())
    for task in tasks:
        for array in (gold[task], *(of_run[task] for of_run in cosines)):
            digest.update(f"{array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
