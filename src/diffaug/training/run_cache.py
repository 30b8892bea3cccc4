"""What several runs of one process need only once."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from diffaug.config import Recipe
from diffaug.data.cache import DataCache
from diffaug.data.records import ScoredPairs
from diffaug.embedder import Embedder
from diffaug.methods.base import Method, Stage
from diffaug.models.backbone import load_backbone
from diffaug.training.scoring import spearman
from diffaug.training.stage_cache import Beginning, first_stage_key


class Kept:
    """Backbones that were loaded and scored, files that were read, sentences that were tokenised.

    Pass one to each of several calls of `train` in a row. It gives every run what the run would have loaded itself, so
    that results are the same to the last bit; files that have changed since are read again. All of it stays in memory
    for as long as this object does.

    Args:
        shared: a folder for what other processes with the same data need not do again, either. With it, a run also
            takes over a first stage that another run has finished, where it is the very same.

    Attributes:
        data: the part that holds files and sentences.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self.data = DataCache(shared)
        self._shared = shared

    def backbone(self, source: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """As `load_backbone` gives it: a model of the caller's own, and a tokenizer that runs share.

        Raises:
            DiffaugError: it cannot be loaded.
        """
        model, tokenizer = self.data.once(("backbone", _files(source)), lambda: load_backbone(source))
        return copy.deepcopy(model), tokenizer

    def untrained_scores(
        self, source: str, scored: Mapping[str, ScoredPairs], device: torch.device
    ) -> dict[str, float]:
        """The scores that whoever trains nothing has: of the backbone as `Embedder.from_pretrained` loads it.

        Not of the model before its first step, whose prefixes and heads are random: any training would seem to help.

        Args:
            source: the backbone's folder or hub name.
            scored: pairs by the name of their score.
            device: where to compute.
        """
        data = tuple((name, tuple(pairs)) for name, pairs in scored.items())

        def score() -> dict[str, float]:
            plain = Embedder.from_pretrained(source, device=device)
            return {name: spearman(plain, pairs) for name, pairs in scored.items()}

        return dict(self.data.once(("untrained", _files(source), data), score))

    def beginning(self, recipe: Recipe, method: Method, stages: Sequence[Stage], source: str) -> Beginning | None:
        """Where the end of a run's first stage is, or will be, for all runs that begin the same.

        Args:
            recipe: of the run.
            method: before its first step, on the device that it is trained on.
            stages: as the method planned them.
            source: where the backbone came from.

        Returns:
            None where nothing is shared, or the run has no first stage that could be.
        """
        if self._shared is None:
            return None
        key = first_stage_key(recipe, method, stages, _files(source))
        return None if key is None else Beginning(self._shared / f"stage1-{key[:32]}.safetensors")


def _files(source: str) -> Hashable:
    """By what a backbone is known again: its name, and if it is a folder the age and size of what is in it."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return source
    files = ((path.name, path.stat()) for path in sorted(folder.iterdir()))
    return str(folder.resolve()), tuple((name, found.st_mtime_ns, found.st_size) for name, found in files)
