"""Memory and time until the first batch over the number of unlabelled sentences, in memory and on disk.

Each measurement is a new process that does what a training run does with its data before and during the first steps:
it reads and tokenises the sentences, compares them with the sample dev pairs (leakage), and takes 100 batches of 128.
`memory` holds everything in memory, `cold` writes the cache on disk, `warm` finds it there. All three must give the
same token ids. The tokenizer is that of the embedded encoder. `datasets` is what sentence-transformers trains on: the
text as a data set in Arrow files, cold and warm, in random order, tokenised batch by batch.

    python benchmarks/corpus_scale.py --sentences wiki1m.txt.xz --counts 10000 100000 1000000 --save
    python benchmarks/corpus_scale.py --generate --counts 10000 100000 1000000 20000000 --in-memory 1000000 --save

With `--generate`, the sentences are short and made up: each is distinct, with about 10 tokens.

Memory is what the process has allocated (anonymous pages; the largest of samples every 20 ms), less what it had before
the data. Pages of memory-mapped files are not counted: the system shares them between processes and drops them when it
needs memory. The seconds of CPU are those of all threads; on a machine that does other things too, they say more than
the seconds on the clock. If the largest count is below 20 million, the figures of the two largest are extended to it in
a straight line (`estimate`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from common import SAMPLE, save

SIDES = ("memory", "cold", "warm")
THEIRS = ("datasets, cold", "datasets, warm")
ESTIMATE = 20_000_000
BATCHES, BATCH_SIZE = 100, 128
PACKAGES = ("diffaug", "torch", "transformers", "tokenizers", "datasets")


def write_sentences(path: Path, count: int, source: Path | None) -> int:
    """The first ``count`` lines of ``source``, or made-up ones; returns the number of bytes."""
    from diffaug.data.lines import read_lines

    lines = made_up(count) if source is None else (line for _, line in islice(read_lines(source), count))
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path.stat().st_size


def made_up(count: int) -> Iterator[str]:
    """Distinct sentences: the digits of their number as words."""
    words = ["dog", "man", "house", "water", "road", "child", "music", "table", "city", "horse"]
    for i in range(count):
        yield f"the {' '.join(words[int(digit)] for digit in f'{i:08d}')} ."


def allocated() -> float:
    """Megabytes of anonymous pages of this process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024


class Peak:
    """The largest value of `allocated` while the block runs."""

    def __enter__(self) -> Peak:
        self.value, self._done = allocated(), threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._done.wait(0.02):
            self.value = max(self.value, allocated())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def figures(seconds: float, cpu: float, later: float, peak: float, held: float) -> dict[str, float]:
    """What every side reports: the time to the first batch, the time of a later one, and memory."""
    return {
        "start_s": round(seconds, 2),
        "start_cpu_s": round(cpu, 2),
        "batch_ms": round(1000 * later / (BATCHES - 1), 2),
        "peak_mb": round(peak, 1),
        "held_mb": round(held, 1),
    }


def run_side(side: str, text: str) -> None:
    """In the new process."""
    if side in THEIRS:
        run_datasets(text)
        return
    from diffaug.config import DataSettings
    from diffaug.data import stored
    from diffaug.data.collate import Collator
    from diffaug.data.corpus import Corpus
    from diffaug.data.sampling import BatchSampler
    from diffaug.models.backbone import load_tokenizer
    from diffaug.models.config import ModelConfig
    from diffaug.models.io.fetch import EMBEDDED_MODEL

    stored._LARGE = sys.maxsize if side == "memory" else 0
    collator = Collator(load_tokenizer(str(EMBEDDED_MODEL)), ModelConfig(), 512, 32)
    collator.ids(["a sentence"])
    before, start, cpu = allocated(), time.perf_counter(), time.process_time()
    with Peak() as peak:
        corpus = Corpus(DataSettings(unlabelled=text, dev="sample:dev"), collator)
        examples = corpus.sentences()
        corpus.leakage()
        sampler = BatchSampler(examples, BATCH_SIZE, seed=0)
        batches = [sampler.batch(0)]
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        batches += [sampler.batch(i) for i in range(1, BATCHES)]
    later = time.perf_counter() - start - seconds
    result = {
        **figures(seconds, cpu, later, peak.value - before, allocated() - before),
        "distinct": len(examples),
        "token_ids_sha256": hashlib.sha256(repr([batch.examples for batch in batches]).encode()).hexdigest(),
    }
    print(json.dumps(result))


def run_datasets(text: str) -> None:
    """What sentence-transformers' trainer does with its data, in the new process."""
    import datasets  # type: ignore[import-untyped]
    import torch
    from transformers import AutoTokenizer

    from diffaug.models.io.fetch import EMBEDDED_MODEL

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    options = {"padding": True, "truncation": True, "max_length": 32, "return_tensors": "pt"}
    tokenizer(["a sentence"], **options)
    before, start, cpu = allocated(), time.perf_counter(), time.process_time()
    with Peak() as peak:
        rows = datasets.load_dataset("text", data_files=text, split="train", cache_dir=os.environ["DIFFAUG_CACHE"])
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
        tokenizer(rows[order[:BATCH_SIZE]]["text"], **options)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        for batch in range(1, BATCHES):
            start_row = batch * BATCH_SIZE % (len(rows) - BATCH_SIZE)
            tokenizer(rows[order[start_row : start_row + BATCH_SIZE]]["text"], **options)
    later = time.perf_counter() - start - seconds
    print(json.dumps(figures(seconds, cpu, later, peak.value - before, allocated() - before)))


def measure(side: str, text: Path) -> dict[str, Any]:
    """One side in a new process."""
    done = subprocess.run([sys.executable, __file__, "--side", side, str(text)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def estimate(by_count: dict[str, Any]) -> dict[str, Any]:
    """The two largest counts in a straight line to 20 million sentences."""
    few, many = sorted(map(int, by_count))[-2:]
    found: dict[str, Any] = {"sentences": ESTIMATE, "how": f"a straight line through {few:,} and {many:,} sentences"}
    for side in SIDES:
        if side not in by_count[str(many)]:
            continue
        found[side] = {}
        for name in ("start_s", "start_cpu_s", "peak_mb", "held_mb"):
            low, high = by_count[str(few)][side][name], by_count[str(many)][side][name]
            found[side][name] = round(high + (high - low) / (many - few) * (ESTIMATE - many))
    return found


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--sentences", type=Path, default=SAMPLE)
    parser.add_argument("--generate", action="store_true", help="made-up sentences instead of --sentences")
    parser.add_argument("--in-memory", type=int, default=1_000_000, help="the largest count that is held in memory")
    parser.add_argument("--alone", action="store_true", help="without datasets")
    parser.add_argument("--save", action="store_true", help="save the results in benchmarks/results/")
    parser.add_argument("--side", nargs=2, metavar=("SIDE", "TEXT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        run_side(*options.side)
        return
    from diffaug.data.disk_cache import entries

    by_count: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "sentences.txt"
        for count in options.counts:
            os.environ["DIFFAUG_CACHE"] = str(Path(place) / f"cache-{count}")
            size = write_sentences(text, count, None if options.generate else options.sentences)
            found: dict[str, Any] = {
                side: measure(side, text) for side in SIDES if side != "memory" or count <= options.in_memory
            }
            if len({figures["token_ids_sha256"] for figures in found.values()}) != 1:
                raise SystemExit(f"the batches differ: {found}")
            if not options.alone:
                found |= {side: measure(side, text) for side in THEIRS}
            by_count[str(count)] = {
                **found,
                "text_mb": round(size / 1e6, 1),
                "cache_mb": {entry.folder.parent.name.split("-")[0]: round(entry.size / 1e6, 1) for entry in entries()},
            }
            for side, figures in found.items():
                print(
                    f"{count:9,d} {side:14s} start {figures['start_s']:8.2f} s "
                    f"({figures['start_cpu_s']:.2f} s of CPU)  "
                    f"peak {figures['peak_mb']:8,.1f} MB  held {figures['held_mb']:8,.1f} MB  "
                    f"{figures['batch_ms']:.2f} ms a batch",
                    flush=True,
                )
    results = {"generated": options.generate, "load_average": os.getloadavg(), "by_count": by_count}
    if len(by_count) > 1 and max(options.counts) < ESTIMATE:
        results["estimate"] = estimate(by_count)
        print(json.dumps(results["estimate"], indent=1))
    if options.save:
        print("saved in", save("corpus_scale", results, PACKAGES).name)


if __name__ == "__main__":
    main()
