"""The example of README and docs/adapt.md: `diffaug adapt` on BANKING77's splits with 5 and 10 sentences per class.

    python benchmarks/adapt_example.py --model all-MiniLM-L6-v2 --data data/intents

Labels are `banking77.train_5.tsv` and `banking77.train_10.tsv`, text is the training sentences without labels. Scores
are accuracies on the test set: of the model as it is with its classifier, and of what `adapt` saved. Only label
spreading is tried, which trains no encoder and takes a minute or two on two CPU cores.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import save

import diffaug
from diffaug.adaptation.measure import fit_classifier
from diffaug.data.records import Classes
from diffaug.tabular import markdown


def read(path: Path) -> Classes:
    """Lines with a label and a sentence."""
    rows = [line.split("\t") for line in path.read_text("utf-8-sig").splitlines()]
    return Classes([text for _, text in rows], [label for label, _ in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    text, test = (read(options.data / f"banking77.{part}.tsv") for part in ("train", "test"))
    results: dict[str, Any] = {"model": Path(options.model).name}
    for count in (5, 10):
        labels = read(options.data / f"banking77.train_{count}.tsv")
        rows = [{"text": sentence, "label": label} for sentence, label in labels]
        with tempfile.TemporaryDirectory() as folder:
            found = diffaug.adapt(
                options.model, rows, Path(folder) / "out", text=text.sentences, only=["label spreading"], report=print
            )
            saved = diffaug.Embedder.from_pretrained(found.model or options.model)
        start = diffaug.Embedder.from_pretrained(options.model)
        start.classifier = fit_classifier(start.encode, labels)
        scores = {
            name: round(100 * float(np.mean(np.array(each.predict(test.sentences)) == np.array(test.classes))), 2)
            for name, each in (("as it is", start), (found.chosen, saved))
        }
        results[f"{count} per class"] = {**found.to_dict(), "model": None, "test": scores}
        print(*markdown(found.table()), found.verdict, f"test set: {scores}", sep="\n")
    print("kept in", save("adapt_example", results, ("diffaug", "torch", "transformers")).name)


if __name__ == "__main__":
    main()
