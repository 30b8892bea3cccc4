"""The transfer tasks: a classifier on frozen vectors, on SentEval's original files."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffaug.errors import DiffaugError
from diffaug.evaluation.classifier import Labels, fits, predict_on_folds, predict_on_test
from diffaug.evaluation.folder import DataFolder, check_rows, one_spaced
from diffaug.evaluation.protocol import TransferSpec
from diffaug.evaluation.statistics import F1, Mean
from diffaug.evaluation.tasks import Embeddings, TaskResult, Vectors
from diffaug.progress import progress_bar


@dataclass
class Examples:
    """Sentences or sentence pairs, and their classes."""

    first: list[str]
    second: list[str] | None
    labels: list[int]

    def features(self, embeddings: Embeddings) -> Vectors:
        """The vector of a sentence; for a pair [|u - v|; u * v], which does not depend on the order."""
        first = embeddings(self.first)
        if self.second is None:
            return first
        second = embeddings(self.second)
        return np.hstack([np.abs(first - second), first * second])


@dataclass
class TransferTask:
    """A transfer task's data: one set for cross-validation, or splits."""

    name: str
    protocol: str
    train: Examples
    dev: Examples | None = None
    test: Examples | None = None
    seed: int = 0

    def sentences(self) -> Iterable[str]:
        for examples in (self.train, self.dev, self.test):
            if examples is not None:
                yield from examples.first
                yield from examples.second or ()

    def score(self, embeddings: Embeddings) -> TaskResult:
        sets = [
            None if examples is None else (examples.features(embeddings), np.array(examples.labels))
            for examples in (self.train, self.dev, self.test)
        ]
        train, dev, test = sets
        assert train is not None
        with progress_bar(
            f"{self.name} classifier", fits(test is None, dev is not None), _worth_a_bar(train[0])
        ) as advance:
            if test is None:
                labels, predicted = train[1], predict_on_folds(*train, self.seed, advance)
            else:
                labels, predicted = test[1], predict_on_test(train, dev, test[0], self.seed, advance)
        return self._result(labels, predicted)

    def _result(self, labels: Labels, predicted: Labels) -> TaskResult:
        accuracy = Mean(labels == predicted)
        details = {"accuracy": accuracy.value()}
        if self.train.second is not None:
            details["f1"] = F1(labels, predicted).value()
        return TaskResult(self.name, "transfer", self.protocol, accuracy.value(), len(labels), accuracy, details)


def _worth_a_bar(vectors: Vectors) -> bool:
    """Whether to show progress: there are few fits, and each takes long if there are many rows."""
    return len(vectors) > 2_000 and sys.stderr.isatty()


def load_transfer(spec: TransferSpec, folder: DataFolder, seed: int) -> TransferTask | None:
    """Read a transfer task from a folder; None if the folder has none of its files.

    Raises:
        DiffaugError: some files are missing, one has the wrong number of rows, or one cannot be read.
    """
    paths = [folder.find(file.name, file.folders) for file in spec.files]
    found = [path for path in paths if path is not None]
    if not found:
        return None
    if len(found) < len(paths):
        absent = ", ".join(file.name for file, path in zip(spec.files, paths, strict=True) if path is None)
        raise DiffaugError(
            f"{spec.name} is incomplete: {found[0].parent} lacks {absent}; add it, or do not evaluate {spec.name}"
        )
    read = {"classes": _sentences, "sst": _sst, "trec": _trec, "mrpc": _mrpc}[spec.layout]
    sets = [read(path, folder) for path in found]
    for file, path, examples in zip(spec.files, found, sets, strict=True):
        if file.rows is not None:
            check_rows(str(path), len(examples.labels), file.rows, f"{spec.name}'s {file.name}")
    check_rows(" and ".join(map(str, found)), sum(len(s.labels) for s in sets), spec.rows, spec.name)
    if spec.layout == "classes":
        positive, negative = sets
        labels = [1] * len(positive.first) + [0] * len(negative.first)
        return TransferTask(
            spec.name, spec.protocol, Examples(positive.first + negative.first, None, labels), seed=seed
        )
    train, *dev, test = sets
    return TransferTask(spec.name, spec.protocol, train, dev[0] if dev else None, test, seed)


def _sentences(path: Path, folder: DataFolder) -> Examples:
    """One sentence per line, all of the same class. The files are Latin-1."""
    lines = [one_spaced(line) for line in folder.lines(path, "latin-1")]
    return Examples(lines, None, [0] * len(lines))


def _sst(path: Path, folder: DataFolder) -> Examples:
    """``sentence<TAB>0`` or ``sentence<TAB>1``"""
    examples = Examples([], None, [])
    for number, line in enumerate(folder.lines(path), start=1):
        text, tab, label = line.rpartition("\t")
        if not tab or label.strip() not in ("0", "1"):
            raise DiffaugError(f"{path}, line {number}: does not end in a tab and 0 or 1; download the file again")
        examples.first.append(one_spaced(text))
        examples.labels.append(int(label))
    return examples


_TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


def _trec(path: Path, folder: DataFolder) -> Examples:
    """``CLASS:subclass question``, in Latin-1; the labels are the six coarse classes."""
    examples = Examples([], None, [])
    for number, line in enumerate(folder.lines(path, "latin-1"), start=1):
        label, colon, rest = line.partition(":")
        _, space, question = rest.partition(" ")
        if not (colon and space) or label not in _TREC_CLASSES:
            raise DiffaugError(f"{path}, line {number}: expected CLASS:subclass question; download the file again")
        examples.first.append(one_spaced(question))
        examples.labels.append(_TREC_CLASSES.index(label))
    return examples


def _mrpc(path: Path, folder: DataFolder) -> Examples:
    """A header, then ``label<TAB>id<TAB>id<TAB>sentence<TAB>sentence``; quotation marks have no special meaning."""
    first: list[str] = []
    second: list[str] = []
    labels: list[int] = []
    for number, line in enumerate(folder.lines(path)[1:], start=2):
        cells = line.split("\t")
        if len(cells) != 5 or cells[0] not in ("0", "1"):
            raise DiffaugError(
                f"{path}, line {number}: expected a label, two ids and two sentences; download the file again"
            )
        first.append(one_spaced(cells[3]))
        second.append(one_spaced(cells[4]))
        labels.append(int(cells[0]))
    return Examples(first, second, labels)


def why_missing(spec: TransferSpec) -> str:
    """Why a task was not evaluated: which file was not found."""
    folder = "SST/binary" if spec.layout == "sst" else spec.files[0].folders[0]
    return f"found no {folder}/{spec.files[0].name}"
