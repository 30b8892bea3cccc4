"""The examples of README and docs/adapt.md: `diffaug adapt` on BANKING77's splits, and on 300 scored pairs of STS-B.

    python benchmarks/adapt_example.py --model all-MiniLM-L6-v2 --data data

BANKING77: labels are `intents/banking77.train_5.tsv` and `train_10.tsv`, text is the training sentences without labels;
the default candidates on a CPU. STS-B: 300 pairs of `sts/STSB.train.tsv`, drawn at random; all candidates. Scores on
the test set are those of the model as it is (with its classifier) and of what `adapt` chose. It takes about fifteen
minutes on two CPU cores.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import save

import diffaug
from diffaug.adaptation.measure import fit_classifier, held_out, statistic
from diffaug.data import read_scored_pairs
from diffaug.data.records import Classes, Labelled
from diffaug.data.sampling import draw
from diffaug.tabular import markdown


def read_classes(path: Path) -> Classes:
    """Lines with a label and a sentence."""
    rows = [line.split("\t") for line in path.read_text("utf-8-sig").splitlines()]
    return Classes([text for _, text in rows], [label for label, _ in rows])


def score(embedder: diffaug.Embedder, labels: Labelled, test: Labelled) -> float:
    """On the test set: accuracy with the model's own classifier, or Spearman."""
    if isinstance(test, Classes):
        if embedder.classifier is None:
            assert isinstance(labels, Classes)
            embedder.classifier = fit_classifier(embedder.encode, labels)
        return round(100 * float(np.mean(np.array(embedder.predict(test.sentences)) == np.array(test.classes))), 2)
    return round(statistic(test, [held_out(embedder.encode, labels, test)]).value(), 2)


def run(model: str, labels: Labelled, test: Labelled, text: list[str] | None) -> dict[str, Any]:
    """`adapt`, with its time and its scores on the test set."""
    names = ("text", "label") if isinstance(labels, Classes) else ("sentence1", "sentence2", "score")
    rows = [dict(zip(names, row, strict=True)) for row in labels]
    with tempfile.TemporaryDirectory() as folder:
        found = diffaug.adapt(model, rows, Path(folder) / "out", text=text, report=print)
        both = (("as it is", model), (found.chosen, found.model or model))
        scores = {name: score(diffaug.Embedder.from_pretrained(place), labels, test) for name, place in both}
    print(*markdown(found.table()), found.verdict, f"{found.seconds:.0f} s; test set: {scores}", sep="\n", flush=True)
    return {**found.to_dict(), "model": None, "test": scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    intents, sts = options.data / "intents", options.data / "sts"
    text, test = (read_classes(intents / f"banking77.{part}.tsv") for part in ("train", "test"))
    results: dict[str, Any] = {"model": Path(options.model).name}
    for count in (5, 10):
        labels = read_classes(intents / f"banking77.train_{count}.tsv")
        results[f"BANKING77, {count} per class"] = run(options.model, labels, test, text.sentences)
    pairs = draw(read_scored_pairs(sts / "STSB.train.tsv"), seed=0, count=300)
    results["STS-B, 300 pairs"] = run(options.model, pairs, read_scored_pairs(sts / "STSB.test.tsv"), None)
    print("kept in", save("adapt_example", results, ("diffaug", "torch", "transformers")).name)


if __name__ == "__main__":
    main()
