"""One cell: train, score, write down."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from diffaug.config import load_recipe
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.files import atomic_file
from diffaug.reproduce.cell import Cell, Result
from diffaug.reproduce.grid import DEV, FAILURE, SIMILARITIES, write_json, write_result
from diffaug.reproduce.score import StsTasks
from diffaug.training.run import train
from diffaug.training.run_cache import RunCache

# What earlier, interrupted attempts at a cell took.
_SPENT = "spent.json"
_GIB = 2**30


def carry_out(
    cell: Cell,
    folder: Path,
    tasks: StsTasks,
    kept: RunCache | None = None,
    *,
    record: Callable[[Path], None] | None = None,
    keep_model: bool = True,
) -> Result:
    """Train a cell's model, or go on where an earlier attempt stopped, and score it.

    Args:
        cell: what to run.
        folder: of its run.
        tasks: what to score it on.
        kept: what earlier cells of this process have loaded.
        record: what else to measure, given the folder; once it has been called the cell may still have to be scored.
        keep_model: leave the model there when it is scored.

    Returns:
        what is also in `result.json`, which is written last.

    Raises:
        TrainingInterrupted: the process was asked to stop; the run's state is saved.
        DiffaugError: anything the user can put right.
    """
    (folder / FAILURE).unlink(missing_ok=True)
    if not (folder / "summary.json").exists():
        with _measured(folder):
            train(load_recipe(cell.recipe, cell.changes), folder, resume=True, quiet=True, cache=kept)
    summary = _read(folder / "summary.json")
    if "dev" not in summary["scores"]:
        raise DiffaugError(f"{cell.name} has no dev pairs, which choose its row's setting; set data.dev")
    if record is not None:
        record(folder)
    scores, similarities = tasks.score(Embedder.from_pretrained(folder / "best"))
    with atomic_file(folder / SIMILARITIES) as temporary:
        np.savez_compressed(temporary, **similarities)  # type: ignore[arg-type]
    # A process that ended right after training has not written what it took; of its memory nothing is known.
    spent = _read(folder / _SPENT) if (folder / _SPENT).exists() else {"seconds": summary["seconds"], "gib": 0.0}
    result = Result(
        scores={DEV: summary["scores"]["dev"], **scores},
        seconds=spent["seconds"],
        gib=spent["gib"],
        steps=_steps(folder / "metrics.jsonl"),
        best_at=summary["best_at"],
        stage1_end=summary["stage1_end"],
        machine=_machine(),
    )
    write_result(folder, result)
    if not keep_model:
        # Out of the way first: a model that is half removed would still look like one.
        shutil.rmtree((folder / "best").rename(folder / ".best"))
    return result


@contextmanager
def _measured(folder: Path) -> Iterator[None]:
    """Add the time and memory of the block to what earlier attempts took, however it ends."""
    if torch.cuda.is_available():
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats()
    start = time.monotonic()
    try:
        yield
    finally:
        # A run that never began leaves no file that would make its folder look like something else's.
        if (folder / "recipe.yaml").exists():
            before = _read(folder / _SPENT) if (folder / _SPENT).exists() else {"seconds": 0.0, "gib": 0.0}
            seconds = before["seconds"] + time.monotonic() - start
            write_json(folder / _SPENT, {"seconds": round(seconds, 2), "gib": max(before["gib"], _gib())})


def _gib() -> float:
    """The most memory at one time: the GPU's since `_measured` began, else this process's since it began."""
    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / _GIB, 3)
    try:
        import resource
    except ImportError:  # not a Unix system
        return 0.0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most * (1 if sys.platform == "darwin" else 1024) / _GIB, 3)


def _steps(metrics: Path) -> dict[str, int]:
    """How many steps each stage took."""
    steps: dict[str, int] = {}
    with metrics.open(encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["stage"]:  # a model that is not trained is scored at stage 0
                steps[str(entry["stage"])] = max(entry["step"], steps.get(str(entry["stage"]), 0))
    return steps


def _machine() -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DiffaugError(
            f"{path} is missing or damaged ({error}); remove the cell's folder to run it anew"
        ) from error
