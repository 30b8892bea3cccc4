"""Ways to compute a step that must not change it: the gradient cache, rows by length, several processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffaug.training.execution.cpu import encode_by_length, encode_packed
from diffaug.training.execution.executor import can_pack
from diffaug.training.execution.gradient_cache import GradientCache

SETTINGS = ["sup", "semi", "semi-aux"]


def gradients(method: Any) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}


def plain(method: Any, stage: Any, inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
    method.zero_grad()
    loss = method.losses(stage, inputs, method.encoder.represent)["loss"]
    loss.backward()
    return loss.detach(), gradients(method)


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in first.values()), "vacuous: nothing has a gradient"
    for name in first:
        torch.testing.assert_close(
            first[name], second[name], rtol=1e-3, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_gradient_cache_equals_the_plain_step(tiny_run: Callable[..., Any], setting: str, chunk: int) -> None:
    method, inputs = tiny_run(setting)
    stage, collated = inputs(2)
    loss, expected = plain(method, stage, collated)
    method.zero_grad()
    cache = GradientCache(method.encoder.represent, chunk, nullcontext)
    cached_loss = method.losses(stage, collated, cache)["loss"]
    cached_loss.backward()
    cache.backward()
    torch.testing.assert_close(cached_loss.detach(), loss)
    assert_same(expected, gradients(method))


def test_gradient_cache_repeats_the_dropout_of_the_first_pass(tiny_run: Callable[..., Any]) -> None:
    method, inputs = tiny_run("sup")
    method.train()
    stage, collated = inputs(2)
    seen: list[Tensor] = []

    def watched(rows: Any) -> Tensor:
        vectors = method.encoder.represent(rows)
        seen.append(vectors.detach().clone())
        return vectors

    torch.manual_seed(3)
    cache = GradientCache(watched, 7, nullcontext)
    method.losses(stage, collated, cache)["loss"].backward()
    after = torch.get_rng_state()
    cache.backward()
    assert torch.equal(after, torch.get_rng_state()), "the second pass must not use up random numbers"
    half = len(seen) // 2
    assert half > 1
    for first, again in zip(seen[:half], seen[half:], strict=True):
        assert torch.equal(first, again)
    assert not torch.equal(seen[0], method.encoder.represent(collated.tokens.slice(0, 7))), "dropout is off"


class FakeDevice:
    """A device with random numbers of its own, like an Apple GPU: a count of how many were drawn."""

    def __init__(self) -> None:
        self.drawn = torch.tensor(0)

    def get_rng_state(self, device: torch.device) -> Tensor:
        return self.drawn.clone()

    def set_rng_state(self, state: Tensor, device: torch.device) -> None:
        self.drawn = state.clone()

    def draw(self) -> int:
        self.drawn += 1
        return int(self.drawn)


@pytest.mark.parametrize("kind", ["mps", "cuda", "xpu"])
def test_gradient_cache_repeats_the_random_numbers_of_any_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setattr(torch, "get_device_module", lambda found: {torch.device(kind): device}[found])

    class Rows:
        """Three numbers on that device."""

        input_ids = SimpleNamespace(device=torch.device(kind))

        def __len__(self) -> int:
            return 3

        def slice(self, start: int, stop: int) -> int:
            return min(stop, 3) - start

    weight, seen = torch.ones(1, requires_grad=True), []

    def encode(count: int) -> Tensor:
        seen.append(device.draw())
        return weight * seen[-1] * torch.ones(count, 1)

    cache = GradientCache(encode, 2, nullcontext)  # type: ignore[arg-type]
    cache(Rows()).sum().backward()  # type: ignore[arg-type]
    cache.backward()
    assert seen == [1, 2, 1, 2]
    assert int(device.drawn) == 2, "the second pass must not use up random numbers"
    assert float(weight.grad or 0) == 1 * 2 + 2 * 1


def test_rows_by_length_give_the_same_step(tiny_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffaug.training.execution.cpu._CHUNK_TOKENS", 100)
    method, inputs = tiny_run("semi-aux")
    stage, collated = inputs(2)
    assert collated.tokens.attention_mask is not None
    loss, expected = plain(method, stage, collated)
    calls: list[int] = []

    def counted(rows: Any) -> Tensor:
        calls.append(rows.input_ids.numel())
        return method.encoder.represent(rows)

    method.zero_grad()
    by_length_loss = method.losses(stage, collated, encode_by_length(counted))["loss"]
    by_length_loss.backward()
    assert len(calls) > 3
    assert max(calls) <= 100
    assert sum(calls) < collated.tokens.input_ids.numel()
    torch.testing.assert_close(by_length_loss.detach(), loss)
    assert_same(expected, gradients(method))


@pytest.mark.parametrize("setting", ["sup", "semi-aux"])
def test_rows_end_to_end_give_the_same_step(
    setting: str, tiny_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffaug.models.padded_groups._GROUP_TOKENS", 100)
    method, inputs = tiny_run(setting)
    for number in (1, 2):
        stage, collated = inputs(number)
        loss, expected = plain(method, stage, collated)
        assert can_pack(method)
        method.zero_grad()
        found = method.losses(stage, collated, encode_packed(method))["loss"]
        found.backward()
        torch.testing.assert_close(found.detach(), loss)
        assert_same(expected, gradients(method))


def _process(rank: int, world: int, out: str, runs: list[tuple[str, Any, int]]) -> None:
    """One of two processes: its share of each batch, gradients averaged."""
    torch.set_num_threads(1)
    # They meet at a file: a port that is free now may be another test's in a moment.
    torch.distributed.init_process_group("gloo", f"file://{out}/meeting", rank=rank, world_size=world)
    from diffaug.distributed import any_process, average_gradients

    messages: list[int] = []
    send = torch.distributed.all_reduce
    torch.distributed.all_reduce = lambda *given: messages.append(1) or send(*given)  # type: ignore[assignment]
    heard = any_process([rank == 0, False, rank == 1], torch.device("cpu"))
    assert (heard, len(messages)) == ([True, False, True], 1), "all hear the same, in one message"
    for setting, build, number in runs:
        method, stage, inputs = build(rank, world)
        loss, _ = plain(method, stage, inputs)
        average_gradients(method.parameters())
        save_file({**gradients(method), "loss": loss.reshape(1)}, f"{out}/{setting}-{number}-{rank}.safetensors")
    torch.distributed.destroy_process_group()


class _Build:
    """Makes the method and its share of a batch inside a process; must travel there by pickle, so no closures."""

    def __init__(self, values: dict[str, Any], number: int) -> None:
        self.values, self.number = values, number

    def __call__(self, rank: int, world: int) -> Any:
        from diffaug.config import recipe_from_dict
        from diffaug.data.corpus import Corpus
        from diffaug.data.sampling import BatchSampler
        from diffaug.methods import method_class
        from diffaug.models.backbone import load_backbone

        recipe = recipe_from_dict(self.values)
        torch.manual_seed(0)
        method = method_class(recipe.method).build(recipe, *load_backbone(recipe.model.backbone)).eval()
        stage = method.stages(Corpus(recipe.data, method.collator))[self.number - 1]
        streams = {name: BatchSampler(e, size, 0, rank, world) for name, (e, size) in stage.streams.items()}
        return method, stage, method.collate(stage, {name: s.batch(0) for name, s in streams.items()})


def test_two_processes_equal_one_on_the_joined_batch(make_recipe: Callable[..., Any], tmp_path: Path) -> None:
    runs = [
        (setting, _Build(make_recipe(setting).to_dict(), number), number) for setting in SETTINGS for number in (1, 2)
    ]
    # Children inherit the imported libraries.
    mp.start_processes(_process, args=(2, str(tmp_path), runs), nprocs=2, start_method="fork")
    for setting, build, number in runs:
        method, stage, inputs = build(0, 1)
        loss, expected = plain(method, stage, inputs)
        losses = []
        for rank in (0, 1):
            found = load_file(tmp_path / f"{setting}-{number}-{rank}.safetensors")
            losses.append(found.pop("loss"))
            assert_same(expected, found)
        if "contrastive" in stage.streams and len(stage.streams) == 1:
            # Every process has the loss of the whole batch.
            for own in losses:
                torch.testing.assert_close(own[0], loss)
        torch.testing.assert_close(torch.stack(losses).mean(), loss)
