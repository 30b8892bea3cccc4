"""Memory and speed of encoding over the number of sentences, beside sentence-transformers in the same run.

Each measurement is a new process, which encodes a file and stores the vectors: `Embedder.encode_files` to a .npy file,
shard by shard, and sentence-transformers' `encode` with `numpy.save`. Both read the same model and the same sentences;
every sentence of the file is distinct. With `--index`, the index and a search in it are measured too.

    python benchmarks/encode_scale.py                       # the embedded encoder, 10,000 to 100,000 sentences
    python benchmarks/encode_scale.py --counts 10000 100000 1000000 --save
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import SAMPLE, read_sentences, save

os.environ.setdefault("HF_HUB_OFFLINE", "1")
THEIRS = "sentence-transformers"


def write_sentences(path: Path, count: int, seed: int, source: Path) -> None:
    """``count`` distinct sentences: those of ``source`` in turn, with a number before them."""
    sentences = read_sentences(source, 200_000, seed)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{i} {sentences[i % len(sentences)]}\n" for i in range(count))


def ours(model: str, text: Path, out: Path) -> float:
    """Encode with this library."""
    from diffaug import Embedder

    embedder = Embedder.from_pretrained(model, device="cpu")
    start = time.perf_counter()
    embedder.encode_files(text, out, show_progress=False)
    return time.perf_counter() - start


def theirs(model: str, text: Path, out: Path) -> float:
    """Encode with sentence-transformers."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(model, device="cpu")
    start = time.perf_counter()
    np.save(out, loaded.encode(text.read_text("utf-8").splitlines(), normalize_embeddings=True))
    return time.perf_counter() - start


def index_build(model: str, text: Path, out: Path) -> float:
    """Build an index from the vectors in the folder ``text``, and print the recall."""
    from diffaug import Index

    start = time.perf_counter()
    index = Index.build(out, text)
    seconds = time.perf_counter() - start
    print(index.recall or "search is exact", file=sys.stderr)
    return seconds


def index_search(model: str, text: Path, out: Path) -> float:
    """A hundred queries in the index ``out``, one after the other, without the time to encode them."""
    from diffaug import Embedder, Index

    embedder, index = Embedder.from_pretrained(model, device="cpu"), Index.open(out)
    vectors = embedder.encode([f"sentence {i}" for i in range(100)])
    start = time.perf_counter()
    for vector in vectors:
        index.search(vector[None], 10)
    return time.perf_counter() - start


SIDES: dict[str, Callable[[str, Path, Path], float]] = {
    "ours": ours,
    THEIRS: theirs,
    "index build": index_build,
    "index search": index_search,
}


def measure(side: str, model: str, text: Path, out: Path) -> dict[str, Any]:
    """Seconds and peak memory of one side, in a new process."""
    command = [sys.executable, __file__, "--side", side, model, str(text), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    said = done.stderr.strip().splitlines()
    return {**json.loads(done.stdout.splitlines()[-1]), **({"said": said[-1]} if "index" in side and said else {})}


def run_side(side: str, model: str, text: Path, out: Path) -> None:
    """In the new process: seconds without start-up, and peak memory with it."""
    seconds = SIDES[side](model, text, out)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux: kilobytes
    print(json.dumps({"seconds": round(seconds, 2), "peak_mb": round(peak)}))


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 30_000, 100_000])
    parser.add_argument("--sentences", type=Path, default=SAMPLE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, help="random weights with this many layers instead of the encoder's own")
    parser.add_argument("--alone", action="store_true", help="without sentence-transformers")
    parser.add_argument("--name", default="encode_scale", help="of the file with the results")
    parser.add_argument("--index", action="store_true", help="measure the index and a search in it, too")
    parser.add_argument("--save", action="store_true", help="keep the results in benchmarks/results/")
    parser.add_argument("--side", nargs=4, metavar=("SIDE", "MODEL", "TEXT", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side, model, text, out = options.side
        run_side(side, model, Path(text), Path(out))
        return
    from diffaug.models.io.fetch import EMBEDDED_MODEL

    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = str(EMBEDDED_MODEL)  # a plain backbone: both sides use mean pooling
        if options.layers is not None:
            model = random_model(folder / "model", model, options.layers)
        for count in options.counts:
            text = folder / "sentences.txt"
            write_sentences(text, count, options.seed, options.sentences)
            sides = ("ours",) if options.alone else ("ours", THEIRS)
            found = {side: measure(side, model, text, folder / f"{side}.npy") for side in sides}
            if options.index:
                encoded, index = folder / f"vectors-{count}", folder / f"index-{count}"
                found["encode to Parquet"] = measure("ours", model, text, encoded)
                for side in ("index build", "index search"):
                    found[side] = measure(side, model, encoded, index)
            results[str(count)] = found
            for side, figures in found.items():
                done = 100 if side == "index search" else count
                rate = f"{done / figures['seconds']:9,.0f} a second"
                print(
                    f"{count:9,d} {side:22s} {rate} {figures['peak_mb']:7,d} MB  {figures.get('said', '')}", flush=True
                )
    if options.save:
        record = {
            "model": "embedded",
            "layers": options.layers,
            "load_average": os.getloadavg(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "seed": options.seed,
            "by_count": results,
        }
        packages = (
            "diffaug",
            "torch",
            "transformers",
            "sentence-transformers",
            *(["lancedb"] if options.index else []),
        )
        print("kept in", save(options.name, record, packages).name)


def random_model(folder: Path, like: str, layers: int) -> str:
    """A model of the same shape and tokenizer, with random weights and another number of layers."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.from_pretrained(like, num_hidden_layers=layers)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(like).save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    main()
