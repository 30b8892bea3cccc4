"""The generator that fills in masked tokens, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from diffaug.errors import DiffaugError
from diffaug.models.generator import Generator
from diffaug.models.io.fetch import EMBEDDED_MODEL


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert", "electra"])
def test_the_most_probable_ordinary_token_takes_each_masked_place(
    tiny_masked_lm: Callable[[str], Path], sentences: list[str], family: str
) -> None:
    folder = tiny_masked_lm(family)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    generator = Generator.load(str(folder), tokenizer)
    batch = tokenizer(sentences[:6], padding=True, return_tensors="pt")
    ids, attention = batch["input_ids"], batch["attention_mask"]
    candidates = generator.candidates(ids, attention)
    torch.manual_seed(0)
    masked = candidates & (torch.rand(ids.shape) < 0.4)
    filled = generator.fill(ids, attention, masked)

    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    special = set(tokenizer.all_special_ids)
    expected = ids.clone()
    for row in range(len(ids)):  # one sentence at a time, without padding
        length = int(attention[row].sum())
        assert candidates[row].tolist() == [i < length and int(ids[row, i]) not in special for i in range(ids.shape[1])]
        given = ids[row : row + 1, :length].clone()
        given[0][masked[row, :length]] = tokenizer.mask_token_id
        with torch.no_grad():
            scores = model(input_ids=given).logits[0]
        for i in masked[row].nonzero().flatten().tolist():
            expected[row, i] = max((w for w in range(len(tokenizer)) if w not in special), key=lambda w: scores[i, w])
    assert torch.equal(filled, expected)
    assert int((filled != ids).sum()) > 3, "vacuous: nothing was replaced"


def test_the_embedded_encoder_is_a_generator_for_itself() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    generator = Generator.load(str(EMBEDDED_MODEL), tokenizer)
    batch = tokenizer(["the capital of france is paris."], return_tensors="pt")
    masked = batch["input_ids"] == tokenizer.convert_tokens_to_ids("of")
    assert int(masked.sum()) == 1
    assert torch.equal(generator.fill(batch["input_ids"], None, masked), batch["input_ids"])
    nothing = torch.zeros_like(masked)
    assert torch.equal(generator.fill(batch["input_ids"], None, nothing), batch["input_ids"])


def test_another_vocabulary_is_refused(tiny_masked_lm: Callable[[str], Path], tiny_roberta: Path) -> None:
    with pytest.raises(DiffaugError, match=r"another vocabulary than the encoder .*choose a masked language model"):
        Generator.load(str(tiny_masked_lm("bert")), AutoTokenizer.from_pretrained(tiny_roberta))


def test_the_same_words_with_other_numbers_are_another_vocabulary(
    tiny_masked_lm: Callable[[str], Path], tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_masked_lm("bert"))
    shutil.copytree(tiny_masked_lm("bert"), tmp_path / "other")
    content = json.loads((tmp_path / "other" / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["dog"], vocabulary["fox"] = vocabulary["fox"], vocabulary["dog"]
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(DiffaugError, match=f"{len(tokenizer) - 2} of them the same"):
        Generator.load(str(tmp_path / "other"), tokenizer)


def test_a_model_without_its_head_or_without_weights_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    with pytest.raises(DiffaugError, match=r"the checkpoint lacks cls\.predictions"):
        Generator.load(str(tiny_bert), tokenizer)
    with pytest.raises(DiffaugError, match="does not exist"):
        Generator.load(str(tmp_path / "nowhere"), tokenizer)
