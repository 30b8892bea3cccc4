from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase, XLMRobertaTokenizer

from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.models.config import ModelConfig
from diffaug.models.template import Template

BERT = 'This sentence of "{}" means [MASK].'
BERT_OTHER = 'This sentence : "{}" means [MASK].'
ROBERTA = "This sentence : ' {} ' means [MASK]."
MASK_FIRST = "[MASK] : {} means something"


def collator(tokenizer: PreTrainedTokenizerBase, text: str, **settings: Any) -> Collator:
    return Collator(tokenizer, ModelConfig("mask", text, **settings), max_length=settings.get("max_length"))


def whole_rows(collator: Collator, sentences: list[str]) -> list[list[int]]:
    """Every row without its padding."""
    ids, _ = collator.ids(sentences)
    rows = collator.rows(ids)
    assert rows.attention_mask is not None
    return [row[mask > 0].tolist() for row, mask in zip(rows.input_ids, rows.attention_mask, strict=True)]


def with_final_stop(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!", '"', "'")) else sentence + "."


@pytest.mark.parametrize("final_stop", [True, False])
@pytest.mark.parametrize("text", [BERT, BERT_OTHER, ROBERTA, MASK_FIRST])
def test_word_piece_rows_are_the_filled_templates(
    wordpiece: PreTrainedTokenizerBase, sentences: list[str], text: str, final_stop: bool
) -> None:
    texts = [with_final_stop(s) if final_stop else s for s in sentences]
    expected = wordpiece([text.format(s) for s in texts])["input_ids"]
    assert whole_rows(collator(wordpiece, text, final_stop=final_stop), sentences) == expected


@pytest.mark.parametrize("final_stop", [True, False])
@pytest.mark.parametrize("text", [ROBERTA, ROBERTA.replace("This", "The"), MASK_FIRST])
def test_byte_level_rows_are_the_filled_templates(
    byte_level: PreTrainedTokenizerBase, sentences: list[str], text: str, final_stop: bool
) -> None:
    texts = [with_final_stop(s) if final_stop else s for s in sentences]
    expected = byte_level([text.replace("[MASK]", "<mask>").format(s) for s in texts])["input_ids"]
    assert whole_rows(collator(byte_level, text, final_stop=final_stop), sentences) == expected


def test_sentence_piece_rows_are_the_filled_templates(sentences: list[str]) -> None:
    """XLM-RoBERTa's tokenizer marks every word's start, so that its template needs spaces around the slot."""
    words = sorted({f"▁{word}" for word in " ".join(sentences).split() if len(word) <= 5})
    characters = sorted({"▁", *"".join(sentences), *"This sentence : ' means."})
    special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary = [*special, *((w, -2.0) for w in words), *((c, -5.0) for c in characters), ("<mask>", 0.0)]
    tokenizer = XLMRobertaTokenizer(vocab=vocabulary)
    expected = tokenizer([ROBERTA.replace("[MASK]", "<mask>").format(s) for s in sentences])["input_ids"]
    assert whole_rows(collator(tokenizer, ROBERTA), sentences) == expected


@pytest.mark.parametrize(
    ("sentence", "read_as"),
    [
        ("No stop", "No stop."),
        ("Trailing space \t", "Trailing space."),
        ("Is it?", "Is it?"),
        ("It is!", "It is!"),
        ("It is.", "It is."),
        ('"Quoted"', '"Quoted"'),
        ("'Quoted'", "'Quoted'"),
        ("Ends in a comma,", "Ends in a comma,."),
        ("", ""),
        ("  ", "  "),
    ],
)
def test_final_stop(byte_level: PreTrainedTokenizerBase, sentence: str, read_as: str) -> None:
    stopped, plain = (collator(byte_level, ROBERTA, final_stop=final_stop) for final_stop in (True, False))
    assert stopped.ids([sentence]) == plain.ids([read_as])


@pytest.mark.parametrize("text", [BERT, ROBERTA, MASK_FIRST])
@pytest.mark.parametrize("kind", ["wordpiece", "byte_level"])
def test_mask_position(request: pytest.FixtureRequest, kind: str, text: str) -> None:
    tokenizer = request.getfixturevalue(kind)
    reader = collator(tokenizer, text)
    mask = tokenizer.mask_token
    ids, _ = reader.ids(["A dog.", "", f"{mask} A dog {mask} runs {mask}", "through the park"])
    rows = reader.rows(ids)
    assert rows.pool_positions is not None
    for i, at in enumerate(rows.pool_positions.tolist()):
        row = rows.input_ids[i].tolist()
        masks = [j for j, token in enumerate(row) if token == tokenizer.mask_token_id]
        # Masks that come with the sentence stand between the template's own and the row's other end.
        assert at == (masks[0] if text == MASK_FIRST else masks[-1])
        assert len(masks) == (4 if i == 2 else 1)


def test_sentence_is_cut_before_the_template_goes_around(wordpiece: PreTrainedTokenizerBase) -> None:
    reader = collator(wordpiece, BERT, max_length=4)
    row = whole_rows(reader, ["A dog runs through the park.", "Yes."])[0]
    before = wordpiece('This sentence of "', add_special_tokens=False)["input_ids"]
    sentence = wordpiece("A dog runs through the park.", add_special_tokens=False)["input_ids"][:4]
    after = wordpiece('" means [MASK].', add_special_tokens=False)["input_ids"]
    assert row == [wordpiece.cls_token_id, *before, *sentence, *after, wordpiece.sep_token_id]


def test_special_tokens_alone(wordpiece: PreTrainedTokenizerBase, byte_level: PreTrainedTokenizerBase) -> None:
    assert Template.build(wordpiece, None) == Template((wordpiece.cls_token_id,), (wordpiece.sep_token_id,))
    assert Template.build(byte_level, None) == Template((0,), (2,))
    assert len(Template.build(wordpiece, None)) == 2


@pytest.mark.parametrize(
    "text", ["no slot [MASK].", "{} no mask", "{} two {} slots [MASK]", "{} [MASK] two masks [MASK]", "", "{0} [MASK]"]
)
def test_templates_that_are_none(text: str) -> None:
    with pytest.raises(DiffaugError, match="a template holds one"):
        ModelConfig("mask", text)


def test_template_and_mask_pooling_belong_together() -> None:
    for pooling, template in (("mean", BERT), ("mask", None)):
        with pytest.raises(DiffaugError, match="belong together"):
            ModelConfig(pooling, template)  # type: ignore[arg-type]


def test_template_with_the_tokenizers_own_mask_twice(byte_level: PreTrainedTokenizerBase) -> None:
    with pytest.raises(DiffaugError, match="2 mask tokens, not one"):
        Template.build(byte_level, "{} <mask> means [MASK].")


def test_tokenizer_without_a_mask_token() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    assert Template.build(tokenizer, None) == Template((), ())
    with pytest.raises(DiffaugError, match="needs a tokenizer with a mask token"):
        Template.build(tokenizer, BERT)
