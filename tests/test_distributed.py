"""What processes tell each other; `tests/training/test_equivalence.py` has two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from diffaug import train
from diffaug.config import Recipe
from diffaug.distributed import any_process
from diffaug.training import loop

CPU = torch.device("cpu")


def test_one_process_keeps_its_flags() -> None:
    assert any_process([True, False], CPU) == [True, False]


def test_a_step_asks_the_other_processes_once(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether to stop and whether to save in one question; only steps that log or evaluate ask more."""
    asked = [0]  # by step; what comes before a stage's first step counts with the step before

    def counted(flags: Sequence[bool], device: torch.device) -> list[bool]:
        asked[-1] += 1
        return any_process(flags, device)

    step = loop.Loop._step

    def started(self: loop.Loop, *arguments: Any) -> Any:
        asked.append(0)
        return step(self, *arguments)

    monkeypatch.setattr(loop, "any_process", counted)
    monkeypatch.setattr(loop.Loop, "_step", started)
    train(make_recipe("sup", loop={"eval_every": 100}), tmp_path / "run", quiet=True)
    assert asked == [1, 1, 1, 1, 3 + 1, 1, 1, 1, 3]
