"""The worst sentence pairs of a model: those whose rank by cosine differs most from their rank by gold score."""

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
from diffaug.experiments.grid import SIMILARITIES
from diffaug.report.runs import Run, resolve

Floats = NDArray[np.float64]

# The recipe's settings that name scored pairs.
_SOURCES = ("dev", "test")

Encode = Callable[[str | Path, list[str]], NDArray[np.float32]]
"""Encodes sentences with a model, given by its folder or name; the vectors have length 1."""


@dataclass
class PairSet:
    """Scored pairs and the cosines that runs gave them.

    Attributes:
        name: the task's name, or a name made from the file's.
        pairs: the sentences and gold scores.
        cosines: by the run's index.
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
        """Up to ``count`` pairs ranked too high and ``count`` ranked too low, worst first."""
        error = self.ranks(run) - self.gold_ranks
        low, high = np.argsort(error, kind="stable")[:count], np.argsort(-error, kind="stable")[:count]
        chosen = [*(i for i in high if error[i] > 0), *(i for i in low if error[i] < 0)]
        return [int(i) for i in sorted(chosen, key=lambda i: -abs(error[i]))]


def relative_ranks(values: Floats) -> Floats:
    """Ranks scaled to [0, 1]; equal values get their mean rank."""
    ranks: Floats = (rankdata(values) - 1) / max(1, len(values) - 1)
    return ranks


class PairReader:
    """Reads the scored pairs of runs; each file is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], ScoredPairs] = {}
        self._tasks: dict[tuple[Path, ...], dict[str, ScoredPairs]] = {}

    def tasks(self, folders: tuple[Path, ...]) -> dict[str, ScoredPairs]:
        """The STS tasks in some folders, with their subtasks concatenated in scoring order."""
        if not folders:
            return {}
        if folders not in self._tasks:
            from diffaug.experiments.data import StsTasks

            self._tasks[folders] = {task.name: _joined(task.subtasks.values()) for task in StsTasks.load(folders).tasks}
        return self._tasks[folders]

    def dev_and_test(self, run: Run) -> Iterator[tuple[str, str, ScoredPairs]]:
        """The recipe's `dev` and `test` pairs: yields the setting's name, the source and the pairs.

        Raises:
            DiffaugError: a source cannot be read.
        """
        data: dict[str, Any] = run.recipe.get("data") or {}
        for setting in _SOURCES:
            if isinstance(source := data.get(setting), str):
                columns = (data.get("columns") or {}).get(setting)
                path = resolve(source, run.folder)
                key = (setting, path, str(columns), str(data.get("on_bad")))
                if key not in self._known:
                    self._known[key] = read_scored_pairs(path, columns, data.get("on_bad") or "error", setting)
                yield setting, source, self._known[key]


def pair_sets(runs: list[Run], reader: PairReader, encode: Encode) -> tuple[list[PairSet], list[str]]:
    """All sets of scored pairs with the runs' cosines, and notes on pairs that could not be read.

    Cosines are read from the run's folder if it has them. Otherwise the run's best model computes them, on the dev
    pairs if there are any: looking at test pairs would make them useless as test data.
    """
    sets, notes = list[PairSet](), dict[str, None]()
    for index, run in enumerate(runs):
        try:
            named = list(reader.dev_and_test(run))
            saved = _saved_cosines(run.folder / SIMILARITIES)
            found: list[tuple[str, ScoredPairs, Floats]] = []
            if saved:
                found = _match({**{source: p for _, source, p in named}, **reader.tasks(run.tasks)}, saved)
            if not found and named and run.model is not None:
                found = [(_title(*named[0][:2]), named[0][2], cosines_of(encode, run.model, named[0][2]))]
        except DiffaugError as error:
            notes[f"The pairs of {run.name} are not shown: {error}"] = None
            continue
        for name, pairs, cosines in found:
            _set_for(sets, name, pairs).cosines[index] = cosines
    # STS-B comes first.
    sets.sort(key=lambda pair_set: not pair_set.name.startswith("STS-B"))
    return sets, list(notes)


def _match(
    known: dict[str, ScoredPairs], saved: dict[str, tuple[Floats, Floats]]
) -> list[tuple[str, ScoredPairs, Floats]]:
    """Find the sentences of saved cosines: known pairs with the same gold scores in the same order."""
    found = []
    for task, (cosine, gold) in saved.items():
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


def _saved_cosines(path: Path) -> dict[str, tuple[Floats, Floats]]:
    """Cosines and gold scores of a finished cell, by task; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            tasks = [name.removesuffix("/cosine") for name in arrays.files if name.endswith("/cosine")]
            return {
                task: (arrays[f"{task}/cosine"].astype(float), arrays[f"{task}/gold"].astype(float)) for task in tasks
            }
    except Exception as error:  # damaged archives raise errors of many classes
        raise DiffaugError(f"{path} cannot be read: {error}") from error


def cosines_of(encode: Encode, model: str | Path, pairs: ScoredPairs) -> Floats:
    """The cosines that a model gives to pairs."""
    vectors = encode(model, [*pairs.first, *pairs.second])
    cosines: Floats = np.einsum("ij,ij->i", vectors[: len(pairs)], vectors[len(pairs) :], dtype=np.float64)
    return cosines


def _title(setting: str, source: str) -> str:
    """A name for pairs that are not a known task."""
    name = source.partition(":")[0] if ":" in source else Path(source).name.split(".")[0]
    return setting if name == setting else f"{name}, {setting}"
