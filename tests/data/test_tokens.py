"""Tokenised sentences: in memory, and in the cache that processes share."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffaug.data import tokens
from diffaug.data.collate import Collator
from diffaug.data.tokens import TokenCache, TokenStore, tokenise
from diffaug.models.backbone import load_tokenizer
from diffaug.models.config import ModelConfig


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sentences were tokenised, at each call; a handful is worth sharing."""
    made: list[int] = []

    def counted(collator: Collator, sentences: Any) -> Any:
        made.append(len(sentences))
        return tokenise(collator, sentences)

    monkeypatch.setattr(tokens, "_WORTH_CACHING", 5)
    monkeypatch.setattr(tokens, "tokenise", counted)
    return made


def reader(folder: Path, **settings: Any) -> Collator:
    length = settings.pop("max_length", 6)
    return Collator(load_tokenizer(str(folder)), ModelConfig(**settings), 128, length)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_second_process_reads_the_cache(
    tiny: Any, family: str, sentences: list[str], calls: list[int], tmp_path: Path
) -> None:
    texts = [*sentences, "half a pair: \ud83d"]
    first = TokenCache(tmp_path / "tokens").tokenise(reader(tiny(family)), texts)
    assert calls == [len(texts)]
    other = reader(tiny(family))
    other.ids(["a tokenizer that was used before, with another length"])
    second = TokenCache(tmp_path / "tokens").tokenise(other, texts)
    assert calls == [len(texts)]
    for found in (first, second):
        assert [array.dtype for array in found] == [np.int32, np.int64]
        ids = [row.tolist() for row in np.split(found[0], np.cumsum(found[1])[:-1])]
        assert ids == other.ids(texts)[0]


def test_other_sentences_or_settings_have_other_cache_files(
    tiny_bert: Path, tiny_roberta: Path, sentences: list[str], calls: list[int], tmp_path: Path
) -> None:
    cache = TokenCache(tmp_path)
    cache.tokenise(reader(tiny_bert), sentences)
    template = 'This sentence of "{}" means [MASK].'
    for folder, settings in (
        (tiny_bert, {"max_length": 7}),
        (tiny_bert, {"lowercase": True}),
        (tiny_bert, {"template": template, "pooling": "mask", "final_stop": True}),
        (tiny_roberta, {}),
    ):
        cache.tokenise(reader(folder, **settings), sentences)
    cache.tokenise(reader(tiny_bert), sentences[::-1])
    cache.tokenise(reader(tiny_bert), [sentences[0] + sentences[1], *sentences[2:]])
    assert len(calls) == len(list(tmp_path.glob("*.npz"))) == 7
    # A template alone does not change how the sentence within it is read.
    cache.tokenise(reader(tiny_bert, template=template, pooling="mask"), sentences)
    assert len(calls) == 7


def test_few_sentences_are_not_cached(tiny_bert: Path, sentences: list[str], calls: list[int], tmp_path: Path) -> None:
    TokenCache(tmp_path / "tokens").tokenise(reader(tiny_bert), sentences[:4])
    assert not (tmp_path / "tokens").exists()


def test_the_second_process_waits_for_the_first(
    tiny_bert: Path, sentences: list[str], calls: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    counted = tokens.tokenise

    def slow(collator: Collator, texts: Any) -> Any:
        begun.set()
        go_on.wait(60)
        return counted(collator, texts)

    monkeypatch.setattr(tokens, "tokenise", slow)
    found: list[Any] = []
    collators = [reader(tiny_bert), reader(tiny_bert)]
    threads = [
        threading.Thread(target=lambda c=c: found.append(TokenCache(tmp_path).tokenise(c, sentences)))
        for c in collators
    ]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_full_disk_is_not_an_error(
    tiny_bert: Path, sentences: list[str], calls: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    wanted = tokenise(reader(tiny_bert), sentences)
    for times in (1, 2):
        found = TokenCache(tmp_path / "tokens").tokenise(reader(tiny_bert), sentences)
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))
        assert len(calls) == times


@pytest.fixture
def collator(tiny_bert: Path) -> Collator:
    return reader(tiny_bert, max_length=5)


def test_tokens_are_those_of_the_collator(collator: Collator, sentences: list[str]) -> None:
    repeated = [*sentences, *sentences[:3]]
    column = TokenStore(collator).column(repeated)
    assert [column[i] for i in range(len(column))] == collator.ids(repeated)[0]
    assert max(len(column[i]) for i in range(len(column))) == 5


def test_a_store_tokenises_each_sentence_once(collator: Collator, sentences: list[str]) -> None:
    asked: list[str] = []
    plain = collator.ids
    collator.ids = lambda texts: (asked.extend(texts), plain(texts))[1]  # type: ignore[method-assign]
    bank = TokenStore(collator)
    first, second = bank.column(sentences[:8]), bank.column([*sentences[3:], *sentences[:2]])
    assert sorted(asked) == sorted(sentences)
    # What came first is still right now that the bank has grown.
    assert [first[i] for i in range(len(first))] == plain(sentences[:8])[0]
    assert [second[i] for i in range(len(second))] == plain([*sentences[3:], *sentences[:2]])[0]
    assert len(bank.column([])) == 0
