"""Which questions should be asked? A simulated annotator answers what a strategy chooses, and a head learns from it.

    python benchmarks/labelling.py --model all-MiniLM-L6-v2 --data data --out benchmarks/results/labelling.json

`--data` is a folder as for `benchmarks/adapt.py`. Each draw takes training rows at random as what can be asked (STS-B,
SICK and MRPC: 2,000 pairs; BANKING77: 4,000 sentences); each seed is one run of a strategy on three quarters of them.
The head is learned on frozen vectors: the linear map of `adapt` for pairs, logistic regression with C = 16 for classes.
It is scored on test rows that no strategy sees: Spearman's correlation, average precision (MRPC), accuracy (BANKING77).

Strategies:
    random      all rows are equally likely
    bands       five bands of cosine similarity in equal numbers (pairs); what `diffaug label` does with pairs
    design      the greedy experimental design of `diffaug.serve.label.design`; what `diffaug label` does with classes
    models      pairs whose ranks by cosine differ most between this model and the embedded one
    rounds      100 by the design, then rounds of 50: a design among those where the classifier is least sure

A result that is in the file already is not computed again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from adapt import load
from common import machine

from diffaug import Embedder
from diffaug.adaptation.linear import apply_linear, fit_linear
from diffaug.adaptation.measure import held_out, statistic
from diffaug.data.read import read_labelled
from diffaug.data.records import Classes, Labelled, LabelledPairs, ScoredPairs
from diffaug.models.classifier import Classifier
from diffaug.serve.label.design import choose, sentence_kernel

SIZES = (50, 100, 200, 350, 500, 1000)
POOL, ASKABLE, BANDS = {"pairs": 2_000, "classes": 4_000}, 0.75, 5
BEGIN, ROUND, UNSURE = 100, 50, 400
STRATEGIES = {"pairs": ("random", "bands", "design", "models"), "classes": ("random", "design", "rounds")}
DATA = ("stsb", "mrpc", "sick", "banking77")

Vectors = np.ndarray
Encode = Callable[[Sequence[str]], Vectors]


def pair_kernel(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(n, n): inner products of the gradients of the cosines of pairs with respect to a linear map, at the identity.

    Args:
        first, second: (n, width), the vectors of the pairs, of length 1.
    """
    cosines = np.einsum("nd,nd->n", first, second)
    a, b, d = first @ first.T, first @ second.T, second @ second.T
    c = b.T
    kernel: np.ndarray = 2 * (a * d + b * c)
    kernel -= 2 * cosines[None] * (a * c + b * d)
    kernel -= 2 * cosines[:, None] * (a * b + c * d)
    kernel += np.outer(cosines, cosines) * (a * a + b * b + c * c + d * d)
    return kernel


def read(name: str, data: Path) -> tuple[Labelled, Labelled]:
    """All training and test rows."""
    if name == "banking77":
        parts = []
        for part in ("train", "test"):
            lines = [
                line.split("\t") for line in (data / f"intents/banking77.{part}.tsv").read_text("utf-8").splitlines()
            ]
            parts.append(Classes([text for _, text in lines], [label for label, _ in lines]))
        return parts[0], parts[1]
    case = load(f"{name}-1000000", 0, data)
    found = []
    for rows in (case.rows, case.tests["test"]):
        if name == "mrpc":
            names = ("sentence1", "sentence2", "label")
            given = [dict(zip(names, (a, b, "same" if label else "different"), strict=True)) for a, b, label in rows]
            found.append(read_labelled(given))
        else:
            found.append(ScoredPairs(*map(list, zip(*rows, strict=True))))
    return found[0], found[1]


def score(encode: Encode, rows: Labelled, test: Labelled) -> float:
    """The score of the head that learns from ``rows``."""
    if isinstance(rows, (ScoredPairs, LabelledPairs)):
        weight = fit_linear(encode, rows, 0)
        return statistic(test, [held_out(lambda texts: apply_linear(weight, encode(texts)), rows, test)]).value()
    assert isinstance(rows, Classes)
    assert isinstance(test, Classes)
    found = classify(encode(rows.sentences), rows.classes, encode(test.sentences))[0]
    return 100 * float(np.mean(found == np.array(test.classes)))


def classify(vectors: Vectors, classes: Sequence[str], others: Vectors) -> tuple[np.ndarray, Vectors]:
    """The most probable class of other vectors, and the probabilities of all classes."""
    classifier = Classifier.fit(vectors, classes, c=16.0, tolerance=1e-4)
    shares = classifier.probabilities(others)
    return np.array(classifier.names)[shares.argmax(1)], shares


def order(
    strategy: str, pool: Labelled, encode: Encode, other: Encode, count: int, rng: np.random.Generator
) -> list[int]:
    """The rows of the pool in the order in which they are asked."""
    asked = rng.permutation(len(pool))[: int(ASKABLE * len(pool))]  # a part, so that every seed differs
    if strategy == "random":
        return asked[:count].tolist()
    part = pool.take(asked.tolist())
    vectors = [encode(column) for column in part.texts()]
    if strategy == "design":
        kernel = pair_kernel(*vectors) if len(vectors) == 2 else sentence_kernel(vectors[0])
        found = choose(kernel, count)
    elif strategy == "bands":
        found = by_bands((vectors[0] * vectors[1]).sum(1), count)
    elif strategy == "models":
        cosines = [(a * b).sum(1) for a, b in (vectors, [other(column) for column in part.texts()])]
        ranks = [each.argsort().argsort() for each in cosines]
        found = (-np.abs(ranks[0] - ranks[1])).argsort()[:count].tolist()
    else:
        assert isinstance(part, Classes)
        found = in_rounds(vectors[0], part.classes, count)
    return asked[found].tolist()


def by_bands(cosines: Vectors, count: int) -> list[int]:
    """In turn from bands of equal width."""
    low, high = np.percentile(cosines, [2, 99.5])
    bands = np.digitize(cosines, np.linspace(low, high, BANDS + 1)[1:-1])
    queues = [np.flatnonzero(bands == band).tolist() for band in range(BANDS)]
    found: list[int] = []
    while len(found) < count:
        found += [queue.pop() for queue in queues if queue]
    return found[:count]


def in_rounds(vectors: Vectors, classes: Sequence[str], count: int) -> list[int]:
    """First a design, then in rounds a design among those for which the two most probable classes are closest."""
    kernel = sentence_kernel(vectors)
    found = choose(kernel, BEGIN)
    while len(found) < count:
        _, shares = classify(vectors[found], [classes[i] for i in found], vectors)
        best = np.sort(shares, axis=1)[:, -2:]
        margins = best[:, 1] - best[:, 0]
        margins[found] = np.inf
        unsure = margins.argsort()[: min(UNSURE, len(vectors) - len(found))]
        found += unsure[choose(kernel[np.ix_(unsure, unsure)], ROUND)].tolist()
    return found[:count]


def labels_needed(sizes: Sequence[int], scores: Sequence[float], goal: float) -> float | None:
    """Where the curve first reaches a score, by linear interpolation; None: nowhere."""
    for (size, value), (following, higher) in zip(
        zip(sizes, scores, strict=True), zip(sizes[1:], scores[1:], strict=True), strict=False
    ):
        if value >= goal:
            return size
        if higher >= goal:
            return size + (following - size) * (goal - value) / (higher - value)
    return None


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean scores, their standard errors over draws and seeds, and how many labels reach random's score at 500."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(run["data"] for run in runs):
        found[name] = {}
        for strategy in dict.fromkeys(run["strategy"] for run in runs if run["data"] == name):
            own = [run["scores"] for run in runs if (run["data"], run["strategy"]) == (name, strategy)]
            by_size = {str(n): [run[str(n)] for run in own if str(n) in run] for n in SIZES}
            by_size = {size: values for size, values in by_size.items() if values}
            errors = {n: float(np.std(v, ddof=1) / len(v) ** 0.5) for n, v in by_size.items() if len(v) > 1}
            found[name][strategy] = {
                "runs": {size: len(values) for size, values in by_size.items()},
                "scores": {size: round(float(np.mean(values)), 3) for size, values in by_size.items()},
                "standard errors": {size: round(error, 3) for size, error in errors.items()},
            }
        goal = found[name].get("random", {}).get("scores", {}).get("500")
        for each in found[name].values() if goal is not None else ():
            each["labels for random's score at 500"] = labels_needed(
                [int(size) for size in each["scores"]], list(each["scores"].values()), goal
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, help="a .npz file in which vectors are kept between calls")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--strategies", nargs="+")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    options = parser.parse_args()
    runs = json.loads(options.out.read_text("utf-8"))["runs"] if options.out.is_file() else []
    encode, other = cached(options.model, options.vectors, "model"), cached(None, options.vectors, "other")
    for draw in range(options.draws):
        for name in options.only:
            train, test = read(name, options.data)
            kind = "classes" if isinstance(train, Classes) else "pairs"
            pool = train.take(np.random.default_rng(draw).permutation(len(train))[: POOL[kind]].tolist())
            for seed in range(options.seeds):
                for strategy in STRATEGIES[kind]:
                    if options.strategies and strategy not in options.strategies:
                        continue
                    key = {"data": name, "strategy": strategy, "draw": draw, "seed": seed}
                    run = next((each for each in runs if key.items() <= each.items()), None)
                    if run is None:
                        run = {**key, "scores": {}}
                        runs.append(run)
                    missing = [size for size in options.sizes if str(size) not in run["scores"]]
                    if not missing:
                        continue
                    rng = np.random.default_rng([draw, seed])
                    rows = order(strategy, pool, encode, other, max(missing), rng)
                    for size in missing:
                        run["scores"][str(size)] = score(encode, pool.take(rows[:size]), test)
                    print(key, {size: round(value, 2) for size, value in run["scores"].items()}, flush=True)
                    record = {
                        "command": "python benchmarks/labelling.py --model MODEL --data DATA --out FILE",
                        "machine": machine(("torch", "transformers")),
                        "model": Path(options.model).name,
                        "summary": summary(runs),
                        "runs": runs,
                    }
                    options.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def cached(model: str | None, path: Path | None, part: str) -> Encode:
    """The vectors of a model, each computed once; also between calls, if a file is given."""
    file = None if path is None else path.with_name(f"{path.stem}-{part}.npz")
    vectors: dict[str, Vectors] = {}
    if file is not None and file.is_file():
        with np.load(file) as stored:
            vectors = dict(zip(stored["texts"].tolist(), stored["vectors"], strict=True))
    embedder: list[Embedder] = []

    def encode(texts: Sequence[str]) -> Vectors:
        missing = [text for text in dict.fromkeys(texts) if text not in vectors]
        if missing:
            embedder[:] = embedder or [Embedder.from_pretrained(model, device="cpu")]
            vectors.update(zip(missing, embedder[0].encode(missing), strict=True))
            if file is not None:
                np.savez(file, texts=np.array(list(vectors)), vectors=np.stack(list(vectors.values())))
        return np.stack([vectors[text] for text in texts])

    return encode


if __name__ == "__main__":
    main()
