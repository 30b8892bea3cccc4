"""`diffaug tune` in several processes on one folder, one of which is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diffaug.config import Recipe


def _start(recipe: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "diffaug", "tune", "-r", str(recipe), "-o", str(out), "-n", "6", "--no-prune"]
    return subprocess.Popen([*command, "--search", "stage2.learning_rate=log:1e-5..1e-3", *options], env=os.environ)


def _trials(out: Path) -> list[Any]:
    result = json.loads((out / "tune.json").read_text("utf-8"))
    return [(trial["changes"], round(trial["score"], 3)) for trial in result["trials"]]


def test_processes_share_a_search_and_one_is_killed(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    settings = make_recipe(data={"test": None}, stage2={"steps": 40})
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(settings.to_yaml(), "utf-8")
    alone, shared, workers = (tmp_path / name for name in ("alone", "shared", "workers"))
    assert _start(recipe, alone).wait() == 0

    processes = [_start(recipe, shared), _start(recipe, shared)]
    while len(list(shared.glob("trials/*/metrics.jsonl"))) < 3:
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)
    processes[0].kill()
    assert processes[0].wait() < 0
    assert processes[1].wait() == 0
    assert _trials(shared) == _trials(alone)

    assert _start(recipe, workers, "--workers", "2").wait() == 0
    assert _trials(workers) == _trials(alone)
