"""A model that waits until a test lets it go on."""

from __future__ import annotations

import threading
from typing import Any

from diffaug.embedder import Embedder


class Gate:
    """An embedder whose model waits until it may go on; counts its batches."""

    def __init__(self, embedder: Embedder) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self._embedder = embedder
        self.failing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def runner(self, batch: Any) -> Any:
        self.entered.set()
        self.open.wait()
        self.sizes.append(len(batch.input_ids))
        if self.failing:
            raise RuntimeError("/home/someone/model.bin is broken")
        return self._embedder.runner(batch)
