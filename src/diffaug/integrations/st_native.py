"""Export models as native sentence-transformers modules, where possible.

Such a folder loads without diffaug and without ``trust_remote_code``:

>>> from sentence_transformers import SentenceTransformer
>>> model = SentenceTransformer("exported")  # doctest: +SKIP

`diffaug.models.io.foreign` reads these folders. Models that sentence-transformers cannot represent are saved with our
module (`diffaug.integrations.sentence_transformers`).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.files import atomic_folder, write_text
from diffaug.hub.card import CARD, model_card
from diffaug.models.backbone import quiet
from diffaug.models.config import ModelConfig
from diffaug.models.encoder import Encoder
from diffaug.models.io.foreign import EXPORTED_PROMPTS

# The package of their modules, now and before sentence-transformers 5.4.
_MODULES = ("sentence_transformers.sentence_transformer.modules", "sentence_transformers.models")
_SETTINGS = "sentence_bert_config.json"  # settings of their Transformer module, for all backbones
_OUR_LIBRARY, _THEIR_LIBRARY = "\nlibrary_name: diffaug\n", "\nlibrary_name: sentence-transformers\n"
_USAGE = re.compile(r"^## Usage\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_NATIVE_USAGE = """## Usage

With sentence-transformers (`pip install sentence-transformers`):

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
vectors = model.encode(["A dog runs.", "A puppy is running."])
print(model.similarity(vectors[:1], vectors[1:]))
```

All modules are native; diffaug is not needed, but can load the folder too (`Embedder.from_pretrained`).

"""


def export_sentence_transformers(
    embedder: Embedder, folder: str | os.PathLike[str], *, overwrite: bool = False, card: str | None = None
) -> str | None:
    """Write a model for sentence-transformers, with native modules if possible, otherwise with ours.

    Args:
        embedder: the model.
        folder: the folder to write.
        overwrite: replace it if it exists.
        card: the text of the model's README.md, if there is one.

    Returns:
        the parts that have no native module, see `why_not_native`; None if the export is native.
    """
    obstacle = why_not_native(embedder.encoder)
    if obstacle is None:
        export_native(embedder, folder, overwrite=overwrite, card=card)
    else:
        embedder.save(folder, overwrite=overwrite)
        if card is not None:
            write_text(Path(folder) / CARD, card)
    return obstacle


def why_not_native(encoder: Encoder) -> str | None:
    """The parts of a model for which sentence-transformers has no module, as text; None if there are none."""
    config = encoder.config
    parts = {
        "template": config.template is not None,
        "final stop": config.final_stop,
        "prefix": config.prefix is not None,
        "adapters": config.adapter is not None,
        "LoRA": config.lora is not None,
        "views of a plugin": config.plugin_views is not None,
        "flow": config.flow is not None,
        "denoising": config.denoise is not None,
        f"'{config.pooling}' pooling": config.pooling not in ("cls", "mean", "mask"),  # "mask" is the template's
        "norm in the head": any(layer.layer_norm is not None for layer in config.head),
        # They lowercase prompt and sentence together.
        "prompt with capitals before lowercased text": config.lowercase and config.prompt != config.prompt.lower(),
        "backbone with remote code": type(encoder.backbone).__module__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME),
    }
    return ", ".join(part for part, present in parts.items() if present) or None


def export_native(
    embedder: Embedder, folder: str | os.PathLike[str], *, overwrite: bool = False, card: str | None = None
) -> None:
    """Write a model as native Transformer, Pooling, Dense and Normalize modules, atomically.

    Args:
        embedder: the model.
        folder: the folder to write.
        overwrite: replace it if it exists.
        card: the text of the model's README.md, whose usage section is replaced; default: a generated card.

    Raises:
        DiffaugError: the model has parts without a native module, sentence-transformers is not installed, or the
            folder cannot be written.
    """
    encoder = embedder.encoder
    if (obstacle := why_not_native(encoder)) is not None:
        raise DiffaugError(f"sentence-transformers has no module for this model's {obstacle}; use Embedder.save")
    theirs = _their_modules()
    text = _native_card(card or model_card(encoder, embedder.provenance))
    with atomic_folder(Path(folder), overwrite=overwrite) as temporary, quiet():
        with _transformer(theirs, embedder, temporary) as transformer:
            modules = [transformer, theirs.Pooling(encoder.backbone.config.hidden_size, encoder.config.pooling)]
            modules += [_dense(theirs, layer) for layer in encoder.head]
            modules += [theirs.Normalize()] if encoder.config.normalize else []
            model = import_module("sentence_transformers").SentenceTransformer(modules=modules, device="cpu")
            model.prompts, model.default_prompt_name = _prompts(encoder.config)
            try:
                model.save_pretrained(str(temporary), create_model_card=False)
            except SafetensorError as error:  # for example a full disk
                raise DiffaugError(f"{folder} cannot be written: {error}") from error
        if encoder.config.lowercase:
            _set_lowercase(temporary / _SETTINGS)
        (temporary / CARD).write_text(text, "utf-8")


@contextmanager
def _transformer(theirs: Any, embedder: Embedder, place: Path) -> Iterator[Any]:
    """Their Transformer with our backbone, which it can only load from a folder; the folder is temporary."""
    backbone, collator = embedder.encoder.backbone, embedder.collator
    # Their limit includes special tokens, ours does not. Ours never exceeds the backbone's number of positions.
    limit = VERY_LARGE_INTEGER if collator.max_length is None else collator.max_length + len(collator.template)
    settings = {"max_seq_length": limit, "do_lower_case": embedder.encoder.config.lowercase}
    with tempfile.TemporaryDirectory(prefix=".backbone.", dir=place) as source:
        backbone.save_pretrained(source)
        embedder.tokenizer.save_pretrained(source)
        (Path(source) / _SETTINGS).write_text(json.dumps(settings), "utf-8")
        transformer = theirs.Transformer.load(source)
        transformer.tokenizer.padding_side = "right"  # as we pad
        _fill_with_zeros(transformer.auto_model, known=backbone.state_dict().keys())
        yield transformer


@torch.no_grad()
def _fill_with_zeros(model: nn.Module, known: Any) -> None:
    """Zero the randomly initialised parameters: BERT's pooler, which our models lack and no module uses.

    It stays in the folder, because transformers would warn about missing weights.
    """
    for name, parameter in model.named_parameters():
        if name not in known:
            parameter.zero_()


def _set_lowercase(path: Path) -> None:
    """Set ``do_lower_case``, which they read but do not write.

    They rely on the tokenizer's own setting, which RoBERTa's tokenizer ignores.
    """
    settings = {**json.loads(path.read_text("utf-8")), "do_lower_case": True}
    path.write_text(json.dumps(settings, indent=4), "utf-8")


def _dense(theirs: Any, layer: Any) -> Any:
    """Their Dense with the weights of a layer of our head: linear and activation."""
    linear, activation = layer
    dense = theirs.Dense(linear.in_features, linear.out_features, linear.bias is not None, activation)
    dense.linear.load_state_dict(linear.state_dict())
    return dense


def _prompts(config: ModelConfig) -> tuple[dict[str, str], str | None]:
    """All prompts by name, and the name of the one that is put before every sentence."""
    named = dict(config.prompts)
    if not config.prompt:
        return {**dict.fromkeys(EXPORTED_PROMPTS[1:], ""), **named}, None
    # With lower-cased text, the prompt is lower-cased too.
    default = next((name for name, text in named.items() if config.prompt in (text, text.lower())), None)
    if default is None:
        return {**dict.fromkeys(EXPORTED_PROMPTS, config.prompt), **named}, EXPORTED_PROMPTS[0]
    return {**dict.fromkeys(EXPORTED_PROMPTS[1:], ""), **named}, default


def _native_card(card: str) -> str:
    """The card with a usage section for native folders; a card that we did not generate is not changed."""
    if _OUR_LIBRARY not in card:
        return card
    card = card.replace(_OUR_LIBRARY, _THEIR_LIBRARY, 1)
    return _USAGE.sub(lambda _: _NATIVE_USAGE, card, count=1).rstrip() + "\n"


def _their_modules() -> Any:
    for name in _MODULES:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise DiffaugError("exporting this model needs sentence-transformers: pip install 'diffaug[sentence-transformers]'")
