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
from diffaug.evaluation.statistics import Mean, f1
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
            details["f1"] = f1(labels, predicted)
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
    sets = [_read(path, folder, spec.layout) for path in found]
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


_TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


def _read(path: Path, folder: DataFolder, layout: str) -> Examples:
    """Read a file; in the layout ``classes`` all its lines have the same class, which the caller knows."""
    parse, expected = {
        "classes": (lambda line: (0, line), ""),
        "sst": (_sst, "a sentence, a tab, and 0 or 1"),
        "trec": (_trec, "CLASS:subclass question"),
        "mrpc": (_mrpc, "a label, two ids and two sentences"),
    }[layout]
    pairs = layout == "mrpc"  # which has a header
    lines = folder.lines(path, "latin-1" if layout in ("classes", "trec") else "utf-8")
    examples = Examples([], [] if pairs else None, [])
    for number, line in enumerate(lines[pairs:], start=1 + pairs):
        row = parse(line)
        if row is None:
            raise DiffaugError(f"{path}, line {number}: expected {expected}; download the file again")
        label, first, *second = row
        examples.labels.append(label)
        examples.first.append(one_spaced(first))
        if examples.second is not None:
            examples.second.append(one_spaced(*second))
    return examples


def _sst(line: str) -> tuple[int, str] | None:
    text, tab, label = line.rpartition("\t")
    return (int(label), text) if tab and label.strip() in ("0", "1") else None


def _trec(line: str) -> tuple[int, str] | None:
    """The labels are the six coarse classes."""
    label, colon, rest = line.partition(":")
    _, space, question = rest.partition(" ")
    return (_TREC_CLASSES.index(label), question) if colon and space and label in _TREC_CLASSES else None


def _mrpc(line: str) -> tuple[int, str, str] | None:
    """``label<TAB>id<TAB>id<TAB>sentence<TAB>sentence``; quotation marks have no special meaning."""
    cells = line.split("\t")
    return (int(cells[0]), cells[3], cells[4]) if len(cells) == 5 and cells[0] in ("0", "1") else None


def why_missing(spec: TransferSpec) -> str:
    """Why a task was not evaluated: which file was not found."""
    folder = "SST/binary" if spec.layout == "sst" else spec.files[0].folders[0]
    return f"found no {folder}/{spec.files[0].name}"
