from __future__ import annotations

import copy

import pytest
from transformers import PreTrainedTokenizerBase

from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.models.config import ModelConfig

TEMPLATE = 'This sentence of "{}" means [MASK].'


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level"])
def test_rows_are_what_the_tokenizer_makes(request: pytest.FixtureRequest, kind: str, sentences: list[str]) -> None:
    tokenizer = request.getfixturevalue(kind)
    collator = Collator(tokenizer, ModelConfig())
    ids, cut = collator.ids(sentences)
    assert cut == 0
    rows = collator.rows(ids)
    expected = tokenizer(sentences, padding=True, return_tensors="pt")
    assert rows.attention_mask is not None
    assert rows.input_ids.tolist() == expected["input_ids"].tolist()
    assert rows.attention_mask.tolist() == expected["attention_mask"].tolist()
    assert rows.pool_positions is rows.view_ids is rows.position_ids is None


def test_rows_of_one_length_need_no_mask(wordpiece: PreTrainedTokenizerBase) -> None:
    collator = Collator(wordpiece, ModelConfig())
    rows = collator.rows([[7, 8, 9], [7, 7, 7]], views=[1, 0])
    assert rows.attention_mask is None
    assert rows.input_ids.tolist() == [[2, 7, 8, 9, 3], [2, 7, 7, 7, 3]]
    assert rows.view_ids is not None
    assert rows.view_ids.tolist() == [1, 0]


def test_no_sentences(wordpiece: PreTrainedTokenizerBase) -> None:
    assert Collator(wordpiece, ModelConfig()).ids([]) == ([], 0)


def test_the_tightest_limit_wins_and_cuts_are_counted(wordpiece: PreTrainedTokenizerBase) -> None:
    sentence = "A dog runs through the park."
    pieces = wordpiece(sentence, add_special_tokens=False)["input_ids"]
    n = len(pieces)
    assert n > 5
    for config_limit, own_limit, positions, limit in (
        (5, None, None, 5),
        (None, 4, None, 4),
        (5, 4, 100, 4),
        (3, 4, 100, 3),
        (None, None, 4, 2),  # [CLS] and [SEP] take two positions
        (n, None, None, n),
        (n - 1, None, None, n - 1),
        (None, None, None, None),
    ):
        collator = Collator(wordpiece, ModelConfig(max_length=config_limit), positions, own_limit)
        assert collator.max_length == limit
        ids, cut = collator.ids([sentence, "a"])
        assert ids[0] == pieces[:limit]
        assert cut == (limit is not None and limit < n)
        assert ids[1] == wordpiece("a", add_special_tokens=False)["input_ids"]


def test_a_tokenizer_that_cuts_on_the_left(wordpiece: PreTrainedTokenizerBase) -> None:
    tokenizer = copy.deepcopy(wordpiece)
    tokenizer.truncation_side = "left"
    text = "the quick brown fox jumps over the lazy dog"
    whole = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert Collator(tokenizer, ModelConfig(max_length=4)).ids([text]) == ([whole[-4:]], 1)
    assert Collator(wordpiece, ModelConfig(max_length=4)).ids([text]) == ([whole[:4]], 1)


def test_template_that_leaves_no_room(wordpiece: PreTrainedTokenizerBase) -> None:
    config = ModelConfig("mask", TEMPLATE)
    around = len(Collator(wordpiece, config).template)
    assert Collator(wordpiece, config, positions=around + 1).max_length == 1
    with pytest.raises(DiffaugError, match=f"the backbone has {around} positions, .* leave none for a sentence"):
        Collator(wordpiece, config, positions=around)


def test_prompt_and_lower_case(byte_level: PreTrainedTokenizerBase) -> None:
    def ids(text: str, **settings: object) -> list[int]:
        return Collator(byte_level, ModelConfig(**settings)).ids([text])[0][0]  # type: ignore[arg-type]

    assert ids("A Dog", prompt="query: ") == ids("query: A Dog")
    assert ids("A Dog", lowercase=True) == ids("a dog")
    assert ids("A Dog") != ids("a dog")


@pytest.mark.parametrize(
    ("sentence", "read_as"),
    [
        ("half \ud83d of a pair", "half \ufffd of a pair"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00 two halves", "😀 two halves"),
        ("nul \x00 and \u202e marks", "nul \x00 and \u202e marks"),
    ],
)
def test_any_string_is_read(byte_level: PreTrainedTokenizerBase, sentence: str, read_as: str) -> None:
    collator = Collator(byte_level, ModelConfig())
    assert collator.ids([sentence]) == ([byte_level(read_as, add_special_tokens=False)["input_ids"]], 0)
