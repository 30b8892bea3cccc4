"""How far dropout alone moves the two views of a sentence apart: what delta is compared with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import yaml

from diffaug.config import Recipe, ViewSettings, recipe_from_dict
from diffaug.files import atomic_file

DROPOUT_DELTA = "dropout_delta"
"""The name in a run's metrics.jsonl."""
_SENTENCES = 256


def record_dropout_divergence(run: Path) -> None:
    """Add dropout's divergence to the record of a DiffAug run, as measured before its first step.

    The language model is frozen in stage 1, so one measurement holds for all of it.

    Args:
        run: the folder of a run; nothing happens if it has the measurement already.
    """
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text("utf-8").splitlines() if metrics.exists() else []
    if any(DROPOUT_DELTA in json.loads(line) for line in lines):
        return
    recipe = recipe_from_dict(yaml.safe_load((run / "recipe.yaml").read_text("utf-8")), str(run / "recipe.yaml"))
    found = json.dumps({"stage": 1, "step": 0, DROPOUT_DELTA: dropout_divergence(recipe)})
    with atomic_file(metrics) as temporary:
        # In front, where step 0 belongs: a stage's last line says how many steps it took.
        temporary.write_text("".join(f"{line}\n" for line in (found, *lines)), "utf-8")


def dropout_divergence(recipe: Recipe) -> float:
    """The mean distance of a sentence's vectors under two dropout masks.

    Args:
        recipe: of a DiffAug run: its backbone, read with its template but without prefixes, and the sentences that its
            delta is measured on.
    """
    import torch

    from diffaug.data.corpus import Corpus
    from diffaug.embedder import Embedder
    from diffaug.inference.runner import default_device
    from diffaug.losses.metrics import divergence
    from diffaug.methods import method_class
    from diffaug.models.backbone import load_backbone
    from diffaug.models.io.fetch import model_source

    # PromptBERT is DiffAug's encoder without the prefixes.
    plain = replace(recipe, method="promptbert", views=ViewSettings())
    source = model_source(recipe.model.backbone)
    method = method_class(plain.method).build(plain, *load_backbone(source)).to(default_device())
    sentences = [first for first, _ in Corpus(recipe.data, method.collator).positives(_SENTENCES)]
    collator = Embedder(method.encoder, method.collator.tokenizer, device=default_device()).collator
    rows = collator.rows(collator.ids(sentences)[0]).to(default_device())
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    method.train()
    with torch.no_grad(), torch.random.fork_rng(cuda):
        torch.manual_seed(recipe.seed)
        first, second = (method.encoder.represent(rows) for _ in range(2))
        return float(divergence(first.float(), second.float()))
