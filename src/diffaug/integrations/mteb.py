"""Models for mteb, the benchmark of text embeddings: ``mteb.evaluate(MTEBEncoder("runs/a/best"), tasks)``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction

from diffaug.config import source_list
from diffaug.embedder import Embedder, Vectors
from diffaug.errors import DiffaugError
from diffaug.models.io.fingerprint import fingerprint

if TYPE_CHECKING:
    import torch
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import BatchedInput, PromptType
    from torch.utils.data import DataLoader


# How the public files of mteb's tasks are called, without punctuation, and mteb's name of the task.
_MTEB_NAMES = {"stsb": "STSBenchmark", "sick": "SICK-R", **{rf"sts(20)?{year}": f"STS{year}" for year in range(12, 17)}}


class MTEBEncoder(AbsEncoder):
    """A model for ``mteb.evaluate``.

    mteb caches results by name and revision. The revision is the model's fingerprint, so that results of different
    models, or of a folder that was trained again, are never mixed up.

    Args:
        model: an `Embedder`, or an argument of `Embedder.from_pretrained`.
        name: ``owner/name`` in mteb's tables; without an owner it gets the prefix ``diffaug/``.
        device: device to run on; default: the embedder's, or the GPU if there is one.
        training_datasets: what the model was trained on, by mteb's names, from which mteb tells whether it is zero-shot
            on a task; default: the data of the model's recipe, training and dev, known data sets by mteb's names and
            others by the names of their files. None without a recipe: unknown.
    """

    def __init__(
        self,
        model: Embedder | str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        device: str | torch.device | None = None,
        training_datasets: set[str] | None = None,
    ) -> None:
        self.model = model if isinstance(model, Embedder) else Embedder.from_pretrained(model, device=device)
        self._device = device
        if training_datasets is None:
            training_datasets = _training_datasets(self.model.provenance.recipe)
        name = name or self.model.provenance.method or "embedder"
        self.mteb_model_meta = _meta(self.model, name, training_datasets)

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


def _training_datasets(recipe: Mapping[str, Any] | None) -> set[str] | None:
    """The names of a recipe's training and dev data; None if the recipe is not known."""
    if not recipe:
        return None
    data = recipe["data"]
    sources = [source for name in ("nli", "unlabelled", "dev") for source in source_list(data.get(name))]
    return {_dataset_name(source) for source in sources}


def _dataset_name(source: str) -> str:
    """mteb's name of a known data set, otherwise the name of the file or of the data set on the hub."""
    # hub:OWNER/NAME/CONFIG/SPLIT; a file's name without its endings
    name = "/".join(source.removeprefix("hub:").split("/")[:2]) if source.startswith("hub:") else Path(source).name
    plain = re.sub(r"[^a-z0-9]", "", f"{Path(source).parent.name}/{name}".casefold())
    known = (task for pattern, task in _MTEB_NAMES.items() if re.search(pattern, plain))
    return next(known, name if source.startswith("hub:") else name.split(".")[0])


def _meta(embedder: Embedder, name: str, training_datasets: set[str] | None) -> ModelMeta:
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
            "training_datasets": training_datasets,
        }
    )
