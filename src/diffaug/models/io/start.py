"""The model that training starts from: a plain encoder, or a finished embedding model with everything it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diffaug.errors import DiffaugError
from diffaug.models.backbone import load_backbone
from diffaug.models.encoder import Encoder
from diffaug.models.io.fetch import BACKBONE_FILES, find_folder
from diffaug.models.io.foreign import is_sentence_transformers, load_sentence_transformers
from diffaug.models.io.saved import is_saved_model, load_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Start(NamedTuple):
    """What `Method.build` starts from.

    Attributes:
        backbone: the transformers encoder.
        tokenizer: its tokenizer.
        finished: the whole model around the backbone, if the folder is that of an embedding model; None for a plain
            encoder, whose folder does not say how token states become a vector.
    """

    backbone: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    finished: Encoder | None = None


def load_start(source: str) -> Start:
    """Load a model to train further: a folder of diffaug, sentence-transformers or transformers, or a hub name.

    Raises:
        DiffaugError: it cannot be loaded completely; the message gives the reason.
    """
    folder = find_folder(source, None, BACKBONE_FILES)
    refuse_run_folder(source, folder)
    if is_saved_model(folder):
        encoder, tokenizer, _ = load_model(folder)
    elif is_sentence_transformers(folder):
        encoder, tokenizer = load_sentence_transformers(folder)
    else:
        return Start(*load_backbone(source))
    return Start(encoder.backbone, tokenizer, encoder)


def refuse_run_folder(source: str, folder: Path) -> None:
    """Raise if the folder is that of a run or of adapt, whose model is in a subfolder."""
    if (folder / "recipe.yaml").is_file() and is_saved_model(folder / "best"):
        raise DiffaugError(f"{source} is the folder of a run; load its model: {Path(source) / 'best'}")
    if (folder / "adapt.json").is_file():
        if is_saved_model(folder / "model"):
            raise DiffaugError(f"{source} is a folder of diffaug adapt; load its model: {Path(source) / 'model'}")
        raise DiffaugError(
            f"{source} is a folder of diffaug adapt without a model, since none was better than the one that it began "
            "with; load that one"
        )
