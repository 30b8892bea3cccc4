"""Distillation: a student learns the vectors that a teacher, usually a larger model, gives to unlabelled text.

The teacher encodes every sentence once, before the first step. Its vectors are stored with the checkpoints of the run
and read from there, so that memory holds those of one batch.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from diffaug.config import Recipe
from diffaug.data.collate import Collator
from diffaug.data.corpus import Corpus
from diffaug.data.sampling import Batch
from diffaug.distributed import gather_rows
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file
from diffaug.inference.runner import Vectors
from diffaug.losses.distil import cosine_distance, similarity_distance, squared_distance
from diffaug.methods.base import Encode, Stage, StepBatch
from diffaug.methods.twostage import TwoStage
from diffaug.models.encoder import Encoder
from diffaug.progress import progress_bar

_LOSSES = {"cosine": cosine_distance, "mse": squared_distance, "similarity": similarity_distance}
# Sentences that the teacher encodes at a time: enough to batch them by length.
_BLOCK = 65_536


@dataclass(frozen=True)
class DistilBatch(StepBatch):
    """A step's sentences with the teacher's vectors: (sentences, width of the teacher)."""

    teacher: Tensor | None = None


class Distil(TwoStage):
    """Distillation, as stage 2. If the widths differ, a linear layer may compare them; it is not saved."""

    normal_init: ClassVar[bool] = False

    def __init__(self, recipe: Recipe, encoder: Encoder, collator: Collator) -> None:
        super().__init__(recipe, encoder, collator)
        second, settings = recipe.stage2, recipe.distil
        if settings.teacher is None:
            raise DiffaugError("the method 'distil' needs distil.teacher, the folder or hub name of an embedding model")
        if second is None or second.objective not in ("unlabelled", "nli_sentences") or second.aux_weight:
            raise DiffaugError(
                "the method 'distil' learns from sentences in stage 2: set stage2.objective to unlabelled or "
                "nli_sentences, and stage2.aux_weight=0"
            )
        if recipe.model.head == "training" or encoder.denoise is not None:
            raise DiffaugError(
                "the method 'distil' trains the vectors of the saved model: set model.head to none or kept, and "
                "model.denoise=false"
            )
        # On the CPU until `prepare`; not a module, so that it is neither trained nor saved.
        self._teacher: Embedder | None = Embedder.from_pretrained(settings.teacher, device="cpu")
        self._teacher_vectors: Vectors | None = None
        self._sentences: Callable[[], Iterator[str]] = lambda: iter(())
        same = self._teacher.width == encoder.width
        self._loss = ("cosine" if same else "similarity") if settings.loss == "auto" else settings.loss
        if second.matryoshka and self._loss != "similarity":
            raise DiffaugError(
                f"stage2.matryoshka cannot be combined with the loss {self._loss}, which compares whole vectors; set "
                "distil.loss=similarity"
            )
        if not same and self._loss != "similarity":
            self.projection = nn.Sequential(nn.Linear(encoder.width, self._teacher.width))

    def stages(self, corpus: Corpus) -> list[Stage]:
        *first, second = super().stages(corpus)
        assert self.recipe.stage2 is not None
        self._sentences = partial(corpus.texts, labelled=self.recipe.stage2.objective == "nli_sentences")
        return [*first, replace(second, streams={"sentences": second.streams["contrastive"]})]

    def prepare(self, folder: Path, main: bool) -> None:
        teacher = self._teacher
        assert teacher is not None
        # The name says which vectors they are: those of another teacher or other sentences are not mistaken for them.
        digest, count = hashlib.sha256(teacher.fingerprint().encode()), 0
        for sentence in self._sentences():
            digest.update(sentence.encode("utf-8", "surrogatepass") + b"\0")
            count += 1
        path = folder / f"teacher-{digest.hexdigest()[:32]}.npy"
        if main and not path.exists():
            self._encode(teacher, count, path)
        while not path.exists():  # the main process may take longer than a barrier would wait
            time.sleep(1)
        self._teacher_vectors = np.load(path, mmap_mode="r")
        self._teacher = None

    def _encode(self, teacher: Embedder, count: int, path: Path) -> None:
        """Write the teacher's vectors, not normalised."""
        sentences, device = self._sentences(), next(self.encoder.parameters()).device
        with atomic_file(path) as temporary, progress_bar("teacher", count) as advance:
            stored = np.lib.format.open_memmap(temporary, "w+", np.float32, (count, teacher.width))
            for start in range(0, count, _BLOCK):
                block = list(islice(sentences, _BLOCK))
                vectors = teacher.encode(block, normalize=False, show_progress=False, device=device)
                if not np.isfinite(vectors).all():
                    raise DiffaugError(f"distil.teacher={self.recipe.distil.teacher} gives vectors that are not finite")
                stored[start : start + len(block)] = vectors
                advance(len(block))
            stored.flush()

    def collate(self, stage: Stage, batches: Mapping[str, Batch]) -> StepBatch:
        if "sentences" not in batches:
            return super().collate(stage, batches)
        assert self._teacher_vectors is not None
        batch = batches["sentences"]
        tokens = self.collator.rows([sentence for (sentence,) in batch.examples])
        return DistilBatch(tokens, teacher=torch.from_numpy(self._teacher_vectors[batch.indices]))

    def losses(self, stage: Stage, batch: StepBatch, encode: Encode) -> dict[str, Tensor]:
        if not isinstance(batch, DistilBatch):
            return super().losses(stage, batch, encode)
        assert self.recipe.stage2 is not None
        assert batch.teacher is not None
        teacher = gather_rows(batch.teacher)
        states = encode(batch.tokens)
        distances = [
            weight * _LOSSES[self._loss](gather_rows(student), teacher) for weight, student in self.projected(states)
        ]
        distance = torch.stack(distances).sum()
        return {"distance": distance, "loss": self.recipe.stage2.weight * distance}
