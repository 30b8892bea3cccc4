"""Which pairs are positive, and the distance of two views."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import embed
from torch import nn

from diffaug.data.records import ScoredPairs, Triplets
from diffaug.embedder import Embedder
from diffaug.evaluation.geometry import GeometryTask, delta
from diffaug.evaluation.tasks import Embeddings
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import load_backbone
from diffaug.models.config import ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.views.prefix import FoldedPrefix


def test_positive_pairs_are_those_above_four_fifths_of_the_scale() -> None:
    pairs = ScoredPairs(list("abcd"), list("efgh"), [4.0, 4.2, 5.0, 1.0])
    task = GeometryTask.from_pairs("x", pairs, 0.0, 5.0)
    assert (task.first, task.second) == (["b", "c"], ["f", "g"])
    assert set(task.sentences()) == set("abcdefgh")
    task = GeometryTask.from_triplets("x", Triplets(["a"], ["b"], ["c"]))
    assert (task.first, task.second, set(task.sentences())) == (["a"], ["b"], set("abc"))


def test_measures_against_their_definitions() -> None:
    pairs = ScoredPairs(["a b", "c", "d e"], ["a", "c d", "f"], [5.0, 4.5, 1.0])
    task = GeometryTask.from_pairs("x", pairs, 0.0, 5.0)
    sentences = list(dict.fromkeys(task.sentences()))
    vectors = embed(sentences).astype(np.float32)
    found = task.measure(Embeddings(sentences, vectors), None)
    unit = dict(zip(sentences, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), strict=True))
    aligned = [((unit["a b"] - unit["a"]) ** 2).sum(), ((unit["c"] - unit["c d"]) ** 2).sum()]
    others = [(unit[a], unit[b]) for i, a in enumerate(sentences) for b in sentences[:i]]
    assert found.alignment == pytest.approx(np.mean(aligned), abs=1e-5)
    uniform = np.log(np.mean([np.exp(-2 * ((a - b) ** 2).sum()) for a, b in others]))
    assert found.uniformity == pytest.approx(uniform, abs=1e-5)
    assert found.anisotropy == pytest.approx(np.mean([a @ b for a, b in others]), abs=1e-5)
    assert (found.sentences, found.positives, found.delta) == (6, 2, None)


def test_delta_is_the_mean_distance_of_the_views(tiny_bert: Path, sentences: list[str]) -> None:
    backbone, tokenizer = load_backbone(str(tiny_bert))
    config = ModelConfig(prefix=PrefixConfig(length=3))
    assert config.prefix is not None
    prefix = FoldedPrefix(config.prefix, attention_shape(backbone))
    torch.manual_seed(0)
    nn.init.normal_(prefix.blocks)
    embedder = Embedder(Encoder(backbone, config, prefix), tokenizer, device="cpu")
    apart = []
    for sentence in sentences:
        ids, _ = embedder.collator.ids([sentence])
        with torch.no_grad():
            first, second = (embedder.encoder.represent(embedder.collator.rows(ids, [view])) for view in (0, 1))
        apart.append(float((first - second).norm()))
    assert min(apart) > 1e-3
    assert delta(embedder, sentences) == pytest.approx(np.mean(apart), rel=1e-4)


def test_a_model_without_views_has_no_delta(tiny_bert: Path) -> None:
    assert delta(Embedder.from_pretrained(tiny_bert, device="cpu"), ["a"]) is None
