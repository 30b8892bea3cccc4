"""A step on pairs without hard negatives in other ways that must not change it: as `test_equivalence` for triplets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file
from test_equivalence import _Build, _process, assert_same, gradients, plain

from diffaug.config import Recipe
from diffaug.training.execution.cpu import encode_by_length
from diffaug.training.execution.gradient_cache import GradientCache


@pytest.fixture
def build(make_recipe: Callable[..., Recipe], data_files: dict[str, str], tmp_path: Path) -> _Build:
    rows = [line.rsplit(",", 1)[0] for line in Path(data_files["nli"]).read_text("utf-8").splitlines()]
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(rows) + "\n", "utf-8")
    values = {**make_recipe("sup", data={"nli": str(path)}).to_dict(), "stage1": None}
    # `_Build` counts the stages of the recipe, of which there is one.
    return _Build(values, 1)


def test_two_processes_equal_one_on_the_joined_batch(build: _Build, tmp_path: Path) -> None:
    runs = [("pairs", build, 1)]
    mp.start_processes(_process, args=(2, str(tmp_path), runs), nprocs=2, start_method="fork")
    method, stage, inputs = build(0, 1)
    assert inputs.contrastive.columns == 2
    loss, expected = plain(method, stage, inputs)
    for rank in (0, 1):
        found = load_file(tmp_path / f"pairs-1-{rank}.safetensors")
        torch.testing.assert_close(found.pop("loss")[0], loss)  # every process has the loss of the whole batch
        assert_same(expected, found)


@pytest.mark.parametrize("way", ["gradient cache", "by length"])
def test_parts_give_the_same_step(way: str, build: _Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffaug.training.execution.cpu._CHUNK_TOKENS", 60)
    method, stage, inputs = build(0, 1)
    loss, expected = plain(method, stage, inputs)
    method.zero_grad()
    calls: list[int] = []

    def counted(rows: Any) -> torch.Tensor:
        calls.append(len(rows))
        vectors: torch.Tensor = method.encoder.represent(rows)
        return vectors

    cache = GradientCache(counted, 5, nullcontext)
    in_parts = method.losses(stage, inputs, cache if way == "gradient cache" else encode_by_length(counted))["loss"]
    in_parts.backward()
    if way == "gradient cache":
        cache.backward()
    assert len(calls) > 2
    torch.testing.assert_close(in_parts.detach(), loss)
    assert_same(expected, gradients(method))
