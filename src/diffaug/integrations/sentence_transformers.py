"""Models in sentence-transformers: its `encode`, evaluators and trainer.

sentence-transformers can load every saved model if this package is installed:

>>> from sentence_transformers import SentenceTransformer
>>> model = SentenceTransformer("runs/a/best", trust_remote_code=True)  # doctest: +SKIP

It requires ``trust_remote_code`` to import classes of other packages. The folder contains no code: `DiffaugModule`
comes from the installed package. Without the flag, pass the module yourself:

>>> model = SentenceTransformer(modules=[DiffaugModule.load("runs/a/best")])  # doctest: +SKIP
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from diffaug.data.collate import collator_for
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.kernels.onednn import fast_products
from diffaug.models.batch import PaddedBatch
from diffaug.models.io.saved import load_model, save_model
from diffaug.models.io.st_folder import MODULES, SETTINGS, add_requirements

try:
    from sentence_transformers.base.modules import InputModule
except ImportError:  # before sentence-transformers 5.4
    from sentence_transformers.models import InputModule

# Options of sentence-transformers for transformers models that our module does not support.
_OTHER_KEYWORDS = ("processor_kwargs", "tokenizer_kwargs", "config_kwargs")


class DiffaugModule(InputModule):
    """A whole model as the first, and usually the only, module of a `SentenceTransformer`.

    It encodes a sentence as `Embedder` does, with template and final stop, and returns the same vector. Modules of
    sentence-transformers may follow. A prompt is put before the sentence.

    Args:
        embedder: the model; its weights are shared, not copied.
    """

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.encoder = embedder.encoder
        self.collator = embedder.collator
        self.provenance = embedder.provenance

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        return self.collator.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.collator = collator_for(self.encoder, tokenizer)

    @property
    def max_seq_length(self) -> int | None:
        """Maximum number of tokens, including special tokens and template, as usual in sentence-transformers.

        A new limit is saved with the model. It cannot exceed the backbone's number of positions.
        """
        limit = self.collator.max_length
        return None if limit is None else limit + len(self.collator.template)

    @max_seq_length.setter
    def max_seq_length(self, limit: int | None) -> None:
        around = len(self.collator.template)
        if limit is not None and limit <= around:
            raise DiffaugError(
                f"max_seq_length must be greater than {around}, the number of template and special tokens, got {limit}"
            )
        self.encoder.config = replace(self.encoder.config, max_length=None if limit is None else limit - around)
        self.collator = collator_for(self.encoder, self.tokenizer)

    def get_embedding_dimension(self) -> int:
        """The width of a vector."""
        return self.encoder.width

    # The name before sentence-transformers 6.
    get_sentence_embedding_dimension = get_embedding_dimension

    def get_config_dict(self) -> dict[str, Any]:
        """The model's settings, for printing, model cards and comparison."""
        return self.encoder.config.to_dict()

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """Convert sentences to the tensors that `forward` reads, named as the fields of `PaddedBatch`."""
        if kwargs.get("processing_kwargs"):
            raise DiffaugError("a diffaug model has fixed preprocessing; leave out processing_kwargs")
        for i, text in enumerate(inputs):
            if not isinstance(text, str):
                raise DiffaugError(f"sentence {i} must be a string, got {type(text).__name__}: {text!r:.80}")
        ids, _ = self.collator.ids([(prompt or "") + text for text in inputs])
        rows = self.collator.rows(ids)
        if rows.attention_mask is None:  # their code may need the mask even if there is no padding
            rows = replace(rows, attention_mask=torch.ones_like(rows.input_ids))
        return {name: value for name, value in vars(rows).items() if isinstance(value, Tensor)}

    def tokenize(self, texts: Sequence[str], **kwargs: Any) -> dict[str, Tensor]:
        """The name of `preprocess` before sentence-transformers 5.4."""
        return self.preprocess(texts, **kwargs)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding`` (rows, width) to the features."""
        batch = PaddedBatch(**{f.name: features[f.name] for f in fields(PaddedBatch) if f.name in features})
        with fast_products():
            features["sentence_embedding"] = self.encoder(batch)
        return features

    def train(self, mode: bool = True) -> DiffaugModule:
        """As for any module; training mode also removes the model's scores, which will no longer be valid."""
        if mode:
            self.provenance = replace(self.provenance, scores={})
        super().train(mode)
        return self

    @classmethod
    def load(
        cls,
        model_name_or_path: str | os.PathLike[str],
        subfolder: str = "",
        *,
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        model_kwargs: dict[str, Any] | None = None,
        backend: str = "torch",
        **kwargs: Any,
    ) -> DiffaugModule:
        """Load a saved model from a folder or the hub.

        Args:
            model_name_or_path: saved by `Embedder.save` or by sentence-transformers' ``save_pretrained``.
            subfolder: the module's subfolder.
            token: for a private model on the hub.
            cache_folder: the cache of models of the hub.
            revision: branch, tag or commit of a model on the hub.
            local_files_only: make no requests to the hub.
            model_kwargs: only ``dtype`` is supported.
            backend: only ``torch`` is supported.
            **kwargs: other arguments of sentence-transformers, which do not change the vectors.

        Raises:
            DiffaugError: the model cannot be loaded completely, or an option is not supported.
        """
        options = {**(model_kwargs or {})}
        dtype = _dtype(options.pop("dtype", None) or options.pop("torch_dtype", None))
        refused = [*options, *(name for name in _OTHER_KEYWORDS if kwargs.get(name))]
        if refused or backend != "torch":
            what = ", ".join(refused) or f"the backend {backend!r}"
            raise DiffaugError(f"a diffaug model has fixed settings and does not support {what}")
        folder = cls.load_dir_path(
            str(model_name_or_path),
            subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        if folder is None:
            raise DiffaugError(f"the folder {Path(model_name_or_path, subfolder)} does not exist")
        module = cls(Embedder(*load_model(Path(folder), allow_more_modules=True), device="cpu"))
        return module if dtype is None else module.to(dtype)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Save the model into a folder of sentence-transformers; weights are always saved as safetensors."""
        target = Path(output_path)
        with tempfile.TemporaryDirectory(prefix=".diffaug.", dir=target) as temporary:
            written = Path(temporary) / "model"
            save_model(written, self.encoder, self.tokenizer, self.provenance)
            for path in written.iterdir():
                if path.name not in {MODULES, SETTINGS}:  # sentence-transformers writes its own
                    path.replace(target / path.name)
        add_requirements(target)


def _dtype(wanted: str | torch.dtype | None) -> torch.dtype | None:
    """A dtype, given as such or by name; None for the default, float32."""
    if wanted is None or wanted == "auto" or isinstance(wanted, torch.dtype):
        return wanted if isinstance(wanted, torch.dtype) else None
    found = getattr(torch, wanted, None)
    if not isinstance(found, torch.dtype):
        raise DiffaugError(f"dtype must be 'float32', 'bfloat16' or 'float16', got {wanted!r}")
    return found
