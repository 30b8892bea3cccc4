"""Scoring the model of a cell on the STS tasks there are, as `diffaug eval` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from diffaug.errors import DiffaugError
from diffaug.evaluation.folder import DataFolder, Folders, folder_list
from diffaug.evaluation.protocol import STS
from diffaug.evaluation.sts import StsTask, load_sts
from diffaug.evaluation.tasks import Embeddings

if TYPE_CHECKING:
    from diffaug.embedder import Embedder

AVERAGE = "average"
"""The mean over the test tasks, as `Result.scores` names it."""

Similarities = dict[str, NDArray[np.float32]]
"""`TASK/cosine` and `TASK/gold`: a number for each pair, sub-tasks joined in their order."""


@dataclass(frozen=True)
class StsTasks:
    """The test tasks of a data folder, read once, for any number of models."""

    tasks: Sequence[StsTask]

    @classmethod
    def load(cls, folders: Folders) -> StsTasks:
        """Those of the seven that are in ``folders``.

        Raises:
            DiffaugError: none is, or one is incomplete or damaged.
        """
        places = folder_list(folders)
        there = DataFolder(places)
        found = [load_sts(spec, there) for spec in STS if not spec.extra]
        if not any(found):
            names = ", ".join(spec.name for spec in STS if not spec.extra)
            where = " and ".join(map(str, places))
            raise DiffaugError(f"none of the tasks to score models on ({names}) is in {where}; see diffaug data get")
        return cls([task for task in found if task is not None])

    def score(self, embedder: Embedder) -> tuple[dict[str, float], Similarities]:
        """Spearman x 100 of each task over all its pairs, their average, and what it was computed from.

        Raises:
            DiffaugError: the model gives something that cannot be scored.
        """
        from diffaug.evaluation.evaluated_model import EvaluatedModel

        sentences = dict.fromkeys(sentence for task in self.tasks for sentence in task.sentences())
        embeddings = EvaluatedModel(embedder, show_progress=False).embed(list(sentences))
        scores = {task.name: task.score(embeddings).score for task in self.tasks}
        if undefined := [name for name, score in scores.items() if not np.isfinite(score)]:
            raise DiffaugError(f"{undefined[0]} has no score: the model finds all its pairs equally similar")
        scores[AVERAGE] = float(np.mean(list(scores.values())))
        similarities: Similarities = {}
        for task in self.tasks:
            similarities |= _similarities(task, embeddings)
        return scores, similarities


def _similarities(task: StsTask, embeddings: Embeddings) -> Similarities:
    parts = task.subtasks.values()
    cosine = np.concatenate([embeddings.cosines(pairs.first, pairs.second) for pairs in parts])
    gold = np.concatenate([pairs.scores for pairs in parts])
    return {f"{task.name}/cosine": cosine.astype(np.float32), f"{task.name}/gold": gold.astype(np.float32)}
