"""Public data sets in the form in which they are published, with a handful of rows."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

Pair = tuple[str, str, str]
"""Premise, hypothesis, gold label; ``-`` where the annotators do not agree."""

SNLI: list[Pair] = [
    ("A dog runs.", 'An "animal" moves.', "entailment"),
    ("A dog runs.", "It is a race.", "neutral"),
    ("A dog runs.", "The dog is asleep.", "contradiction"),
    ("Two men talk.", "They are friends.", "-"),
    ("Two men talk.", '"Hello', "entailment"),
]
MULTINLI: list[Pair] = [
    ("The market fell.", "Prices went down.", "entailment"),
    ("The market fell.", "Prices rose.", "contradiction"),
    ("Two men talk.", "Nobody says a word.", "contradiction"),
]
_PARSES = ("sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse")
_ANNOTATORS = tuple(f"label{i}" for i in range(1, 6))
_OTHERS = {"snli": ("captionID", "pairID"), "multinli": ("promptID", "pairID", "genre")}

STSB_ROWS = [
    ("main-captions", "MSRvid", "2012test", "0001", "5.000", "A man is eating.", "A man eats."),
    ("main-captions", "MSRvid", "2012test", "0002", "0.5", "A plane lands.", 'He said "no'),
    ("main-news", "headlines", "2013", "0007", "2.600", '"Quoted, with commas", they say', "A quote", "source a", "b"),
    ("main-forums", "deft-forum", "2014", "0011", "1", "Nothing, so far.", "One, two, three."),
]


def write_stsb(path: Path, rows: list[tuple[str, ...]] = STSB_ROWS) -> Path:
    """A file of the STS Benchmark: tabs, no header, in some rows more columns."""
    path.write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    return path


def nli_text(name: str, pairs: list[Pair]) -> str:
    """What snli_1.0_train.txt and multinli_1.0_train.txt look like."""
    lines = [("gold_label", *_PARSES, "sentence1", "sentence2", *_OTHERS[name], *_ANNOTATORS)]
    for i, (premise, hypothesis, label) in enumerate(pairs):
        parses = [f"( {text} )" for text in (premise, hypothesis) * 2]
        votes = [label.replace("-", "neutral"), *[""] * 4]
        lines.append((label, *parses, premise, hypothesis, *[str(i)] * len(_OTHERS[name]), *votes))
    return "".join("\t".join(line) + "\n" for line in lines)


def nli_jsonl(name: str, pairs: list[Pair]) -> str:
    """What snli_1.0_train.jsonl and multinli_1.0_train.jsonl look like."""
    rows = []
    for i, (premise, hypothesis, label) in enumerate(pairs):
        row = {"annotator_labels": [label], "gold_label": label, "sentence1": premise, "sentence2": hypothesis}
        rows.append(row | dict.fromkeys(_OTHERS[name], str(i)) | dict.fromkeys(_PARSES, "( S )"))
    return "".join(json.dumps(row) + "\n" for row in rows)


def nli_zip(name: str, pairs: list[Pair]) -> bytes:
    """The archive of SNLI or MultiNLI."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{name}_1.0/README.txt", "About.\n")
        archive.writestr(f"{name}_1.0/{name}_1.0_train.jsonl", nli_jsonl(name, pairs))
        archive.writestr(f"{name}_1.0/{name}_1.0_train.txt", nli_text(name, pairs))
        archive.writestr(f"__MACOSX/{name}_1.0/._README.txt", "x")
    return buffer.getvalue()


def write_all_nli(path: Path) -> Path:
    """AllNLI.tsv.gz of sentence-transformers: SNLI and MultiNLI with all their splits, without pairs labelled ``-``."""
    rows = ["split\tdataset\tfilename\tsentence1\tsentence2\tlabel"]
    for dataset, pairs in (("SNLI", SNLI), ("MNLI", MULTINLI)):
        rows += [f"train\t{dataset}\ttrain.txt\t{a}\t{b}\t{label}" for a, b, label in pairs if label != "-"]
    rows += ["dev\tSNLI\tdev.txt\tFor dev.\tNot for training.\tneutral", "test\tSNLI\ttest.txt\tA.\tB.\tentailment"]
    path.write_bytes(gzip.compress("\n".join(rows).encode() + b"\n"))
    return path
