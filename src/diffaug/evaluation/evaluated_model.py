"""A common interface to all kinds of models that can be evaluated: name, fingerprint, `embed`."""

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

Model = str | os.PathLike[str] | Embedder | Callable[[list[str]], Any] | None
"""A folder or hub name, an `Embedder`, or an object with ``encode`` or callable with a list of sentences."""


@dataclass(frozen=True)
class ModelInfo:
    """Identifies the model of a score. A callable has no fingerprint."""

    name: str
    fingerprint: str | None

    def tail(self, parts: int) -> str:
        """The last parts of the path, for tables."""
        return "/".join(self.name.rstrip("/").split("/")[-parts:])


class EvaluatedModel:
    """A model to evaluate.

    Args:
        model: see `Model`.
        truncate_dim: evaluate the first so many components of its vectors.
        batch_size, device, trust_remote_code, show_progress: passed to `Embedder`, for a model that is loaded here.
    """

    def __init__(
        self,
        model: Model,
        *,
        truncate_dim: int | None = None,
        batch_size: int | None = None,
        device: str | None = None,
        trust_remote_code: bool = False,
        show_progress: bool | None = None,
    ) -> None:
        self.embedder: Embedder | None = None
        self._batch_size, self._show_progress = batch_size, show_progress
        self._truncate_dim = truncate_dim
        if model is None or isinstance(model, (str, os.PathLike)):
            name = "the embedded encoder" if model is None else os.fspath(model)
            self.embedder = Embedder.from_pretrained(model, device=device, trust_remote_code=trust_remote_code)
        elif isinstance(model, Embedder):
            name = "an Embedder"
            self.embedder = model
        else:
            # Models of other libraries may be callable, but not with sentences, so `encode` has precedence.
            call = getattr(model, "encode", model)
            if not callable(call):
                raise DiffaugError(f"cannot evaluate a {type(model).__name__}: it has no encode and is not callable")
            name = getattr(model, "__qualname__", type(model).__qualname__)
            self._call = call
        fingerprint = None if self.embedder is None else self.embedder.fingerprint()
        if truncate_dim is not None:
            if self.embedder is None:
                raise DiffaugError("truncate_dim needs a model that diffaug loads; truncate the vectors yourself")
            name, fingerprint = f"{name} (first {truncate_dim} components)", f"{fingerprint}[:{truncate_dim}]"
        self.info = ModelInfo(name, fingerprint)

    def backbone(self) -> str:
        """The backbone that a trained model started from, as its recipe names it.

        Raises:
            DiffaugError: the model does not know it.
        """
        recipe = None if self.embedder is None else self.embedder.provenance.recipe
        if not recipe:
            raise DiffaugError(f"{self.info.name} was not trained by diffaug, so there is no model before its training")
        return str(recipe["model"]["backbone"])

    def embed(self, sentences: Sequence[str]) -> Embeddings:
        """Encode distinct sentences in one call; the vectors are not normalised.

        Raises:
            DiffaugError: the model did not return one finite vector per sentence.
        """
        texts = list(sentences)
        if self.embedder is not None:
            vectors = self.embedder.encode(
                texts,
                self._batch_size,
                normalize=False,
                truncate_dim=self._truncate_dim,
                show_progress=self._show_progress,
            )
        else:
            vectors = _array(self._call(texts))
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise DiffaugError(
                f"{self.info.name} returned an array of shape {vectors.shape} for {len(texts):,} sentences; it must "
                "return one vector per sentence"
            )
        if len(bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
            raise DiffaugError(
                f"{self.info.name} returned NaN or infinity for {len(bad):,} of {len(texts):,} sentences, for example "
                f"{texts[bad[0]]!r:.80}; the model has diverged, or overflows in half precision"
            )
        return Embeddings(texts, vectors)


def _array(output: Any) -> Vectors:
    if isinstance(output, torch.Tensor):
        output = output.detach().float().cpu().numpy()
    elif isinstance(output, (list, tuple)) and output and isinstance(output[0], torch.Tensor):
        output = torch.stack(list(output)).detach().float().cpu().numpy()
    return np.asarray(output, dtype=np.float32)
