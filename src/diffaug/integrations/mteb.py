"""Models for mteb, the benchmark of text embeddings: ``mteb.evaluate(MTEBEncoder("runs/a/best"), tasks)``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction

from diffaug.embedder import Embedder, Vectors
from diffaug.errors import DiffaugError
from diffaug.models.io.fingerprint import fingerprint

if TYPE_CHECKING:
    import torch
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import BatchedInput, PromptType
    from torch.utils.data import DataLoader


class MTEBEncoder(AbsEncoder):
    """A model for ``mteb.evaluate``.

    mteb caches results by name and revision. The revision is the model's fingerprint, so that results of different
    models, or of a folder that was trained again, are never mixed up.

    Args:
        model: an `Embedder`, or an argument of `Embedder.from_pretrained`.
        name: ``owner/name`` in mteb's tables; without an owner it gets the prefix ``diffaug/``.
        device: device to run on; default: the embedder's, or the GPU if there is one.
    """

    def __init__(
        self,
        model: Embedder | str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self.model = model if isinstance(model, Embedder) else Embedder.from_pretrained(model, device=device)
        self._device = device
        self.mteb_model_meta = _meta(self.model, name or self.model.provenance.method or "embedder")

    def encode(
        self,
        inputs: DataLoader[BatchedInput],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> Vectors:
        """Encode all texts of a loader; vectors are normalised only if the model itself does so.

        Queries, documents and the texts of all tasks are encoded in the same way, without instructions.
        """
        if kwargs.get("precision", "float32") != "float32":
            raise DiffaugError(f"precision must be float32, got {kwargs['precision']!r}")
        texts = [text for batch in inputs for text in batch["text"]]
        return self.model.encode(
            texts,
            kwargs.get("batch_size"),
            normalize=False,
            show_progress=kwargs.get("show_progress_bar"),
            device=self._device,
        )


def _meta(embedder: Embedder, name: str) -> ModelMeta:
    encoder = embedder.encoder
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    words = encoder.backbone.get_input_embeddings()
    limit = embedder.collator.max_length
    return ModelMeta.create_empty(
        overwrites={
            "name": name if "/" in name else f"diffaug/{name}",
            "revision": fingerprint(encoder),
            "n_parameters": parameters,
            "n_embedding_parameters": words.weight.numel(),
            "memory_usage_mb": round(parameters * 4 / 1024**2, 1),
            "max_tokens": None if limit is None else limit + len(embedder.collator.template),
            "embed_dim": embedder.width,
            "framework": ["PyTorch", "Transformers"],
            "similarity_fn_name": ScoringFunction.COSINE,
            "use_instructions": False,
        }
    )
