"""DiffCSE's step in other ways that must not change it: several processes, the gradient cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file
from test_equivalence import _Build, _process, assert_same, gradients, plain
from torch import Tensor

import diffaug.methods.diffcse as module
from diffaug.config import load_recipe
from diffaug.training.execution.gradient_cache import GradientCache


def every_third(candidates: Tensor, rate: float) -> Tensor:
    """Masks that do not depend on how the rows are shared out."""
    return candidates & (torch.arange(candidates.shape[1]) % 3 == 1)


@pytest.fixture
def build(
    tiny_bert: Path,
    tiny_masked_lm: Callable[[str], Path],
    data_files: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., _Build]:
    monkeypatch.setattr(module, "choose_masked", every_third)
    changes = [f"model.backbone={tiny_bert}", f"replaced.generator={tiny_masked_lm('bert')}", "stage2.batch_size=8"]
    changes += [f"data.unlabelled={data_files['unlabelled']}", "replaced.weight=2"]
    # `_Build` counts the stages of the recipe, of which there is one.
    return lambda *more: _Build(load_recipe("diffcse", [*changes, *more]).to_dict(), 1)


def test_two_processes_equal_one_on_the_joined_batch(build: Callable[..., _Build], tmp_path: Path) -> None:
    # Forked, they have the libraries loaded, and the masks of this process.
    runs = [("diffcse", build(), 1)]
    mp.start_processes(_process, args=(2, str(tmp_path), runs), nprocs=2, start_method="fork")
    method, stage, inputs = build()(0, 1)
    tokens = [int(build()(rank, 2)[2].tokens.attention_mask.sum()) for rank in (0, 1)]
    assert tokens[0] != tokens[1], "vacuous: the mean of the processes' means would do"
    loss, expected = plain(method, stage, inputs)
    assert {name.split(".")[0] for name in expected} == {"encoder", "projection", "discriminator"}
    for rank in (0, 1):
        found = load_file(tmp_path / f"diffcse-1-{rank}.safetensors")
        torch.testing.assert_close(found.pop("loss")[0], loss)  # every process has the loss of the whole batch
        assert_same(expected, found)


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_gradient_cache_equals_the_plain_step(build: Callable[..., _Build], chunk: int) -> None:
    loss, expected = plain(*build()(0, 1))
    method, stage, inputs = build(f"stage2.gradient_cache={chunk}")(0, 1)
    widest: list[int] = []
    method.discriminator.register_forward_pre_hook(lambda _, given: widest.append(len(given[0])))
    cache = GradientCache(method.represent, chunk, nullcontext)
    cached_loss = method.losses(stage, inputs, cache)["loss"]
    cached_loss.backward()
    cache.backward()
    assert max(widest) == min(chunk, 16)
    torch.testing.assert_close(cached_loss.detach(), loss)
    assert_same(expected, gradients(method))
