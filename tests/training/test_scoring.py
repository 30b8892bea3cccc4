"""Which sentences are judged while a model trains: different ones, and enough of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffaug.config import recipe_from_dict
from diffaug.embedder import Embedder
from diffaug.errors import DiffaugError
from diffaug.losses.metrics import alignment, uniformity
from diffaug.methods import method_class
from diffaug.models.backbone import load_backbone
from diffaug.training.precision import Precision
from diffaug.training.scoring import Scorer

ANIMALS = ["dog", "cat", "horse", "bird", "cow", "fox", "goat", "mouse"]
DIFFERENT = [(f"A {animal} runs.", f"The {animal} is moving") for animal in ANIMALS]


@pytest.fixture
def build(tiny_bert: Path) -> Any:
    """A scorer on some pairs, and the embedder of the same model."""

    def scorer(positives: list[tuple[str, str]]) -> tuple[Scorer, Embedder]:
        recipe = recipe_from_dict({"name": "plain", "method": "simcse", "model": {"backbone": str(tiny_bert)}})
        backbone, tokenizer = load_backbone(str(tiny_bert))
        torch.manual_seed(0)
        method = method_class("simcse").build(recipe, backbone, tokenizer)
        embedder = Embedder(method.encoder, tokenizer, device="cpu")
        return Scorer(method, embedder, None, positives, Precision("fp32", torch.device("cpu"))), embedder

    return scorer


def collapse(embedder: Embedder) -> None:
    """Make every sentence the same vector."""
    with torch.no_grad():
        for parameter in embedder.encoder.backbone.parameters():
            parameter.zero_()
        last = embedder.encoder.backbone.encoder.layer[-1].output.LayerNorm
        last.bias.fill_(1.0)


def test_one_premise_twenty_times_is_no_collapse(build: Any) -> None:
    scorer, _ = build([("A dog runs.", f"The {animal} is moving") for animal in ANIMALS * 3])
    values = scorer().values
    assert list(values) == ["alignment"], "one sentence has no spread"
    assert np.isfinite(values["alignment"])


def test_sentences_that_the_model_cannot_tell_apart_are_one(build: Any) -> None:
    """An uncased model reads them all the same."""
    scorer, _ = build([(text, "The dog is moving") for text in ("A dog runs", "a DOG runs", "A  dog runs") * 4])
    assert list(scorer().values) == ["alignment"]


def test_a_few_sentences_are_too_few_to_judge(build: Any) -> None:
    scorer, embedder = build(DIFFERENT[:7] * 3)
    collapse(embedder)
    assert scorer().values["uniformity"] == pytest.approx(0.0, abs=1e-4), "vacuous: nothing has collapsed"


def test_real_collapse_is_found_among_repeats(build: Any) -> None:
    scorer, embedder = build(DIFFERENT + DIFFERENT[:1] * 20)
    scorer()
    collapse(embedder)
    with pytest.raises(DiffaugError, match="collapsed"):
        scorer()


def test_repeats_do_not_change_the_spread(build: Any) -> None:
    values = build(DIFFERENT + DIFFERENT[:1] * 20)[0]().values
    _, embedder = build(DIFFERENT)
    first, second = (
        torch.from_numpy(embedder.encode([pair[side] for pair in DIFFERENT], show_progress=False)) for side in (0, 1)
    )
    assert values["uniformity"] == pytest.approx(float(uniformity(first)), abs=1e-5)
    repeated = [*range(len(DIFFERENT)), *[0] * 20]
    assert values["alignment"] == pytest.approx(float(alignment(first[repeated], second[repeated])), abs=1e-5)
