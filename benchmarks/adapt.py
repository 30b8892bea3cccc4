"""`diffaug adapt` beside its peers, on the same labels: scores on test sets that none of them has seen.

    python benchmarks/adapt.py --model all-MiniLM-L6-v2 --data data --out benchmarks/results/adapt.json --jobs 14

`--data` is a folder with `intents/` (BANKING77), `sts/`, `transfer/` (MRPC, MR, SST, TREC) and `nli/`. A result that
is in the file already is not computed again, so the work can be done in parts: `--only stsb-300 --ways adapt`.

Ways: `untouched` (pairs alone); `logistic` (logistic regression of scikit-learn on the vectors, its penalty chosen by
cross-validation); `adapt` and `adapt-text` (with the data set's training sentences as unlabelled text), which also
score every candidate on the test set; `mnrl`, `cosent` and `triplets` (sentence-transformers' losses
MultipleNegativesRanking, CoSENT and BatchAllTriplet, with the steps and batches of our recipes and the learning rates
in `RATES`); `setfit` (its own defaults, at most `--setfit-steps` steps; it needs the package `setfit`).

`--dev` scores on other rows than the test sets. All learning rates, ours and theirs, were chosen on these among 2e-5,
5e-5 and 1e-4, with the ways `simcse` and `diffaug` (one training on all labels) and those of sentence-transformers:

    python benchmarks/adapt.py --dev --rate 5e-5 --ways simcse diffaug triplets cosent mnrl --first-draw 10 --draws 2
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import machine

Rows = list[tuple[Any, ...]]
Encode = Callable[[Sequence[str]], np.ndarray]

STEPS, BATCH = 200, 128  # those of the adapt recipes
RATES = {
    ("triplets", "classes"): 2e-5,
    ("cosent", "scored"): 5e-5,
    ("cosent", "same"): 2e-5,
    ("mnrl", "same"): 1e-4,
    ("mnrl", "triplets"): 2e-5,
}
WAYS = {
    "classes": ("logistic", "adapt", "adapt-text", "triplets", "setfit"),
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
        pairs = []
        for part in ("train", "test"):
            lines = _tsv(data / f"transfer/MRPC/msr_paraphrase_{part}.txt")[1:]
            pairs.append([(first, second, int(label)) for label, _, _, first, second in lines])
        return Case("same", rng.sample(pairs[0], min(count, len(pairs[0]))), {"test": pairs[1]})
    if family in ("sst2", "trec", "mr"):
        pool, parts = _classes(family, data)
        return Case("classes", _draw_classes(pool, count, rng), parts, [text for text, _ in pool])
    if family == "nli":
        with lzma.open(data / "nli/triplets.csv.xz", "rt", encoding="utf-8", newline="") as file:
            pool = [tuple(row) for row in list(csv.reader(file))[1:]]
        files = [*sorted((data / "sts").glob("STS1*.tsv")), data / "sts/STSB.test.tsv", data / "sts/SICK.trial.tsv"]
        tests: dict[str, Rows] = {}
        for path in files:  # the pairs of a year are one task
            tests.setdefault(path.name.split(".")[0], []).extend(_scored(path))
        return Case("triplets", rng.sample(pool, count), tests)
    raise SystemExit(f"unknown data set {family!r}")


def _classes(family: str, data: Path) -> tuple[Rows, dict[str, Rows]]:
    """The training and the test sentences of a data set of SentEval, with their classes."""
    folder = data / "transfer"
    if family == "sst2":
        train, test = (_tsv(folder / f"SST/binary/sentiment-{part}") for part in ("train", "test"))
        return [(text.strip(), label) for text, label in train], {"test": [(text, label) for text, label in test]}
    if family == "trec":
        parts = []
        for name in ("train_5500.label", "TREC_10.label"):
            lines = (folder / "TREC" / name).read_text("latin-1").splitlines()
            parts.append([(text, label.split(":")[0]) for label, text in (line.split(" ", 1) for line in lines)])
        return parts[0], {"test": parts[1]}
    rows = []
    for name in ("neg", "pos"):
        lines = (folder / f"MR/rt-polarity.{name}").read_text("latin-1").splitlines()
        rows += [(line.strip(), name) for line in lines]
    random.Random(0).shuffle(rows)  # there is no published split: 2,000 sentences are the test set
    return rows[2000:], {"test": rows[:2000]}


def _draw_classes(pool: Rows, count: int, rng: random.Random) -> Rows:
    """``count`` distinct sentences at random, at least two of each class."""
    labels: dict[str, str] = {}
    for text, label in pool:
        labels.setdefault(text, label)
    order = rng.sample(sorted(labels.items()), len(labels))
    first = [row for name in sorted(set(labels.values())) for row in [row for row in order if row[1] == name][:2]]
    rest = [row for row in order if row not in set(first)]
    return first + rest[: count - len(first)]


def dev_sets(name: str, case: Case, data: Path) -> dict[str, Rows]:
    """Rows to choose settings on: none is in a test set or among the labels."""
    family, used = name.rsplit("-", 1)[0], {tuple(row[:2]) for row in case.rows}
    if family == "banking77":
        return {"test": [(text, label) for label, text in _tsv(data / "intents/banking77.valid.tsv")]}
    if family == "sst2":
        return {"test": [(text, label) for text, label in _tsv(data / "transfer/SST/binary/sentiment-dev")]}
    if family == "stsb":
        return {"test": _scored(data / "sts/STSB.dev.tsv")}
    if family == "nli":
        files = ("STSB.dev", "STSB.train", "SICK.train")
        return {name: _scored(data / f"sts/{name}.tsv") for name in files}
    whole = f"{family}-4000"  # all training pairs
    pool = _classes(family, data)[0] if family in ("trec", "mr") else load(whole, 0, data).rows
    rest = [row for row in pool if tuple(row[:2]) not in used]
    return {"test": random.Random(0).sample(rest, min(2000, len(rest)))}


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


def score_classes(embedder: Any, case: Case) -> float:
    """The accuracy of a model with a classifier."""
    texts, labels = zip(*case.tests["test"], strict=True)
    return 100 * float(np.mean(np.array(embedder.predict(list(texts))) == np.array(labels)))


def logistic_score(encode: Encode, case: Case) -> float:
    """The accuracy of logistic regression on the vectors."""
    from sklearn.linear_model import LogisticRegressionCV

    texts, labels = zip(*case.rows, strict=True)
    folds = min(3, min(Counter(labels).values()))
    classifier = LogisticRegressionCV(Cs=(0.25, 1, 4, 16, 64), cv=folds, max_iter=500)
    classifier.fit(encode(texts), labels)
    texts, labels = zip(*case.tests["test"], strict=True)
    return 100 * float(classifier.score(encode(texts), labels))


def score(encode: Encode, case: Case) -> float:
    """The score of vectors."""
    return logistic_score(encode, case) if case.kind == "classes" else score_pairs(encode, case)


def score_model(embedder: Any, case: Case) -> float:
    """The score of a model of diffaug."""
    return score_classes(embedder, case) if case.kind == "classes" else score_pairs(embedder.encode, case)


def as_dicts(case: Case) -> list[dict[str, Any]]:
    """The labels as diffaug reads them."""
    names = {
        "classes": ("text", "label"),
        "scored": ("sentence1", "sentence2", "score"),
        "same": ("sentence1", "sentence2", "label"),
        "triplets": ("anchor", "positive", "negative"),
    }[case.kind]
    rows = [dict(zip(names, row, strict=True)) for row in case.rows]
    if case.kind == "same":
        rows = [{**row, "label": "same" if row["label"] else "different"} for row in rows]
    return rows


def untouched(model: str, case: Case, draw: int, options: argparse.Namespace) -> dict[str, Any]:
    """The model as it is, with logistic regression for classes."""
    from diffaug import Embedder

    return {"score": score(Embedder.from_pretrained(model).encode, case)}


def adapt(model: str, case: Case, draw: int, options: argparse.Namespace, text: bool = False) -> dict[str, Any]:
    """`diffaug.adapt`: the score of what it saves, or of the model as it is, and those of all candidates."""
    import diffaug
    from diffaug.adaptation.candidates import SPREADING, UNTOUCHED, candidates, cheap, trained
    from diffaug.adaptation.inputs import most_text, read_inputs
    from diffaug.adaptation.trials import Trials

    rows = as_dicts(case)
    raw = case.text if text else None
    with tempfile.TemporaryDirectory() as folder:
        result = diffaug.adapt(model, rows, Path(folder) / "out", text=raw, seed=draw, only=options.candidates)
        found = {result.chosen: score_model(diffaug.Embedder.from_pretrained(result.model or model), case)}
        start = diffaug.Embedder.from_pretrained(model)
        on_gpu = start.device.type != "cpu"
        inputs = read_inputs(rows, raw, None, None, most_text(on_gpu), draw, lambda line: None)
        scores = {row.name: row.score for row in result.rows}
        helps = scores[SPREADING] > scores[UNTOUCHED] if SPREADING in scores else None
        known = candidates(inputs, start.encoder, on_gpu)
        for candidate in [*cheap(known, options.candidates), *trained(known, options.candidates, helps, on_gpu)]:
            if candidate.name not in found and (candidate.changes_model or case.kind == "classes"):
                fresh = diffaug.Embedder.from_pretrained(model)
                trials = Trials(Path(folder) / "others", model, fresh, inputs.text, draw)
                found[candidate.name] = score_model(trials.finished(candidate, inputs.labelled), case)
    return {
        "score": found[result.chosen],
        "chosen": result.chosen,
        "verdict": result.verdict,
        "rows": [row.to_dict() for row in result.rows],
        "candidates": found,
        "forecast": result.forecast and result.forecast.to_dict(),
        "adapt_seconds": round(result.seconds, 1),
    }


def adapt_text(model: str, case: Case, draw: int, options: argparse.Namespace) -> dict[str, Any]:
    """`diffaug.adapt` with unlabelled text."""
    return adapt(model, case, draw, options, text=True)


def candidate(name: str) -> Callable[..., dict[str, Any]]:
    """One candidate that trains, on all labels; and the average with the model as it is."""

    def run(model: str, case: Case, draw: int, options: argparse.Namespace) -> dict[str, Any]:
        from diffaug import Embedder
        from diffaug.adaptation.candidates import candidates
        from diffaug.adaptation.inputs import read_inputs
        from diffaug.adaptation.trials import Trials

        start = Embedder.from_pretrained(model)
        inputs = read_inputs(as_dicts(case), None, None, None, 0, draw, lambda line: None)
        changes = () if options.rate is None else (f"stage2.learning_rate={options.rate}",)
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            trials = Trials(Path(folder), model, start, [], draw)
            for each in candidates(inputs, start.encoder, start.device.type != "cpu"):
                if each.training == name:
                    trained = trials.finished(replace(each, changes=each.changes + changes), inputs.labelled)
                    found["averaged" if each.averaged else "score"] = score_model(trained, case)
        return found

    return run


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


def sentence_transformers(way: str, loss_name: str) -> Callable[..., dict[str, Any]]:
    """Training with a loss of sentence-transformers."""

    def run(model: str, case: Case, draw: int, options: argparse.Namespace) -> dict[str, Any]:
        import torch
        from sentence_transformers import SentenceTransformer, losses

        torch.manual_seed(draw)
        trained = SentenceTransformer(model)
        if loss_name == "MultipleNegativesRankingLoss" and case.kind == "same":
            case = Case(case.kind, [row for row in case.rows if row[-1]], case.tests)
        loss = getattr(losses, loss_name)(trained)
        rate = options.rate or RATES[way, case.kind]
        optimiser = torch.optim.AdamW(trained.parameters(), lr=rate)
        warmup = options.steps // 10
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser,
            lambda step: min((step + 1) / max(1, warmup), (options.steps - step) / max(1, options.steps - warmup)),
        )
        trained.train()
        for _, rows in zip(range(options.steps), _batches(case, draw), strict=False):
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
        trained.eval()
        return {"score": score(lambda texts: trained.encode(list(texts), normalize_embeddings=True), case)}

    return run


def _tokens(model: Any, texts: list[str]) -> dict[str, Any]:
    tokenise = getattr(model, "preprocess", None) or model.tokenize  # the name since version 5.2
    return {key: value for key, value in tokenise(texts).items() if hasattr(value, "to")}


def setfit(model: str, case: Case, draw: int, options: argparse.Namespace) -> dict[str, Any]:
    """SetFit with its own defaults: it learns from all pairs of sentences, here from at most so many steps of them."""
    from datasets import Dataset  # type: ignore[import-untyped]
    from setfit import SetFitModel, Trainer, TrainingArguments

    texts, labels = zip(*case.rows, strict=True)
    same = sum(size * (size - 1) // 2 for size in Counter(labels).values())
    pairs = 2 * max(same, len(labels) * (len(labels) - 1) // 2 - same)  # it repeats the rarer kind
    with tempfile.TemporaryDirectory() as folder:
        steps = options.setfit_steps if pairs > 16 * options.setfit_steps else -1
        arguments = TrainingArguments(output_dir=folder, seed=draw, max_steps=steps, report_to="none")
        trainer = Trainer(
            SetFitModel.from_pretrained(model),
            arguments,
            train_dataset=Dataset.from_dict({"text": list(texts), "label": list(labels)}),
        )
        trainer.train()
    texts, labels = zip(*case.tests["test"], strict=True)
    found = [str(name) for name in trainer.model.predict(list(texts))]
    return {"score": 100 * float(np.mean(np.array(found) == np.array(labels))), "whole": steps == -1}


RUNS: dict[str, Callable[..., dict[str, Any]]] = {
    "untouched": untouched,
    "logistic": untouched,
    "adapt": adapt,
    "adapt-text": adapt_text,
    "simcse": candidate("SimCSE"),
    "diffaug": candidate("DiffAug"),
    "mnrl": sentence_transformers("mnrl", "MultipleNegativesRankingLoss"),
    "cosent": sentence_transformers("cosent", "CoSENTLoss"),
    "triplets": sentence_transformers("triplets", "BatchAllTripletLoss"),
    "setfit": setfit,
}
CASES = [
    *("banking77-5", "banking77-10"),
    *(f"{family}-{n}" for family in ("trec", "sst2", "mr", "stsb", "sick", "mrpc", "nli") for n in (50, 300, 1000)),
]


def run(task: tuple[str, int, str], options: argparse.Namespace) -> dict[str, Any]:
    """One result; in a process of a pool."""
    name, draw, way = task
    case = load(name, draw, options.data)
    if options.dev:
        case.tests = dev_sets(name, case, options.data)
    begin = time.monotonic()
    found = RUNS[way](options.model, case, draw, options)
    seconds = round(time.monotonic() - begin, 1)
    return {"case": name, "draw": draw, "way": way, "labels": len(case.rows), **found, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--ways", nargs="*", choices=list(RUNS), help="default: all")
    parser.add_argument("--candidates", nargs="*", help="of adapt; default: all")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--first-draw", type=int, default=0)
    parser.add_argument("--dev", action="store_true", help="score on dev sets, to choose settings")
    parser.add_argument("--steps", type=int, default=STEPS, help="of sentence-transformers")
    parser.add_argument("--rate", type=float, help="learning rate of sentence-transformers, simcse and diffaug")
    parser.add_argument("--setfit-steps", type=int, default=1000, help="the most steps of SetFit")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    record = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {"results": []}
    done = {(r["case"], r["draw"], r["way"]) for r in record["results"]}
    draws = range(options.first_draw, options.first_draw + options.draws)
    kinds = {name: load(name, 0, options.data).kind for name in options.only}
    tasks = [
        (name, draw, way)
        for draw in draws
        for name in options.only
        for way in (*WAYS[kinds[name]], "simcse", "diffaug")
        if way in (options.ways or WAYS[kinds[name]]) and (name, draw, way) not in done
    ]
    record["command"] = "python benchmarks/adapt.py --model MODEL --data DATA --out FILE"
    record["model"] = Path(options.model).name
    record.setdefault("machines", {}).update({way: machine(("torch", "transformers")) for _, _, way in tasks})
    with processes(options.jobs) as pool:
        for entry in pool.imap_unordered(partial(_attempt, options=options), tasks):
            if "error" not in entry:
                record["results"].append(entry)
                options.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
            print(
                *(entry.get(key, "") for key in ("case", "draw", "way", "score", "chosen", "seconds", "error")),
                flush=True,
            )
            if time.monotonic() > deadline:
                stop()


def processes(jobs: int) -> Any:
    """A pool of processes; if they are several, each has one thread, of BLAS too."""
    if jobs > 1:
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return get_context("spawn").Pool(jobs)


def stop() -> None:
    """End this process and those of its pool at once, without waiting for what they compute."""
    print("time is up; the same command continues", flush=True)
    for process in active_children():
        process.kill()
    os._exit(0)


def _attempt(task: tuple[str, int, str], options: argparse.Namespace) -> dict[str, Any]:
    try:
        return run(task, options)
    except Exception as error:  # one failure must not end the others
        return dict(zip(("case", "draw", "way"), task, strict=True)) | {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
