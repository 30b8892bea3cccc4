"""The masked language model that DiffCSE needs beside the encoder."""

from __future__ import annotations

import json
from pathlib import Path

from diffaug.config import RECIPES
from diffaug.reproduce.paper import encoder_name
from diffaug.reproduce.plans.files import MissingDataError, change

# The recipe itself has generators for these.
_KNOWN = ("bert-base-uncased", "roberta-base", "embedded")
_EMBEDDED = RECIPES.parent / "assets" / "mini"


def generator_for(encoder: str, named: str | None) -> list[str]:
    """The change that gives DiffCSE its generator, which must have the encoder's vocabulary.

    Raises:
        MissingDataError: none is known for this encoder.
    """
    if named is not None:
        return [change("replaced.generator", named)]
    if encoder_name(encoder) in _KNOWN:
        return []
    ours, theirs = _vocabulary(_EMBEDDED), _vocabulary(Path(encoder))
    if ours is not None and ours == theirs:
        return ["replaced.generator=embedded"]
    raise MissingDataError(f"a masked language model with the vocabulary of {encoder} (name it with --generator)")


def _vocabulary(folder: Path) -> object:
    """What a fast tokenizer's file says about its words; None if there is no such file."""
    try:
        return json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
