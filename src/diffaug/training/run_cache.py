"""A cache for several runs in one process."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import torch

from diffaug.config import Recipe
from diffaug.data.cache import DataCache
from diffaug.data.records import ScoredPairs
from diffaug.embedder import Embedder
from diffaug.methods.base import Method, Stage
from diffaug.models.io.fetch import backbone_fingerprints
from diffaug.models.io.start import Start, load_start
from diffaug.training.scoring import final_scores
from diffaug.training.stage_cache import CachedStage, first_stage_key


class RunCache:
    """Caches loaded and scored backbones, read files and tokenised sentences.

    Pass the same object to several calls of `train`. Results are identical to those without it; files that have
    changed are read again. Everything stays in memory as long as this object does.

    Args:
        shared: a folder for what other processes with the same data can use too. With it, a run also loads a first
            stage that another run has finished, if it is exactly the same.

    Attributes:
        data: the cache of files and sentences.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self.data = DataCache(shared)
        self._shared = shared

    def start(self, source: str) -> Start:
        """A copy of the model that `load_start` returns, with the tokenizer, which runs share.

        Raises:
            DiffaugError: it cannot be loaded.
        """
        backbone, tokenizer, finished = self.data.once(("start", _files(source)), lambda: load_start(source))
        backbone, finished = copy.deepcopy((backbone, finished))  # together: one holds the other
        return Start(backbone, tokenizer, finished)

    def fingerprints(self, source: str) -> tuple[str, str]:
        """As `backbone_fingerprints`, computed once."""
        return self.data.once(("fingerprints", _files(source)), lambda: backbone_fingerprints(source))

    def untrained_scores(
        self, source: str, scored: Mapping[str, ScoredPairs], device: torch.device
    ) -> dict[str, float]:
        """The scores of the untrained backbone, as `Embedder.from_pretrained` loads it.

        These are not the scores before the first step, when prefixes and heads are random and any training would seem
        to help.

        Args:
            source: the backbone's folder or hub name.
            scored: pairs by the name of their score.
            device: where to compute.
        """
        data = tuple((name, tuple(pairs)) for name, pairs in scored.items())

        def score() -> dict[str, float]:
            return final_scores(Embedder.from_pretrained(source, device=device), scored)

        return dict(self.data.once(("untrained", _files(source), data), score))

    def first_stage(self, recipe: Recipe, method: Method, stages: Sequence[Stage], source: str) -> CachedStage | None:
        """The cached first stage that this run shares with others.

        Args:
            recipe: of the run.
            method: before its first step, on the device it is trained on.
            stages: as the method planned them.
            source: the backbone's folder or hub name.

        Returns:
            None without a shared folder, or if the first stage cannot be shared.
        """
        if self._shared is None:
            return None
        key = first_stage_key(recipe, method, stages, _files(source))
        return None if key is None else CachedStage(self._shared / f"stage1-{key[:32]}.safetensors")


def _files(source: str) -> Hashable:
    """Identifies a backbone: its name, and if it is a folder, the modification times and sizes of its files."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return source
    files = ((path.name, path.stat()) for path in sorted(folder.iterdir()))
    return str(folder.resolve()), tuple((name, found.st_mtime_ns, found.st_size) for name, found in files)
