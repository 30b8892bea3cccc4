"""Public tasks in miniature: right in form and number of rows, with made-up sentences, and a function to embed them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from diffaug.evaluation import classifier
from diffaug.evaluation.protocol import STS, TRANSFER, StsSpec, TransferSpec

Rows = list[tuple[float, str, str]]


def sts_spec(name: str) -> StsSpec:
    return next(spec for spec in STS if spec.name == name)


def transfer_spec(name: str) -> TransferSpec:
    return next(spec for spec in TRANSFER if spec.name == name)


def pairs_of(spec: StsSpec, sub: str) -> Rows:
    """As many made-up pairs as a sub-task has. Scores are coarse, so that many are equal."""
    rng = np.random.default_rng(zlib.crc32(f"{spec.name} {sub}".encode()))
    return [
        (float(rng.integers(0, 11)) / 2, f'{spec.name} "{sub}" left {i % 97}', f"{sub} right {i}")
        for i in range(spec.subtasks[sub])
    ]


def write_tsv(folder: Path, spec: StsSpec) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for sub in spec.subtasks:
        lines = [f"{score}\t{first}\t{second}\n" for score, first, second in pairs_of(spec, sub)]
        (folder / f"{spec.tsv}.{sub}.tsv").write_text("".join(lines), "utf-8")


def write_senteval(folder: Path, spec: StsSpec) -> None:
    """A SemEval year as SentEval has it, with pairs that nobody scored in between."""
    home = folder / "STS" / spec.folders[0]
    home.mkdir(parents=True)
    for sub in spec.subtasks:
        inputs, gold = [], []
        for i, (score, first, second) in enumerate(pairs_of(spec, sub)):
            if i % 50 == 0:
                inputs.append("not\tscored\n")
                gold.append("\n")
            inputs.append(f"{first}\t{second}\n")
            gold.append(f"{score}\n")
        (home / f"STS.input.{sub}.txt").write_text("".join(inputs), "utf-8")
        (home / f"STS.gs.{sub}.txt").write_text("".join(gold), "utf-8")


def write_transfer(folder: Path, spec: TransferSpec) -> None:
    """A transfer task of the right size whose classes can be told from the words."""
    counts = [file.rows for file in spec.files]
    if counts[0] is None:
        counts = [spec.rows // 3, spec.rows - spec.rows // 3]
    for at, (file, rows) in enumerate(zip(spec.files, counts, strict=True)):
        home = folder / ("SST" if spec.layout == "sst" else "") / file.folders[0]
        home.mkdir(parents=True, exist_ok=True)
        # Few distinct sentences keep the tests fast.
        numbers = [i % 150 for i in range(rows or 0)]
        if spec.layout == "classes":
            lines = [f"class{at} number {i} caf\xe9 " for i in numbers]
        elif spec.layout == "sst":
            lines = [f"class{i % 2} {file.name} {i} \t{i % 2}" for i in numbers]
        elif spec.layout == "trec":
            classes = ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]
            lines = [f"{classes[i % 6]}:exp class{i % 6} caf\xe9 {file.name} {i} ?" for i in numbers]
        else:
            lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
            lines += [f'{i % 2}\t1\t2\tclass0 " {i}\tclass{1 - i % 2} {file.name} {i}' for i in numbers]
        encoding = "utf-8-sig" if spec.layout in ("sst", "mrpc") else "latin-1"
        (home / file.name).write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


def embed(sentences: Sequence[str]) -> np.ndarray:
    """A vector for each sentence from its words alone: words that sentences share make them alike."""
    return np.stack([_sentence(sentence) for sentence in sentences])


def _sentence(sentence: str) -> np.ndarray:
    return sum(map(_word, sentence.split()), start=np.full(16, 0.1))


@cache
def _word(word: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode())).normal(size=16)


def few_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same procedure in a tenth of the time."""
    monkeypatch.setattr(classifier, "OUTER_FOLDS", 4)
    monkeypatch.setattr(classifier, "INNER_FOLDS", 3)


class Counting:
    """An embedding function that remembers what it was asked."""

    def __init__(self, function: Callable[[Sequence[str]], np.ndarray] = embed) -> None:
        self.function = function
        self.calls: list[list[str]] = []

    def __call__(self, sentences: list[str]) -> np.ndarray:
        self.calls.append(list(sentences))
        return self.function(sentences)
