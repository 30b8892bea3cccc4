"""The sentence pairs a model gets most wrong: where the order of its cosines and that of the gold scores disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from diffaug.data.read import read_scored_pairs
from diffaug.data.records import ScoredPairs
from diffaug.errors import DiffaugError
from diffaug.report.runs import Run

Floats = NDArray[np.float64]

SIMILARITIES = "similarities.npz"
# The settings that name scored pairs.
_SOURCES = ("dev", "test")

Encode = Callable[[Path, list[str]], NDArray[np.float32]]
"""The vectors, of length one, that the model in a folder gives to sentences."""


@dataclass
class PairSet:
    """Scored pairs that models were, or can be, judged by.

    Attributes:
        name: as the page calls them: a task's name, or the name of the file.
        pairs: the sentences and gold scores.
        cosines: by a run's place among the runs.
    """

    name: str
    pairs: ScoredPairs
    cosines: dict[int, Floats] = field(default_factory=dict)

    @cached_property
    def gold_ranks(self) -> Floats:
        """The rank of each pair by its gold score, from 0 to 1."""
        return relative_ranks(np.array(self.pairs.scores))

    def ranks(self, run: int) -> Floats:
        """The rank of each pair by the run's cosine."""
        return relative_ranks(self.cosines[run])

    def worst(self, run: int, count: int) -> list[int]:
        """The pairs put most too near, ``count`` of them, and those put most too far; worst first."""
        error = self.ranks(run) - self.gold_ranks
        far, near = np.argsort(error, kind="stable")[:count], np.argsort(-error, kind="stable")[:count]
        chosen = [*(i for i in near if error[i] > 0), *(i for i in far if error[i] < 0)]
        return [int(i) for i in sorted(chosen, key=lambda i: -abs(error[i]))]


def relative_ranks(values: Floats) -> Floats:
    """Ranks as a part of all, 0 for the smallest and 1 for the largest; equal values share the mean of their ranks."""
    ranks: Floats = (rankdata(values) - 1) / max(1, len(values) - 1)
    return ranks


class PairReader:
    """Reads the scored pairs that runs are judged by, each file once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], ScoredPairs] = {}
        self._tasks: dict[tuple[Path, ...], dict[str, ScoredPairs]] = {}

    def tasks(self, folders: tuple[Path, ...]) -> dict[str, ScoredPairs]:
        """The STS tasks in some folders, the pairs of their sub-tasks joined in the order in which they are scored."""
        if not folders:
            return {}
        if folders not in self._tasks:
            from diffaug.reproduce.score import StsTasks

            self._tasks[folders] = {task.name: _joined(task.subtasks.values()) for task in StsTasks.load(folders).tasks}
        return self._tasks[folders]

    def named_by(self, run: Run) -> Iterator[tuple[str, str, ScoredPairs]]:
        """For `dev` and `test`, as far as the recipe has them: the setting, the source's name, and the pairs.

        Raises:
            DiffaugError: a source cannot be read.
        """
        data: dict[str, Any] = run.recipe.get("data") or {}
        for setting in _SOURCES:
            if isinstance(source := data.get(setting), str):
                columns = (data.get("columns") or {}).get(setting)
                place = _located(source, run.folder)
                key = (setting, place, str(columns), str(data.get("on_bad")))
                if key not in self._known:
                    self._known[key] = read_scored_pairs(place, columns, data.get("on_bad") or "error", setting)
                yield setting, source, self._known[key]


def pair_sets(runs: list[Run], encode: Encode) -> tuple[list[PairSet], list[str]]:
    """All pairs by which runs can be compared, with their cosines; and why some could not be had, in words.

    The cosines of a run are those it has written down; else its best model computes them, for the dev pairs if there
    are any, since test pairs that one looks at are test pairs no more.
    """
    reader, sets, notes = PairReader(), list[PairSet](), dict[str, None]()
    for place, run in enumerate(runs):
        try:
            named = list(reader.named_by(run))
            written = _written(run.folder / SIMILARITIES)
            found: list[tuple[str, ScoredPairs, Floats]] = []
            if written:
                found = _matched({**{source: p for _, source, p in named}, **reader.tasks(run.tasks)}, written)
            if not found and named and run.model is not None:
                found = [(_title(*named[0][:2]), named[0][2], _cosines(encode, run.model, named[0][2]))]
        except DiffaugError as error:
            notes[f"The pairs of {run.name} are not shown: {error}"] = None
            continue
        for name, pairs, cosines in found:
            _set_for(sets, name, pairs).cosines[place] = cosines
    # The sets that most people look at first.
    sets.sort(key=lambda pair_set: not pair_set.name.startswith("STS-B"))
    return sets, list(notes)


def _matched(
    known: dict[str, ScoredPairs], written: dict[str, tuple[Floats, Floats]]
) -> list[tuple[str, ScoredPairs, Floats]]:
    """The tasks whose sentences are known: those of the same gold scores in the same order."""
    found = []
    for task, (cosine, gold) in written.items():
        for pairs in ([known[task]] if task in known else []) + list(known.values()):
            if len(pairs) == len(gold) and np.allclose(pairs.scores, gold, atol=1e-4):
                found.append((task, pairs, cosine))
                break
    return found


def _joined(parts: Iterable[ScoredPairs]) -> ScoredPairs:
    rows = [row for part in parts for row in part]
    return ScoredPairs([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])


def _set_for(sets: list[PairSet], name: str, pairs: ScoredPairs) -> PairSet:
    for known in sets:
        if known.pairs is pairs or (known.name == name and known.pairs == pairs):
            return known
    taken = {known.name for known in sets}
    unique = next(n for n in (name, *(f"{name} ({i})" for i in range(2, len(sets) + 3))) if n not in taken)
    sets.append(PairSet(unique, pairs))
    return sets[-1]


def _written(path: Path) -> dict[str, tuple[Floats, Floats]]:
    """Cosines and gold scores of a finished cell, by task."""
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            tasks = [name.removesuffix("/cosine") for name in arrays.files if name.endswith("/cosine")]
            return {
                task: (arrays[f"{task}/cosine"].astype(float), arrays[f"{task}/gold"].astype(float)) for task in tasks
            }
    except (OSError, ValueError, KeyError) as error:
        raise DiffaugError(f"{path} cannot be read: {error}") from error


def _cosines(encode: Encode, model: Path, pairs: ScoredPairs) -> Floats:
    vectors = encode(model, [*pairs.first, *pairs.second])
    cosines: Floats = np.einsum("ij,ij->i", vectors[: len(pairs)], vectors[len(pairs) :], dtype=np.float64)
    return cosines


def _title(setting: str, source: str) -> str:
    """What to call pairs that have no task's name."""
    return f"{source.partition(':')[0] if ':' in source else Path(source).name.split('.')[0]}, {setting}"


def _located(source: str, folder: Path) -> str:
    """A file that a recipe names relative to where the run was started: here, or in a folder above the run."""
    if ":" in source.split("/")[0] or Path(source).is_absolute() or Path(source).exists():
        return source
    return next((str(parent / source) for parent in folder.absolute().parents if (parent / source).exists()), source)
