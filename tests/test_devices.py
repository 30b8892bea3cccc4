"""Several devices at once: the same vectors as of one, no work done twice, nothing left behind."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.inference import encode as module
from diffaug.inference.runner import Runner, TorchRunner, run_parallel
from diffaug.models.backbone import load_backbone
from diffaug.models.config import AdapterConfig, LoraConfig, ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.views.build import build_views

Tiny = Callable[[str], Path]
TWO = ["cpu", "cpu"]
# Seconds: nobody waits that long, unless something is wrong.
LONG = 300


def many(n: int) -> list[str]:
    """Sentences of mixed length, a third of them repeated."""
    words = ["dog", "park", "runs", "the", "market", "fell"]
    return [" ".join(words[(i + j) % 6] for j in range(1 + i % 17)) + f" {i % (n * 2 // 3)}" for i in range(n)]


@pytest.fixture
def embedder(tiny_bert: Path) -> Embedder:
    return Embedder.from_pretrained(tiny_bert, device="cpu")


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("diffaug"):
            thread.join(timeout=1)  # it may be about to end
            assert not thread.is_alive()
    assert torch.get_num_threads() == threads


# Kinds of models whose modules keep something for the time of a forward, and others.
KINDS: dict[str, tuple[str, ModelConfig]] = {
    "mean": ("bert", ModelConfig("mean")),
    "all layers": ("bert", ModelConfig("first_last")),
    "prefix": ("bert", ModelConfig("mean", prefix=PrefixConfig(2, 3))),
    "prefix, ModernBERT": ("modernbert", ModelConfig("mean", prefix=PrefixConfig(2, 3))),
    "adapters": ("roberta", ModelConfig("cls", adapter=AdapterConfig())),
    "LoRA": ("bert", ModelConfig("mean", lora=LoraConfig())),
}


def of_kind(kind: str, tiny: Tiny) -> Embedder:
    family, config = KINDS[kind]
    backbone, tokenizer = load_backbone(str(tiny(family)))
    torch.manual_seed(0)
    views = build_views(config, backbone)
    for parameter in views.parameters() if views is not None else ():
        parameter.data.normal_()
    return Embedder(Encoder(backbone, config, views), tokenizer, device="cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_vectors_as_of_one_device(tiny: Tiny, kind: str) -> None:
    embedder, texts = of_kind(kind, tiny), many(300)
    one = embedder.encode(texts)
    np.testing.assert_allclose(embedder.encode(texts, devices=["cpu"] * 3), one, atol=1e-6)
    assert np.abs(one[0] - one[1]).max() > 1e-3  # guard: in another order it would be seen
    # In the same batches, to the bit; and the model is as it was.
    several = embedder.encode(texts, 16, normalize=False, devices=TWO)
    np.testing.assert_array_equal(several, embedder.encode(texts, 16, normalize=False))


@pytest.mark.parametrize("batch_size", [None, 7])
def test_every_distinct_sentence_is_computed_once_and_every_device_computes(
    embedder: Embedder, batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WINDOW", 64)
    seen: list[tuple[int, int]] = []
    names: set[str] = set()
    both = threading.Barrier(2)

    def note(_: Any, args: Any) -> None:
        if threading.get_ident() not in {thread for thread, _ in seen}:
            both.wait(timeout=LONG)  # the first batch of each: neither goes on before the other has one
        seen.append((threading.get_ident(), len(args[0].input_ids)))
        names.add(threading.current_thread().name)

    embedder.encoder.register_forward_pre_hook(note)
    texts = many(200)
    embedder.encode(texts, batch_size, devices=TWO)
    assert sum(rows for _, rows in seen) == len(set(texts))
    assert len({thread for thread, _ in seen}) == 2
    assert names == {"diffaug on cpu"}


def test_few_sentences_are_enough_for_every_device(embedder: Embedder) -> None:
    lengths = [5] * 40
    cpu = torch.device("cpu")
    assert len(list(embedder.batches(lengths))) == 1
    batches = list(embedder.batches(lengths, devices=[cpu, cpu]))
    assert len(batches) >= 4
    assert sorted(i for batch in batches for i in batch) == list(range(40))
    assert embedder.encode([], devices=TWO).shape == (0, 32)
    np.testing.assert_allclose(embedder.encode("Yes.", devices=TWO), embedder.encode("Yes."), atol=1e-6)


def test_copies_share_weights_where_they_are_and_the_model_stays(embedder: Embedder) -> None:
    weight = embedder.encoder.backbone.embeddings.word_embeddings.weight
    here, elsewhere = embedder.runner.on("cpu"), embedder.runner.on("meta")
    assert here.encoder is not embedder.encoder
    assert here.encoder.backbone.embeddings.word_embeddings.weight.data_ptr() == weight.data_ptr()
    assert elsewhere.device.type == "meta"
    assert embedder.device.type == "cpu"
    assert weight.device.type == "cpu"


def test_what_goes_wrong_on_a_device_arrives(embedder: Embedder) -> None:
    def fail(_: Any, args: Any) -> None:
        if len(args[0].input_ids[0]) > 10:
            raise RuntimeError("out of memory")

    embedder.encoder.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        embedder.encode(many(100), batch_size=1, devices=TWO)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_goes_wrong_before_it_arrives(
    embedder: Embedder, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WINDOW", 20)
    read = embedder.collator.ids
    calls: list[int] = []

    def ids(sentences: list[str]) -> Any:
        calls.append(len(sentences))
        if len(calls) == 2:
            raise error
        return read(sentences)

    monkeypatch.setattr(embedder.collator, "ids", ids)
    with pytest.raises(error):
        embedder.encode(many(100), devices=TWO)


def test_sentences_that_are_cut_are_told_once(embedder: Embedder) -> None:
    with pytest.warns(UserWarning, match="1 of 2 distinct sentences"):
        embedder.encode(["dog " * 500, "Yes."], devices=TWO)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"devices": []}, "devices must be a list such as"),
        ({"devices": "cpu,cpu"}, "devices must be a list such as"),
        ({"devices": TWO, "device": "cpu"}, "either device or devices"),
        ({"devices": ["cpu", "cuda:99"]}, "cannot run on the device 'cuda:99'"),
        ({"devices": ["nonsense"]}, "cannot run on the device 'nonsense'"),
    ],
)
def test_devices_that_cannot_be(embedder: Embedder, options: dict[str, Any], said: str) -> None:
    with pytest.raises(DiffaugError, match=said):
        embedder.encode(["a"], **options)


def test_who_is_free_takes_the_next_piece(embedder: Embedder) -> None:
    """A device that is slow keeps one piece, and the others get all that remains."""
    slow, quick = runners = [TorchRunner(embedder.encoder), TorchRunner(embedder.encoder)]
    rest_done, begun = threading.Event(), threading.Event()
    done: dict[Runner, int] = {slow: 0, quick: 0}

    def do(runner: Runner, piece: int) -> None:
        if runner is slow:
            begun.set()
            assert rest_done.wait(timeout=LONG)
        else:
            assert begun.wait(timeout=LONG)
        done[runner] += 1
        if done[quick] == 99:
            rest_done.set()

    run_parallel(iter(range(100)), runners, do)
    assert done == {slow: 1, quick: 99}


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
def test_the_threads_of_the_cpu_are_divided(embedder: Embedder) -> None:
    seen: set[int] = set()
    runners = [TorchRunner(embedder.encoder), TorchRunner(embedder.encoder)]
    run_parallel(range(20), runners, lambda runner, piece: seen.add(torch.get_num_threads()))
    assert seen == {2}
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [4]


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_on_the_cpu_encodes_a_batch_per_thread(tiny: Tiny, kind: str) -> None:
    embedder, texts = of_kind(kind, tiny), many(300)
    seen: set[tuple[int, int]] = set()
    hook = embedder.encoder.register_forward_pre_hook(
        lambda *_: seen.add((threading.get_ident(), torch.get_num_threads()))
    )
    several = embedder.encode(texts)
    assert {threads for _, threads in seen} == {1}
    assert len(seen) > 1
    seen.clear()
    embedder.encode(texts[:60])  # too few to be worth copies of the model
    assert seen == {(threading.get_ident(), 4)}
    hook.remove()
    torch.set_num_threads(1)
    np.testing.assert_allclose(several, embedder.encode(texts), atol=1e-6)


@pytest.mark.usefixtures("four_threads")
def test_the_threads_of_the_cpu_return_after_ctrl_c(embedder: Embedder) -> None:
    begun: list[int] = []

    def do(runner: Runner, piece: int) -> None:
        begun.append(piece)
        if piece == 0:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

    with pytest.raises(KeyboardInterrupt):
        run_parallel(range(30), embedder.runner.split(2), do)
    assert len(begun) < 30  # the queued pieces are skipped
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("kind", ["all layers", "prefix", "LoRA"])
def test_several_threads_may_use_one_model(tiny: Tiny, kind: str) -> None:
    embedder, texts = of_kind(kind, tiny), many(60)
    wanted = embedder.encode(texts)
    together = threading.Barrier(4)

    def encode(_: int) -> list[np.ndarray]:
        together.wait(LONG)
        return [embedder.encode(texts, 8) for _ in range(3)]

    with ThreadPoolExecutor(4) as pool:
        for found in chain(*pool.map(encode, range(4))):
            np.testing.assert_allclose(found, wanted, atol=5e-6)


def test_a_model_can_be_copied(embedder: Embedder) -> None:
    wanted = embedder.encode(many(6))
    for other in (copy.deepcopy(embedder), pickle.loads(pickle.dumps(embedder))):
        np.testing.assert_array_equal(other.encode(many(6)), wanted)
