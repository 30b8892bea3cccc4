"""Who computes: what an `Embedder` needs of a model, whichever library runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from diffaug.data.collate import Collator, collator_for
from diffaug.errors import DiffaugError
from diffaug.models.encoder import Encoder
from diffaug.models.fingerprint import fingerprint
from diffaug.models.rows import Rows

Vectors = NDArray[np.float32]


class Runner(ABC):
    """Token rows in, vectors out."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The length of a vector."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the model runs."""

    @property
    @abstractmethod
    def encoder(self) -> Encoder:
        """The model as a PyTorch module.

        Raises:
            DiffaugError: another library runs it.
        """

    @abstractmethod
    def move(self, device: str | torch.device | None) -> None:
        """Run there from now on; None: where this runner is at its best.

        Raises:
            DiffaugError: it cannot run there.
        """

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        """What reads sentences for this model."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash, in hex, of all that decides the vectors: see `diffaug.models.fingerprint`."""

    @abstractmethod
    def __call__(self, rows: Rows) -> Vectors:
        """(rows, width): an array of the caller's own."""


class TorchRunner(Runner):
    """An encoder, run by PyTorch."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder.eval()

    @property
    def width(self) -> int:
        return self._encoder.width

    @property
    def device(self) -> torch.device:
        return next(self._encoder.parameters()).device

    @property
    def encoder(self) -> Encoder:
        return self._encoder

    def move(self, device: str | torch.device | None) -> None:
        try:
            self._encoder.to(default_device() if device is None else device)
        except (RuntimeError, AssertionError) as error:  # no such device, and none that this build of torch knows
            raise DiffaugError(f"the model cannot run on the device {str(device)!r}: {str(error)[:200]}") from error

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Collator:
        return collator_for(self._encoder, tokenizer)

    def fingerprint(self) -> str:
        return fingerprint(self._encoder)

    @torch.inference_mode()
    def __call__(self, rows: Rows) -> Vectors:
        vectors: Vectors = self._encoder(rows.to(self.device)).float().cpu().numpy()
        return vectors


def default_device() -> str:
    """The GPU if there is one."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
