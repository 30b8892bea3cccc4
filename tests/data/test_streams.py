"""The order of training: a function of seed and step, shared out over processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffaug.data.collate import Collator
from diffaug.data.streams import Examples, Stream, TokenBank
from diffaug.errors import DiffaugError
from diffaug.models.backbone import load_backbone
from diffaug.models.config import ModelConfig


@pytest.fixture
def collator(tiny_bert: Path) -> Collator:
    return Collator(load_backbone(str(tiny_bert))[1], ModelConfig(), positions=128, max_length=5)


@pytest.fixture
def examples(collator: Collator) -> Examples:
    words = ["a", "dog", "runs", "through", "the", "park", "today"]
    sentences = [" ".join(words[: 1 + i % 7]) + f" {i}" for i in range(23)]
    return Examples((TokenBank(collator).column(sentences),), labels=tuple(range(23)))


def test_tokens_are_those_of_the_collator(collator: Collator, sentences: list[str]) -> None:
    repeated = [*sentences, *sentences[:3]]
    column = TokenBank(collator).column(repeated)
    assert [column[i] for i in range(len(column))] == collator.ids(repeated)[0]
    assert max(len(column[i]) for i in range(len(column))) == 5


def test_a_bank_tokenises_a_sentence_once(collator: Collator, sentences: list[str]) -> None:
    asked: list[str] = []
    plain = collator.ids
    collator.ids = lambda texts: (asked.extend(texts), plain(texts))[1]  # type: ignore[method-assign]
    bank = TokenBank(collator)
    first, second = bank.column(sentences[:8]), bank.column([*sentences[3:], *sentences[:2]])
    assert sorted(asked) == sorted(sentences)
    # What came first is still right now that the bank has grown.
    assert [first[i] for i in range(len(first))] == plain(sentences[:8])[0]
    assert [second[i] for i in range(len(second))] == plain([*sentences[3:], *sentences[:2]])[0]
    assert len(bank.column([])) == 0


def test_an_epoch_has_every_example_once_and_the_next_another_order(examples: Examples) -> None:
    stream = Stream(examples, batch_size=5, seed=3)
    assert stream.batches_per_epoch == 4
    epochs = [[label for i in range(4) for label in stream.batch(4 * e + i).labels or []] for e in range(3)]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch) == 20
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_depends_on_seed_and_step_alone(examples: Examples) -> None:
    first, second = Stream(examples, 5, seed=3), Stream(examples, 5, seed=3)
    later = second.batch(9)
    assert [first.batch(i) for i in (0, 4, 9)][2] == later
    assert Stream(examples, 5, seed=4).batch(0) != first.batch(0)


def test_processes_share_a_batch(examples: Examples) -> None:
    whole = Stream(examples, 6, seed=0).batch(2)
    shares = [Stream(examples, 6, seed=0, rank=rank, world=3).batch(2) for rank in range(3)]
    assert [label for share in shares for label in share.labels or []] == whole.labels
    assert [example for share in shares for example in share.examples] == whole.examples


def test_small_data_makes_small_batches_and_too_small_an_error(examples: Examples) -> None:
    assert Stream(examples, 1000, seed=0).batch_size == 23
    assert Stream(examples, 1000, seed=0, rank=0, world=2).batch_size == 22
    with pytest.raises(DiffaugError, match="cannot fill a batch"):
        Stream(examples, 1, seed=0)
