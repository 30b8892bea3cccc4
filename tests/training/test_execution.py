"""Executors: which one is chosen, and that all give the same gradients."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diffaug.config import Recipe
from diffaug.kernels import onednn
from diffaug.methods import method_class
from diffaug.methods.base import Stage
from diffaug.methods.twostage import TwoStage
from diffaug.models.backbone import load_backbone
from diffaug.models.batch import PackedBatch, PaddedBatch
from diffaug.models.encoder import Encoder
from diffaug.training.execution import cuda_graphs
from diffaug.training.execution.cpu import fast_cpu_encode
from diffaug.training.execution.executor import Executor, PlainExecutor, can_pack, fast_executor, plain_executor
from diffaug.training.execution.gradient_cache import GradientCache
from diffaug.training.execution.half_precision import HalfPrecisionCopies
from diffaug.training.optimizer import trainable
from diffaug.training.precision import Precision
from diffaug.training.prefetch import Prefetcher

STAGE = Stage(2, 1, {}, {"backbone": 1e-3, "views": 1e-3}, 1)


CPU = torch.device("cpu")
FP32 = Precision("fp32", CPU)


def fast(method: TwoStage, stage: Stage) -> Executor:
    make = fast_executor(method, stage, FP32, CPU, trainable(method, stage))
    assert make is not None
    return make()


def build(recipe: Recipe) -> TwoStage:
    torch.manual_seed(0)
    method = method_class(recipe.method).build(recipe, *load_backbone(recipe.model.backbone))
    assert isinstance(method, TwoStage)
    return method


def rows_of(method: TwoStage) -> tuple[list[list[int]], list[int]]:
    ids, _ = method.collator.ids(["A dog runs through the park.", "It sleeps.", "Nobody knew why the cat left."])
    return ids, [0, 1, 0]


class TestCanPack:
    @pytest.mark.parametrize(
        "family", ["bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "modernbert"]
    )
    def test_families_that_go_through_the_attention_function(
        self, family: str, tiny: Callable[[str], Path], make_recipe: Callable[..., Recipe]
    ) -> None:
        recipe = make_recipe(model={"backbone": str(tiny(family)), "template": None, "pooling": "mean"})
        assert can_pack(build(recipe)) == (family != "modernbert")

    @pytest.mark.parametrize("max_length", [24, 100])
    def test_a_window_of_tokens_shows_in_rows_that_are_longer(
        self, max_length: int, tiny: Callable[[str], Path], make_recipe: Callable[..., Recipe], tmp_path: Path
    ) -> None:
        """ModernBERT's own window, 64 tokens to each side: rows end to end know of none."""
        folder = tmp_path / "modernbert"
        shutil.copytree(tiny("modernbert"), folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "local_attention": 128}))
        model = {"backbone": str(folder), "template": None, "pooling": "mean"}
        method = build(make_recipe(model=model, data={"max_length": max_length}))
        assert can_pack(method) == (max_length <= 64)

    def test_families_that_attend_by_themselves(
        self, tiny: Callable[[str], Path], make_recipe: Callable[..., Recipe]
    ) -> None:
        model = {"backbone": str(tiny("mpnet")), "template": None, "pooling": "mean", "head": "none"}
        recipe = make_recipe(model=model, views={"kind": "dropout"})
        simcse = Recipe(**{**vars(recipe), "method": "simcse", "stage1": None})
        method = build(simcse).eval()
        rows = method.collator.rows(rows_of(method)[0])
        before = method.represent(rows)
        assert not can_pack(method)
        assert torch.equal(method.represent(rows), before)

    def test_rows_that_are_cut_do(self, make_recipe: Callable[..., Recipe]) -> None:
        model = {"template": None, "pooling": "mean", "head": "none"}
        recipe = make_recipe(model=model, views={"kind": "cutoff", "first": {"shuffle": 1.0}, "second": {}})
        assert can_pack(build(replace(recipe, method="consert", stage1=None)))

    @pytest.mark.parametrize("kind", ["adapter", "lora"])
    def test_views_by_hooks_do_not(self, kind: str, make_recipe: Callable[..., Recipe]) -> None:
        assert not can_pack(build(make_recipe(views={"kind": kind})))

    def test_leaves_the_model_as_it_was(self, make_recipe: Callable[..., Recipe]) -> None:
        method = build(make_recipe()).train()
        before = {name: value.clone() for name, value in method.state_dict().items()}
        can_pack(method)
        assert method.training
        assert all(torch.equal(before[name], value) for name, value in method.state_dict().items())


def test_a_cpu_gets_the_plain_executor_or_the_gradient_cache(make_recipe: Callable[..., Recipe]) -> None:
    method = build(make_recipe())
    for stage, kind in ((STAGE, PlainExecutor), (replace(STAGE, gradient_cache=2), GradientCache)):
        assert isinstance(fast(method, stage), kind)
        assert isinstance(plain_executor(method, stage, FP32), kind)


@pytest.mark.parametrize("kind", ["prefix", "lora"])
def test_a_cpu_pads_no_more_than_it_must(
    kind: str, make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows go end to end where the model takes them so, and in parts of similar length elsewhere."""
    monkeypatch.setattr("diffaug.training.execution.cpu._CHUNK_TOKENS", 40)
    method = build(make_recipe(views={"kind": kind})).eval()
    rows = method.collator.rows(*rows_of(method))
    wanted, way = method.represent(rows), fast_cpu_encode(method, packed=can_pack(method))
    represent, seen = Encoder.represent, []

    def watched(self: Encoder, rows: PaddedBatch | PackedBatch, **others: Any) -> torch.Tensor:
        seen.append(type(rows))
        return represent(self, rows, **others)

    monkeypatch.setattr(Encoder, "represent", watched)
    torch.testing.assert_close(way(rows), wanted)
    assert seen == ([PackedBatch] if kind == "prefix" else [PaddedBatch] * 2)


def test_a_cpu_may_have_faster_products(make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch) -> None:
    method = build(make_recipe()).eval()
    rows = method.collator.rows(*rows_of(method))
    wanted, linear, calls = method.represent(rows), onednn.linear, []

    def watched(states: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        calls.append(states.shape)
        return linear(states, *others)

    monkeypatch.setattr(onednn, "linear", watched)
    monkeypatch.setattr(onednn, "onednn_is_faster", lambda: True)
    torch.testing.assert_close(fast_cpu_encode(method, packed=True)(rows), wanted)
    assert calls


def test_the_plain_way_is_another_one(make_recipe: Callable[..., Recipe]) -> None:
    method = build(make_recipe()).train()
    rows = method.collator.rows(*rows_of(method))

    def vectors(represent: Callable[..., torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(3)
        return represent(rows)

    wanted = vectors(method.represent)
    # Fast dropout draws other random numbers, so that which way it was can be seen from the outside.
    assert torch.equal(vectors(plain_executor(method, STAGE, FP32)), wanted)
    assert not torch.equal(vectors(fast(method, STAGE)), wanted)


def test_where_nothing_is_faster_there_is_only_the_plain_way(make_recipe: Callable[..., Recipe]) -> None:
    method = build(make_recipe())
    for device in ("mps", "cuda"):  # on a GPU in 32 bits
        assert fast_executor(method, STAGE, FP32, torch.device(device), trainable(method, STAGE)) is None


class TestHalfPrecisionCopies:
    """In 32 bits, where its results can be compared digit by digit."""

    def test_gradients_equal_plain_ones(self, make_recipe: Callable[..., Recipe]) -> None:
        method = build(make_recipe()).eval()
        learning = trainable(method, STAGE)
        rows = method.collator.rows(*rows_of(method))
        weights = torch.randn(3, 32)
        (method.represent(rows) * weights).sum().backward()
        wanted = {name: p.grad.clone() for name, p in learning.items() if p.grad is not None}
        method.zero_grad()

        halved = HalfPrecisionCopies(method.encoder, method.represent, learning, torch.float32)  # type: ignore[arg-type]
        for times in (1, 2, 3):  # gradients add up until they are dropped
            vectors = halved(rows)
            with halved.accumulating():
                halved.backward(vectors, weights)
            for name, gradient in wanted.items():
                found = learning[name].grad
                assert found is not None
                torch.testing.assert_close(found, times * gradient, rtol=1e-4, atol=1e-6)

    def test_a_backward_on_the_side_leaves_the_gradients_so_far_alone(self, make_recipe: Callable[..., Recipe]) -> None:
        method = build(make_recipe()).eval()
        learning = trainable(method, STAGE)
        halved = HalfPrecisionCopies(method.encoder, method.represent, learning, torch.float32)  # type: ignore[arg-type]
        vectors = halved(method.collator.rows(*rows_of(method)))
        with halved.accumulating():
            halved.backward(vectors, torch.ones_like(vectors))
        wanted = {name: p.grad.clone() for name, p in learning.items() if p.grad is not None}
        halved.detach_gradients()
        vectors = halved(method.collator.rows(*rows_of(method)))
        halved.backward(vectors, torch.zeros_like(vectors))
        assert all(torch.equal(learning[name].grad, gradient) for name, gradient in wanted.items())  # type: ignore[arg-type]

    def test_computes_with_what_the_weights_were_at_the_last_refresh(self, make_recipe: Callable[..., Recipe]) -> None:
        method = build(make_recipe()).eval()
        learning = trainable(method, STAGE)
        halved = HalfPrecisionCopies(method.encoder, method.represent, learning, torch.bfloat16)  # type: ignore[arg-type]
        rows = method.collator.rows(*rows_of(method))
        before = halved(rows)
        assert before.dtype == torch.bfloat16
        with torch.no_grad():
            for parameter in learning.values():
                parameter.mul_(1.1)
        assert torch.equal(halved(rows), before)
        halved.refresh()
        after = halved(rows).float()
        assert not torch.equal(after, before.float())
        torch.testing.assert_close(after, method.represent(rows), rtol=0.1, atol=0.1)
        assert all(parameter.dtype == torch.float32 for parameter in method.parameters())

    def test_what_is_frozen_gets_no_gradient(self, make_recipe: Callable[..., Recipe]) -> None:
        method = build(make_recipe()).eval()
        stage = Stage(1, 1, {}, {"views": 1e-3}, 1)
        learning = trainable(method, stage)
        halved = HalfPrecisionCopies(method.encoder, method.represent, learning, torch.float32)  # type: ignore[arg-type]
        vectors = halved(method.collator.rows(*rows_of(method)))
        with halved.accumulating():
            halved.backward(vectors, torch.ones_like(vectors))
        assert all(parameter.grad is None for parameter in method.encoder.backbone.parameters())
        assert any(float(p.grad.abs().sum()) > 0 for p in learning.values() if p.grad is not None)


def test_the_number_of_cuda_graphs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the size that was not used for longest go first. Nothing is captured here: that needs a GPU."""
    for name in ("graph_pool_handle", "Stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *given: None)
    monkeypatch.setattr(cuda_graphs, "_MAX_SIZES", 3)
    captured: list[int] = []

    def capture(self: cuda_graphs.GraphedEncoder, batch: Any) -> Any:
        captured.append(batch.size)
        tensors = SimpleNamespace(tensors=dict)
        return SimpleNamespace(inputs=tensors, vectors=torch.zeros(1, 1), forward=SimpleNamespace(replay=lambda: None))

    monkeypatch.setattr(cuda_graphs.GraphedEncoder, "_captured", capture)
    encoder = cuda_graphs.GraphedEncoder(None, CPU)  # type: ignore[arg-type]

    class Batch(SimpleNamespace):
        def __len__(self) -> int:
            return 1

    for size in (1, 2, 3, 1, 4, 1, 2):
        encoder(Batch(size=size, tensors=dict))  # type: ignore[arg-type]
        encoder._pending = None
        assert len(encoder._by_size) <= 3
    assert captured == [1, 2, 3, 4, 2], "2 made way for 4, and 3 for 2; 1 was in use"


class TestPrefetcher:
    def test_gives_what_is_made_in_order_and_makes_some_ahead(self) -> None:
        made: list[int] = []
        enough = threading.Event()

        def make(number: int) -> int:
            made.append(number)
            if number == 2:
                enough.set()
            return number * number

        ahead = Prefetcher(make, 5)
        assert ahead(0) == 0
        assert enough.wait(10), "two more should be made while the first is in use"
        assert [ahead(n) for n in range(1, 5)] == [1, 4, 9, 16]
        ahead.close()
        assert made == [0, 1, 2, 3, 4]

    def test_an_error_comes_with_its_number(self) -> None:
        def make(number: int) -> int:
            if number == 1:
                raise ValueError("broken")
            return number

        ahead = Prefetcher(make, 3)
        assert ahead(0) == 0
        with pytest.raises(ValueError, match="broken"):
            ahead(1)
        ahead.close()


def test_a_gpu_that_imitates_bf16_computes_in_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert Precision("auto", torch.device("cuda")).half is None
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert Precision("auto", torch.device("cuda")).half is torch.bfloat16
