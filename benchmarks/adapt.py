"""`diffaug adapt` beside its peers, on the same labels: scores on test sets that none of them has seen.

    python benchmarks/adapt.py --model all-MiniLM-L6-v2 --data data --out benchmarks/results/adapt.json

`--data` is a folder with `intents/` (BANKING77), `sts/`, `transfer/MRPC/` and `nli/`. A result that is in the file
already is not computed again, so the work can be done in parts: `--only stsb-300 --ways adapt --draws 3 --seconds 180`.

Ways: `untouched`; `logistic` (logistic regression of scikit-learn on the vectors); `adapt` and `adapt-text` (with the
data set's training sentences as unlabelled text); `mnrl`, `cosent` and `triplets` (sentence-transformers' losses
MultipleNegativesRanking, CoSENT and BatchAllTriplet with the steps, batches and learning rate of our recipes); `setfit`
(needs an environment of its own: run this script with that Python and `--ways setfit`; it does not import diffaug).
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import machine

Rows = list[tuple[Any, ...]]
Encode = Callable[[Sequence[str]], np.ndarray]

STEPS, BATCH, RATE = 200, 128, 2e-5  # those of the adapt recipes
WAYS = {
    "classes": ("untouched", "adapt", "adapt-text", "triplets", "setfit"),
    "scored": ("untouched", "adapt", "cosent"),
    "same": ("untouched", "adapt", "cosent", "mnrl"),
    "triplets": ("untouched", "adapt", "mnrl"),
}


@dataclass
class Case:
    """One draw of labels from a data set, and what to score on.

    Attributes:
        kind: of the labels; a key of `WAYS`.
        rows: sentences with their class last; pairs with their score or label last; or triplets.
        tests: by name, rows of the same kind; for triplets scored pairs.
        text: the data set's sentences without labels.
    """

    kind: str
    rows: Rows
    tests: dict[str, Rows]
    text: list[str] = field(default_factory=list)


def load(name: str, draw: int, data: Path) -> Case:
    """A case by name, such as `banking77-5` (sentences per class) or `stsb-300` (labels)."""
    family, number = name.rsplit("-", 1)
    count, rng = int(number), random.Random(draw)
    if family == "banking77":
        train = [(text, label) for label, text in _tsv(data / "intents/banking77.train.tsv")]
        test = [(text, label) for label, text in _tsv(data / "intents/banking77.test.tsv")]
        rows = []
        for label in sorted({label for _, label in train}):
            rows += rng.sample([row for row in train if row[1] == label], count)
        return Case("classes", rows, {"test": test}, [text for text, _ in train])
    if family in ("stsb", "sick"):
        if family == "stsb":
            pool, test = _scored(data / "sts/STSB.train.tsv"), _scored(data / "sts/STSB.test.tsv")
        else:  # the published test set is not at hand: half of the training pairs stand in for it
            pool = _scored(data / "sts/SICK.train.tsv")
            random.Random(0).shuffle(pool)
            pool, test = pool[: len(pool) // 2], pool[len(pool) // 2 :]
        return Case("scored", rng.sample(pool, min(count, len(pool))), {"test": test})
    if family == "mrpc":
        parts = []
        for part in ("train", "test"):
            lines = _tsv(data / f"transfer/MRPC/msr_paraphrase_{part}.txt")[1:]
            parts.append([(first, second, int(label)) for label, _, _, first, second in lines])
        return Case("same", rng.sample(parts[0], min(count, len(parts[0]))), {"test": parts[1]})
    if family == "nli":
        with lzma.open(data / "nli/triplets.csv.xz", "rt", encoding="utf-8", newline="") as file:
            pool = [tuple(row) for row in list(csv.reader(file))[1:]]
        files = [*sorted((data / "sts").glob("STS1*.tsv")), data / "sts/STSB.test.tsv", data / "sts/SICK.trial.tsv"]
        return Case("triplets", rng.sample(pool, count), {path.stem: _scored(path) for path in files})
    raise SystemExit(f"unknown data set {family!r}")


def _tsv(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text("utf-8-sig").splitlines()]


def _scored(path: Path) -> Rows:
    return [(first, second, float(score)) for score, first, second, *_ in _tsv(path) if score]


def score_pairs(encode: Encode, case: Case) -> float:
    """Average precision of same and different pairs; the mean Spearman correlation of scored ones."""
    from scipy.stats import spearmanr
    from sklearn.metrics import average_precision_score

    found = []
    for rows in case.tests.values():
        first, second, gold = zip(*rows, strict=True)
        cosines = (encode(first) * encode(second)).sum(1)
        same = case.kind == "same"
        found.append(average_precision_score(gold, cosines) if same else spearmanr(cosines, gold).statistic)
    return 100 * float(np.mean(found))


def score_classes(encode: Encode, case: Case) -> float:
    """The accuracy of logistic regression on the vectors."""
    from sklearn.linear_model import LogisticRegression

    texts, labels = zip(*case.rows, strict=True)
    classifier = LogisticRegression(C=16, max_iter=1000).fit(encode(texts), labels)
    texts, labels = zip(*case.tests["test"], strict=True)
    return 100 * float(classifier.score(encode(texts), labels))


def score(encode: Encode, case: Case) -> float:
    """The score of vectors."""
    return score_classes(encode, case) if case.kind == "classes" else score_pairs(encode, case)


def untouched(model: str, case: Case, draw: int, options: argparse.Namespace) -> dict[str, Any]:
    """The model as it is, with logistic regression for classes."""
    from diffaug import Embedder

    return {"score": score(Embedder.from_pretrained(model).encode, case)}


def adapt(model: str, case: Case, draw: int, options: argparse.Namespace, text: bool = False) -> dict[str, Any]:
    """`diffaug.adapt`, and its saved model or, if it says "do not train", the model as it is."""
    import diffaug

    names = {
        "classes": ("text", "label"),
        "scored": ("sentence1", "sentence2", "score"),
        "same": ("sentence1", "sentence2", "label"),
        "triplets": ("anchor", "positive", "negative"),
    }[case.kind]
    rows = [dict(zip(names, row, strict=True)) for row in case.rows]
    if case.kind == "same":
        rows = [{**row, "label": "same" if row["label"] else "different"} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        result = diffaug.adapt(
            model,
            rows,
            Path(folder) / "out",
            text=case.text if text else None,
            seed=draw,
            only=options.candidates,
            report=lambda line: print("   ", line, file=sys.stderr, flush=True),
        )
        embedder = diffaug.Embedder.from_pretrained(result.model or model)
    if case.kind == "classes":
        texts, labels = zip(*case.tests["test"], strict=True)
        found = 100 * float(np.mean(np.array(embedder.predict(list(texts))) == np.array(labels)))
    else:
        found = score(embedder.encode, case)
    return {
        "score": found,
        "chosen": result.chosen,
        "verdict": result.verdict,
        "rows": [row.to_dict() for row in result.rows],
        "forecast": result.forecast and result.forecast.to_dict(),
    }


def adapt_text(model: str, case: Case, draw: int, options: argparse.Namespace) -> dict[str, Any]:
    """`diffaug.adapt` with unlabelled text."""
    return adapt(model, case, draw, options, text=True)


def _batches(case: Case, draw: int) -> Iterator[Rows]:
    """Batches in random order; of classes, four sentences of each class of a batch."""
    rng = random.Random(draw)
    by_class: dict[str, Rows] = {}
    if case.kind == "classes":
        for row in case.rows:
            by_class.setdefault(row[-1], []).append(row)
    waiting: Rows = []
    size = min(BATCH, len(case.rows))
    while True:
        if by_class:
            names = rng.sample(sorted(by_class), min(len(by_class), BATCH // 4))
            yield [row for name in names for row in rng.sample(by_class[name], min(4, len(by_class[name])))]
            continue
        while len(waiting) < size:
            waiting += rng.sample(case.rows, len(case.rows))
        yield waiting[:size]
        del waiting[:size]


def sentence_transformers(loss_name: str) -> Callable[..., dict[str, Any]]:
    """Training with a loss of sentence-transformers."""

    def run(model: str, case: Case, draw: int, options: argparse.Namespace) -> dict[str, Any]:
        import torch
        from sentence_transformers import SentenceTransformer, losses

        torch.manual_seed(draw)
        trained = SentenceTransformer(model)
        if loss_name == "MultipleNegativesRankingLoss" and case.kind == "same":
            case = Case(case.kind, [row for row in case.rows if row[-1]], case.tests)
        loss = getattr(losses, loss_name)(trained)
        optimiser = torch.optim.AdamW(trained.parameters(), lr=RATE)
        warmup = options.steps // 10
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser,
            lambda step: min((step + 1) / max(1, warmup), (options.steps - step) / max(1, options.steps - warmup)),
        )
        trained.train()
        for step, rows in zip(range(options.steps), _batches(case, draw), strict=False):
            columns = list(zip(*rows, strict=True))
            values = columns.pop() if case.kind != "triplets" else [0.0] * len(rows)
            if case.kind == "classes":
                place = {name: i for i, name in enumerate(sorted(set(values)))}
                values = [place[name] for name in values]
            labels = torch.tensor(values, device=trained.device)
            features = [
                {key: value.to(trained.device) for key, value in _tokens(trained, list(column)).items()}
                for column in columns
            ]
            optimiser.zero_grad()
            loss(features, labels).backward()
            torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            if step % 50 == 0:
                print(f"    step {step}", file=sys.stderr, flush=True)
        trained.eval()
        return {"score": score(lambda texts: trained.encode(list(texts), normalize_embeddings=True), case)}

    return run


def _tokens(model: Any, texts: list[str]) -> dict[str, Any]:
    tokenise = getattr(model, "preprocess", None) or model.tokenize  # the name since version 5.2
    return {key: value for key, value in tokenise(texts).items() if hasattr(value, "to")}


def setfit(model: str, case: Case, draw: int, options: argparse.Namespace) -> dict[str, Any]:
    """SetFit with its own defaults."""
    from datasets import Dataset  # type: ignore[import-untyped]
    from setfit import SetFitModel, Trainer, TrainingArguments

    texts, labels = zip(*case.rows, strict=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, seed=draw, max_steps=options.setfit_steps)
        trainer = Trainer(
            SetFitModel.from_pretrained(model),
            arguments,
            train_dataset=Dataset.from_dict({"text": list(texts), "label": list(labels)}),
        )
        trainer.train()
    texts, labels = zip(*case.tests["test"], strict=True)
    found = [str(name) for name in trainer.model.predict(list(texts))]
    return {"score": 100 * float(np.mean(np.array(found) == np.array(labels)))}


RUNS: dict[str, Callable[..., dict[str, Any]]] = {
    "untouched": untouched,
    "adapt": adapt,
    "adapt-text": adapt_text,
    "mnrl": sentence_transformers("MultipleNegativesRankingLoss"),
    "cosent": sentence_transformers("CoSENTLoss"),
    "triplets": sentence_transformers("BatchAllTripletLoss"),
    "setfit": setfit,
}
CASES = [
    *("banking77-5", "banking77-10"),
    *(f"{family}-{count}" for family in ("stsb", "sick", "mrpc") for count in (50, 300, 1000)),
    "nli-300",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--ways", nargs="*", choices=list(RUNS), help="default: all but setfit")
    parser.add_argument("--candidates", nargs="*", help="of adapt; default: all")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--first-draw", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="of sentence-transformers")
    parser.add_argument("--setfit-steps", type=int, default=-1, help="default: as SetFit chooses")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing new after this time")
    options = parser.parse_args()
    begin = time.monotonic()
    record = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {"results": []}
    done = {(r["case"], r["draw"], r["way"]) for r in record["results"]}
    for name in options.only:
        for draw in range(options.first_draw, options.first_draw + options.draws):
            case = load(name, draw, options.data)
            ways = options.ways or [way for way in WAYS[case.kind] if way != "setfit"]
            for way in ways:
                if (name, draw, way) in done or way not in WAYS[case.kind]:
                    continue
                if time.monotonic() - begin > options.seconds:
                    raise SystemExit("time is up; the same command continues")
                start = time.monotonic()
                found = RUNS[way](options.model, case, draw, options)
                entry = {"case": name, "draw": draw, "way": way, "labels": len(case.rows), **found}
                record["results"].append({**entry, "seconds": round(time.monotonic() - start, 1)})
                record["command"] = "python benchmarks/adapt.py --model MODEL --data DATA --out FILE"
                record["model"] = Path(options.model).name
                record.setdefault("machines", {})[way] = machine(("torch", "transformers"))
                options.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
                print(f"{name} draw {draw} {way}: {found['score']:.2f} {found.get('chosen', '')}", flush=True)


if __name__ == "__main__":
    main()
