"""The side of `benchmarks/train.py` that stands for the released code computes what ours computes."""

from __future__ import annotations

import torch
from released_way import ReleasedWay
from train import Bench

from diffaug.data.sampling import Batch


@torch.no_grad()
def test_its_vectors_are_ours() -> None:
    bench = Bench("mini", 8, 12, "cpu", batches=1)
    method, batch = bench.method("diffaug-sup").eval(), bench.batches[0]
    stage = bench.stage(method, 2)
    inputs = method.collate(stage, {"contrastive": Batch([tuple(map(list, example)) for example in batch])})
    vectors = method.represent(inputs.tokens)
    assert inputs.contrastive is not None
    assert inputs.templates is not None
    sentences, bare = vectors[inputs.contrastive.rows], vectors[inputs.templates.rows]
    released = ReleasedWay(method.encoder, method.collator.template)
    found = released(**released.collate(list(zip(*batch, strict=True)), bench.device))
    assert torch.allclose(found, sentences - bare[inputs.templates.index], atol=1e-5)
