"""How long does a whole supervised run take, beside sentence-transformers' SimCSE on the same triplets?

Both read the same files, train for the same epochs with the same batches, precision and optimiser, and score the dev
set every 50 steps. Ours is the recipe `diffaug-sup`: stage 1 for as many steps as the paper gives it, and stage 2.
Theirs is their trainer with MultipleNegativesRankingLoss and EmbeddingSimilarityEvaluator; where `datasets` is missing,
without which their trainer does not start, their model, loss and evaluator in a plain loop.

    python benchmarks/whole_run.py --triplets nli.csv.xz --dev STSB.dev.tsv
    python benchmarks/whole_run.py --model mini --epochs 0.2       # the sample data, on a small machine
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from common import SAMPLE, save
from train import SHAPES, random_backbone
from transformers import AutoTokenizer, BertConfig

from diffaug import train
from diffaug.config import load_recipe
from diffaug.data.read import read_nli, read_scored_pairs
from diffaug.data.records import Triplets
from diffaug.inference.runner import default_device
from diffaug.models.io.fetch import EMBEDDED_MODEL
from diffaug.training.precision import Precision

os.environ.setdefault("HF_HUB_OFFLINE", "1")
_BATCH, _EVERY, _STAGE1 = 128, 50, 1250
# Random weights have nothing to learn from, and soon make all vectors alike, which rightly ends our run. How long a
# step takes does not depend on the rate.
_RATE = 1e-9


def ours(backbone: str, triplets: str, dev: str, epochs: float, stage1: int) -> dict[str, Any]:
    """`diffaug train`."""
    changes = [
        f"model.backbone={backbone}",
        f"data.nli={triplets}",
        f"data.dev={dev}",
        f"stage1.steps={stage1}",
        f"stage2.epochs={epochs}",
        f"loop.eval_every={_EVERY}",
        f"stage1.learning_rate={_RATE}",
        f"stage2.learning_rate={_RATE}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe("diffaug-sup", changes)
        start = time.perf_counter()
        train(recipe, Path(folder) / "run", quiet=True)
        return {"seconds": round(time.perf_counter() - start, 1), "stage1_steps": stage1}


def theirs(backbone: str, triplets: str, dev: str, epochs: float) -> dict[str, Any]:
    """sentence-transformers."""
    from sentence_transformers import SentenceTransformer, losses, models
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

    start = time.perf_counter()
    nli, pairs = read_nli(triplets), read_scored_pairs(dev)
    assert isinstance(nli, Triplets), "triplets, and not labelled pairs"
    transformer = models.Transformer(backbone, max_seq_length=32)
    pooling = models.Pooling(BertConfig.from_pretrained(backbone).hidden_size, "cls")
    model = SentenceTransformer(modules=[transformer, pooling], device=default_device())
    loss = losses.MultipleNegativesRankingLoss(model)
    evaluator = EmbeddingSimilarityEvaluator(pairs.first, pairs.second, pairs.scores, main_similarity="cosine")
    run = _their_trainer if find_spec("datasets") else _plain_loop
    steps = run(model, loss, evaluator, nli, epochs)
    return {"seconds": round(time.perf_counter() - start, 1), "steps": steps, "loop": run.__name__.strip("_")}


def _their_trainer(model: Any, loss: Any, evaluator: Any, nli: Triplets, epochs: float) -> int:
    from datasets import Dataset  # type: ignore[import-untyped]
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    rows = Dataset.from_dict({"anchor": nli.anchors, "positive": nli.positives, "negative": nli.negatives})
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=_BATCH,
            learning_rate=_RATE,
            bf16=Precision("auto", torch.device(default_device())).half is not None,
            eval_strategy="steps",
            eval_steps=_EVERY,
            save_strategy="no",
            report_to="none",
            dataloader_drop_last=True,
            disable_tqdm=True,
        )
        trainer = SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss, evaluator=evaluator)
        return int(trainer.train().global_step)


def _plain_loop(model: Any, loss: Any, evaluator: Any, nli: Triplets, epochs: float) -> int:
    from sentence_transformers.util import batch_to_device

    precision = Precision("auto", model.device)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=_RATE, fused=model.device.type == "cuda" or None)
    rows, steps = list(nli), round(epochs * (len(nli) // _BATCH))
    labels = torch.arange(_BATCH, device=model.device)
    model.train()
    for step in range(steps):
        if step * _BATCH % (len(rows) // _BATCH * _BATCH) == 0:
            random.Random(step).shuffle(rows)
        first = step * _BATCH % (len(rows) // _BATCH * _BATCH)
        columns = zip(*rows[first : first + _BATCH], strict=True)
        features = [batch_to_device(model.tokenize(list(column)), model.device) for column in columns]
        with precision.autocast():
            value = loss(features, labels)
        precision.backward(value)
        precision.step(optimizer, parameters, 1.0)
        if (step + 1) % _EVERY == 0 or step + 1 == steps:
            model.eval()
            evaluator(model)
            model.train()
    return steps


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="base", help="random weights of this shape")
    parser.add_argument("--triplets", default=str(SAMPLE.with_name("triplets.csv")))
    parser.add_argument("--dev", default=str(SAMPLE.with_name("dev.tsv")))
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--stage1-steps", type=int, default=_STAGE1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        random_backbone(arguments.model).save_pretrained(folder)
        AutoTokenizer.from_pretrained(EMBEDDED_MODEL).save_pretrained(folder)
        files = (folder, arguments.triplets, arguments.dev, arguments.epochs)
        found = {"DiffAug, both stages": ours(*files, arguments.stage1_steps)}
        print(found, flush=True)
        found["sentence-transformers SimCSE"] = theirs(*files)
    seconds = [side["seconds"] for side in found.values()]
    results = {"model": arguments.model, "sides": found, "ours_takes_of_theirs": round(seconds[0] / seconds[1], 3)}
    print(results)
    print(save("whole_run", results, ("torch", "transformers", "sentence-transformers")))


if __name__ == "__main__":
    main()
