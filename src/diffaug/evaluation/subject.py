"""Whatever is evaluated, brought to one form: a name, a fingerprint, and a way to embed sentences."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.evaluation.tasks import Embeddings, Vectors
from diffaug.models.io.fetch import EMBEDDED_MODEL

Model = str | os.PathLike[str] | Embedder | Callable[[list[str]], Any] | None
"""A folder or hub name, an `Embedder`, or anything that has ``encode`` or is callable on a list of sentences."""


@dataclass(frozen=True)
class ModelInfo:
    """Which model a score belongs to. A callable has no fingerprint: what it computes cannot be looked into."""

    name: str
    fingerprint: str | None

    def tail(self, parts: int) -> str:
        """The last parts of a path, for a table."""
        return "/".join(self.name.rstrip("/").split("/")[-parts:])


class Subject:
    """A model under evaluation.

    Args:
        model: see `Model`.
        batch_size, device, trust_remote_code: for a model that is loaded here, as for `Embedder`.
    """

    def __init__(
        self,
        model: Model,
        *,
        batch_size: int | None = None,
        device: str | None = None,
        trust_remote_code: bool = False,
        show_progress: bool | None = None,
    ) -> None:
        self.embedder: Embedder | None = None
        self._batch_size, self._show_progress = batch_size, show_progress
        if model is None or isinstance(model, (str, os.PathLike)):
            name = "the embedded encoder" if model is None else os.fspath(model)
            source = EMBEDDED_MODEL if model is None else model
            self.embedder = Embedder.from_pretrained(source, device=device, trust_remote_code=trust_remote_code)
        elif isinstance(model, Embedder):
            name = "an Embedder"
            self.embedder = model
        else:
            # Models of other libraries are often callable too, but not on sentences: their `encode` comes first.
            call = getattr(model, "encode", model)
            if not callable(call):
                raise DiffaugError(f"cannot evaluate a {type(model).__name__}: it has no encode and is not callable")
            name = getattr(model, "__qualname__", type(model).__qualname__)
            self._call = call
        self.info = ModelInfo(name, None if self.embedder is None else self.embedder.fingerprint())

    def embed(self, sentences: Sequence[str]) -> Embeddings:
        """Embed distinct sentences, all in one call, at the length the model gives the vectors.

        Raises:
            DiffaugError: the model gave something that is no vector for each sentence.
        """
        texts = list(sentences)
        if self.embedder is not None:
            vectors = self.embedder.encode(texts, self._batch_size, normalize=False, show_progress=self._show_progress)
        else:
            vectors = _array(self._call(texts))
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise DiffaugError(
                f"{self.info.name} gave an array of shape {vectors.shape} for {len(texts):,} sentences, "
                "not a vector for each"
            )
        if len(bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
            raise DiffaugError(
                f"{self.info.name} gave numbers that are not finite for {len(bad):,} of {len(texts):,} sentences, "
                f"as for {texts[bad[0]]!r:.80}; the model has diverged, or overflows in half precision"
            )
        return Embeddings(texts, vectors)


def _array(output: Any) -> Vectors:
    if isinstance(output, torch.Tensor):
        output = output.detach().float().cpu().numpy()
    elif isinstance(output, (list, tuple)) and output and isinstance(output[0], torch.Tensor):
        output = torch.stack(list(output)).detach().float().cpu().numpy()
    return np.asarray(output, dtype=np.float32)
