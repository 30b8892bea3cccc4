"""Memory, speed and disk space over the number of sentences, beside sentence-transformers in the same run.

Each measurement is a new process. Encoding: `Embedder.encode_files` to a .npy file, shard by shard, in one process and
with two workers; sentence-transformers' `encode` with `numpy.save`, in one process and with a pool of two. All read the
same model and the same sentences, which are distinct. `read` is the part of the main process alone. With
`--index`, also: vectors as Parquet of every precision, the index, and 100 queries one after the other, in the index and
with sentence-transformers' `semantic_search` in the .npy file, without the time to load it.

Peak memory is that of the main process and of its largest worker, if there are workers.

    python benchmarks/encode_scale.py                       # the embedded encoder, 10,000 to 100,000 sentences
    python benchmarks/encode_scale.py --layers 1 --counts 10000 100000 --index --save
    python benchmarks/encode_scale.py --counts 100000 --alone --only "Parquet, float32" "index build" "index search" \\
        --index --sentences wiki1m.txt.xz --name index_scale --save  # the recall of the index
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
from functools import partial
from pathlib import Path
from typing import Any

from common import SAMPLE, read_sentences, save

os.environ.setdefault("HF_HUB_OFFLINE", "1")
THEIRS = "sentence-transformers"
# The embedded encoder is stored in float16, in which sentence-transformers would compute, slowly on a CPU.
Times = dict[str, float]
FLOAT32: dict[str, Any] = {"model_kwargs": {"dtype": "float32"}}


def write_sentences(path: Path, count: int, seed: int, source: Path) -> None:
    """``count`` distinct sentences of ``source``; if it has fewer, in turn, with a number before them."""
    sentences = read_sentences(source, count, seed, first=max(200_000, 2 * count))
    with path.open("w", encoding="utf-8") as file:
        if len(sentences) == count:
            file.writelines(f"{sentence}\n" for sentence in sentences)
        else:
            file.writelines(f"{i} {sentences[i % len(sentences)]}\n" for i in range(count))


def stopwatch() -> Callable[[], Times]:
    """A function that returns the seconds since then: on the clock, and of CPU, finished child processes included."""

    def now() -> Times:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return {"seconds": time.perf_counter(), "cpu_s": sum(each.ru_utime + each.ru_stime for each in used)}

    start = now()
    return lambda: {name: round(value - start[name], 4) for name, value in now().items()}


def ours(model: str, text: Path, out: Path, **options: Any) -> Times:
    """Encode with this library."""
    from diffaug import Embedder

    embedder = Embedder.from_pretrained(model, device="cpu")
    stop = stopwatch()
    embedder.encode_files(text, out, show_progress=False, **options)
    return stop()


def read(model: str, text: Path, out: Path) -> Times:
    """What the main process of `encode_files` does with its input: read it and hash its shards."""
    from diffaug.data.documents import DocumentReader
    from diffaug.inference.encode_files import SHARD_SIZE

    stop = stopwatch()
    for documents in DocumentReader(text).blocks(SHARD_SIZE):
        documents.digest()
    return stop()


def theirs(model: str, text: Path, out: Path, processes: int = 0) -> Times:
    """Encode with sentence-transformers; as in `ours`, the time to start its processes counts."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(model, device="cpu", **FLOAT32)
    stop = stopwatch()
    sentences = text.read_text("utf-8").splitlines()
    pool = loaded.start_multi_process_pool(["cpu"] * processes) if processes else None
    np.save(out, loaded.encode(sentences, normalize_embeddings=True, pool=pool))
    if pool is not None:
        loaded.stop_multi_process_pool(pool)
    return stop()


def index_build(model: str, text: Path, out: Path) -> Times:
    """Build an index from the vectors in the folder ``text``, and print its quality."""
    from diffaug import Index

    stop = stopwatch()
    index = Index.build(out, text)
    times = stop()
    print(index.quality, file=sys.stderr)
    return times


def queries() -> list[str]:
    """A hundred queries."""
    return [f"sentence {i}" for i in range(QUERIES)]


def index_search(model: str, text: Path, out: Path) -> Times:
    """The queries in the index ``out``, one after the other, without the time to encode them."""
    from diffaug import Embedder, Index

    embedder, index = Embedder.from_pretrained(model, device="cpu"), Index.open(out)
    vectors = embedder.encode(queries())
    stop = stopwatch()
    for vector in vectors:
        index.search(vector[None], 10)
    return stop()


def semantic_search(model: str, text: Path, out: Path) -> Times:
    """The same with sentence-transformers in the vectors of the .npy file ``out``, which are in memory."""
    import numpy as np
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import semantic_search as search

    vectors = SentenceTransformer(model, device="cpu", **FLOAT32).encode(queries(), normalize_embeddings=True)
    corpus = np.load(out)
    stop = stopwatch()
    for vector in vectors:
        search(vector[None], corpus, top_k=10)
    return stop()


TEXT = "sentences.txt"
WORKERS = 2
QUERIES = 100
SIDES: dict[str, Callable[[str, Path, Path], Times]] = {
    "read": read,
    "ours": ours,
    THEIRS: theirs,
    "ours, 2 workers": partial(ours, workers=WORKERS),
    f"{THEIRS}, 2 processes": partial(theirs, processes=WORKERS),
    **{f"Parquet, {kind}": partial(ours, precision=kind) for kind in ("float32", "float16", "int8", "binary")},
    "index build": index_build,
    "index search": index_search,
    f"{THEIRS}, semantic_search": semantic_search,
}


WITH_INDEX = [side for side in SIDES if side.startswith(("Parquet", "index")) or side.endswith("search")]


def places(side: str, folder: Path, count: int) -> tuple[Path, Path]:
    """What a side reads, and what it writes or searches."""
    if side.startswith("index"):
        return folder / f"Parquet, float32 {count}", folder / f"index {count}"
    written = THEIRS if side.endswith("semantic_search") else side
    return folder / TEXT, folder / f"{written} {count}{'' if side.startswith('Parquet') else '.npy'}"


def measure(side: str, model: str, text: Path, out: Path) -> dict[str, Any]:
    """Seconds, peak memory and size of the output of one side, in a new process."""
    command = [sys.executable, __file__, "--side", side, model, str(text), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    said = done.stderr.strip().splitlines()
    files = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
    return {
        **json.loads(done.stdout.splitlines()[-1]),
        "disk_mb": round(sum(path.stat().st_size for path in files) / 1e6, 2),
        **({"said": said[-1]} if side == "index build" and said else {}),
    }


def run_side(side: str, model: str, text: Path, out: Path) -> None:
    """In the new process: seconds without start-up, and peak memory with it."""
    times = SIDES[side](model, text, out)
    whose = [resource.RUSAGE_SELF, *([resource.RUSAGE_CHILDREN] if f"{WORKERS} " in side else [])]
    peak, *child = (round(resource.getrusage(who).ru_maxrss / 1024) for who in whose)  # Linux: kilobytes
    print(json.dumps({**times, "peak_mb": peak, **({"worker_mb": child[0]} if child else {})}))


def main() -> None:
    """Measure, print and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 30_000, 100_000])
    parser.add_argument("--sentences", type=Path, default=SAMPLE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, help="random weights with this many layers instead of the encoder's own")
    parser.add_argument("--pruned", type=int, help="only this many of the encoder's own layers")
    parser.add_argument("--alone", action="store_true", help="without sentence-transformers")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE", help="these sides")
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
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = str(EMBEDDED_MODEL)  # a plain backbone: both sides use mean pooling
        if options.layers is not None:
            model = random_model(folder / "model", model, options.layers)
        elif options.pruned is not None:
            model = pruned_model(folder / "model", model, options.pruned)
        for count in options.counts:
            write_sentences(folder / TEXT, count, options.seed, options.sentences)
            sides = [side for side in options.only if not (options.alone and side.startswith(THEIRS))]
            if not options.index:
                sides = [side for side in sides if side not in WITH_INDEX]
            found = {side: measure(side, model, *places(side, folder, count)) for side in sides}
            results[str(count)] = found
            for side, figures in found.items():
                done = QUERIES if side.endswith("search") else count
                rate = f"{done / figures['seconds']:9,.0f} a second ({figures['cpu_s']:.1f} s of CPU)"
                memory = f"{figures['peak_mb']:7,d} MB" + (
                    f" + {figures['worker_mb']:,d}" if "worker_mb" in figures else ""
                )
                print(
                    f"{count:9,d} {side:40s} {rate} {memory}  {figures['disk_mb']:9,.1f} MB of disk "
                    f"{figures.get('said', '')}",
                    flush=True,
                )
    if options.save:
        record = {
            "model": "embedded",
            "layers": options.layers,
            "pruned": options.pruned,
            "load_average_before": load,
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


def pruned_model(folder: Path, like: str, layers: int) -> str:
    """The first layers of a model."""
    from transformers import AutoModel, AutoTokenizer

    AutoModel.from_pretrained(like, num_hidden_layers=layers).save_pretrained(folder)
    AutoTokenizer.from_pretrained(like).save_pretrained(folder)
    return str(folder)


if __name__ == "__main__":
    main()
