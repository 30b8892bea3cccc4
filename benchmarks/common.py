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


def read_sentences(path: Path, count: int, seed: int) -> list[str]:
    """``count`` distinct lines of a text file (plain, .gz or .xz), drawn at random from its first 200,000."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
    with openers.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
        lines = list(dict.fromkeys(line.strip() for line in islice(file, 200_000) if line.strip()))
    return random.Random(seed).sample(lines, min(count, len(lines)))


def machine(packages: tuple[str, ...]) -> dict[str, Any]:
    """The hardware and the versions that a figure depends on."""
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next(
            (line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line), cpu
        )
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


def short_lines(value: Any, indent: int = 0, before: int = 0, width: int = 140) -> str:
    """JSON with as much on a line as fits: large results stay small, and a difference shows where it is.

    Args:
        value: plain values.
        indent: spaces in front of its last line.
        before: what stands in front of its first line beside them.
        width: of a line.
    """
    whole = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, (dict, list)) or indent + before + len(whole) <= width:
        return whole
    if isinstance(value, dict):
        (opening, closing), items = "{}", [(f"{json.dumps(key, ensure_ascii=False)}: ", value[key]) for key in value]
    else:
        (opening, closing), items = "[]", [("", one) for one in value]
    lines = [" " * (indent + 1) + key + short_lines(one, indent + 1, len(key), width) for key, one in items]
    return opening + "\n" + ",\n".join(lines) + "\n" + " " * indent + closing


def _public(argument: str) -> str:
    """A path is named by its last part: where a file lay on one machine means nothing on another."""
    return Path(argument).name if os.sep in argument else argument
