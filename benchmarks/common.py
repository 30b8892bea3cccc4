"""What every benchmark shares: real sentences, the machine's description, and results kept with their command."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import platform
import random
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SAMPLE = Path(__file__).parent.parent / "src" / "diffaug" / "assets" / "sample" / "sentences.txt"


def read_sentences(path: Path, count: int, seed: int, first: int = 200_000) -> list[str]:
    """``count`` distinct lines of a text file (plain, .gz or .xz), drawn at random from its ``first`` ones."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
    with openers.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
        lines = list(dict.fromkeys(line.strip() for line in islice(file, first) if line.strip()))
    return random.Random(seed).sample(lines, min(count, len(lines)))


def machine(packages: tuple[str, ...]) -> dict[str, Any]:
    """The hardware and the versions that a figure depends on."""
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        # A virtual machine may hide the name, but not the family, which tells generations apart.
        lines = [[part.strip() for part in line.partition(":")[::2]] for line in info.read_text().splitlines()]
        first = dict(reversed([pair for pair in lines if pair[0] in ("model name", "cpu family")]))
        cpu = f"{first.get('model name', cpu)}, family {first['cpu family']}" if "cpu family" in first else cpu
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpu": gpu,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def save(name: str, results: dict[str, Any], packages: tuple[str, ...]) -> Path:
    """Write ``results`` with the command and the machine they came from."""
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{name}.json"
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(_public, sys.argv[1:])])
    record = {"command": command, "machine": machine(packages), **results}
    target.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    return target


def _public(argument: str) -> str:
    """A path is named by its last part: where a file lay on one machine means nothing on another."""
    return Path(argument).name if os.sep in argument else argument
