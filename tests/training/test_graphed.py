"""The fast way of a GPU against the plain one. Skipped without a GPU; `make test-gpu` runs it for certain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from diffaug import train
from diffaug.config import Recipe, load_recipe
from diffaug.methods import method_class
from diffaug.methods.base import Inputs, Method, Stage
from diffaug.models.backbone import load_backbone
from diffaug.training import loop
from diffaug.training.optim import trainable
from diffaug.training.passes import GraphedPasses, Passes, passes_for
from diffaug.training.precision import Precision

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

DEVICE = torch.device("cuda")
# Nothing random but the order of the data, and enough steps for the loss to fall to a tenth.
CALM = ["stage1.steps=2", "stage2.steps=100", "stage2.dropout=false", "views.dropout=0.0", "data.test=null"]


@pytest.fixture
def curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """The losses of stage 2 of a quickstart run, every ten steps; in the plain way unless ``fast``."""

    def run(fast: bool, *changes: str) -> list[float]:
        chosen: list[Passes] = []

        def choose(*arguments: Any) -> Passes:
            chosen.append(passes_for(*arguments))
            return chosen[-1]

        monkeypatch.setattr(loop, "passes_for", choose)
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        train(load_recipe("quickstart", [*CALM, f"loop.fast={fast}", *changes]), out, quiet=True)
        assert all(isinstance(passes, GraphedPasses) == fast for passes in chosen)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["stage"] == 2 and "loss" in line]

    return run


def test_without_dropout_the_losses_of_100_steps_are_those_of_the_plain_way(
    curves: Callable[..., list[float]],
) -> None:
    exact = torch.tensor(curves(False, "loop.precision=fp32"))
    plain, fast = torch.tensor(curves(False)), torch.tensor(curves(True))
    # Rounding to 16 bits sends every run its own way. What the fast way may differ from 32 bits by is what the plain
    # way does.
    assert float((fast[0] - exact[0]).abs()) < 0.02
    assert float((fast - exact).abs().mean()) < 2 * float((plain - exact).abs().mean())
    assert float((plain[0] - plain[-1]).abs()) > 1.0


def test_parts_of_a_step_add_up(curves: Callable[..., list[float]]) -> None:
    accumulated = ["loop.accumulate=2", "stage2.batch_size=64", "stage2.steps=30"]
    plain, fast = torch.tensor(curves(False, *accumulated)), torch.tensor(curves(True, *accumulated))
    torch.testing.assert_close(fast, plain, rtol=0.1, atol=0.05)


@pytest.fixture
def stage2(make_recipe: Callable[..., Recipe]) -> Callable[..., tuple[Method, Passes]]:
    """A tiny method ready for stage 2, and how its rows go through the encoder."""

    def build(**changes: Any) -> tuple[Method, Passes]:
        recipe = make_recipe(**changes)
        method = method_class(recipe.method).build(recipe, *load_backbone(recipe.model.backbone)).to(DEVICE)
        stage = Stage(2, 1, {}, {"backbone": 1e-3, "views": 1e-3}, 1)
        learning = trainable(method, stage)
        method.begin(stage)
        passes = passes_for(method, stage, Precision("bf16", DEVICE), DEVICE, learning)
        assert isinstance(passes, GraphedPasses)
        return method, passes

    return build


def passed(method: Method, passes: Passes, sentences: list[str]) -> torch.Tensor:
    """The sentences' vectors; their sum's gradient is added to those of the parameters."""
    ids, _ = method.collator.ids(sentences)
    rows = method.collator.rows(ids, [i % 2 for i in range(len(ids))])
    found = passes(passes.prepare(Inputs(rows)).to(DEVICE).rows)
    found.sum().backward()
    passes.backward()
    return found.detach().clone()


def test_recordings_of_other_sizes_do_not_disturb_a_gradient(stage2: Callable[..., tuple[Method, Passes]]) -> None:
    method, passes = stage2(stage2={"dropout": False}, views={"dropout": 0.0})
    sentences = [f"A dog runs through park {i}." for i in range(400)]

    def gradients(count: int) -> dict[str, torch.Tensor]:
        for parameter in method.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        passed(method, passes, sentences[:count])
        return {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}

    # All share one pool of memory: what one leaves behind there must not matter to another, whatever the order.
    counts = [20, 120, 100, 400]
    first = {count: gradients(count) for count in counts}
    for count in [20, 100, 400, 120, 100]:
        again = gradients(count)
        for name, gradient in first[count].items():
            assert float((again[name] - gradient).abs().max()) <= 0.01 * float(gradient.abs().max()), (count, name)


class TestDropout:
    @pytest.fixture
    def step(self, stage2: Callable[..., tuple[Method, Passes]]) -> Callable[[], torch.Tensor]:
        """The vectors of one and the same batch, by recorded graphs."""
        method, passes = stage2()
        return lambda: passed(method, passes, ["A dog runs through the park.", "It sleeps."])

    def test_is_another_in_every_step_and_the_same_from_the_same_seed(self, step: Callable[[], torch.Tensor]) -> None:
        step()  # the recording
        torch.manual_seed(1)
        first, second = step(), step()
        torch.manual_seed(1)
        again = step()
        assert not torch.equal(first, second)
        assert torch.equal(first, again)
