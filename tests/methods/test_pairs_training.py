"""Training on pairs without hard negatives: the loss by hand, whole runs, and who refuses them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from diffaug import Embedder, train
from diffaug.config import load_recipe
from diffaug.errors import DiffaugError

# What each recipe needs to be told so that it trains on pairs.
TRAINED = {"simcse-sup": (), "promptbert-sup": (), "diffaug-sup": ("stage1=null",)}


@pytest.fixture(scope="module")
def pairs(data_files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The triplets without their hard negatives, under names of another usual form."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    rows = [line.rsplit(",", 1)[0] for line in Path(data_files["nli"]).read_text("utf-8").splitlines()[1:]]
    path.write_text("\n".join(["anchor,positive", *rows]) + "\n", "utf-8")
    return str(path)


def vectors(method: Any, sentences: list[list[int]], view: int, *, less_template: bool) -> Tensor:
    """What is contrasted of each sentence, one after the other: pooled, less the bare template, projected."""
    found = []
    for ids in sentences:
        state = method.encoder.represent(method.collator.rows([ids], [view]))[0]
        if less_template:
            state = state - method.encoder.represent(method.collator.bare_templates([len(ids)], [view]))[0]
        found.append(method.project(state))
    return torch.stack(found)


@torch.no_grad()
@pytest.mark.parametrize("name", TRAINED)
def test_the_loss_is_the_cross_entropy_of_cosines_over_the_temperature(
    name: str, recipe_run: Callable[..., Any], pairs: str
) -> None:
    method, inputs, batches = recipe_run(name, f"data.nli={pairs}", "stage2.temperature=0.07", *TRAINED[name])
    stage, collated = inputs(2)
    examples = batches(2)["contrastive"].examples
    assert {len(example) for example in examples} == {2}
    second_view = 1 if name == "diffaug-sup" else 0
    less_template = method.collator.template.mask_at is not None
    anchors = vectors(method, [anchor for anchor, _ in examples], 0, less_template=less_template)
    positives = vectors(method, [positive for _, positive in examples], second_view, less_template=less_template)
    cosines = F.cosine_similarity(anchors[:, None], positives[None], dim=-1)
    expected = F.cross_entropy(cosines / 0.07, torch.arange(len(examples)))
    found = method.losses(stage, collated, method.represent)
    torch.testing.assert_close(found["loss"], expected, rtol=1e-4, atol=1e-4)
    assert set(found) == {"loss", "contrastive"}
    assert method.negatives_per_anchor(stage) == len(examples) - 1
    assert method.classifier is None
    # Guard: not what is computed when there are hard negatives.
    with_negatives, its_inputs, _ = recipe_run(name, "stage2.temperature=0.07", *TRAINED[name])
    assert with_negatives.negatives_per_anchor(its_inputs(2)[0]) == 2 * len(examples) - 1


@pytest.mark.parametrize("name", TRAINED)
def test_a_whole_run_and_one_that_goes_on_where_it_stopped(
    name: str,
    tiny_bert: Path,
    data_files: dict[str, str],
    pairs: str,
    cut_off: Callable[..., None],
    tmp_path: Path,
) -> None:
    changes = [f"model.backbone={tiny_bert}", f"data.nli={pairs}", f"data.dev={data_files['dev']}", *TRAINED[name]]
    changes += ["data.labels=30", "stage2.steps=5", "stage2.batch_size=8", "stage2.learning_rate=1e-3"]
    recipe = load_recipe(name, [*changes, "loop.eval_every=2", "loop.save_minutes=0"])
    result = train(recipe, tmp_path / "whole", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["negatives_per_anchor"] for line in lines if "negatives_per_anchor" in line] == [7]
    assert {line["stage"] for line in lines} == {2}
    assert np.isfinite(result.scores["dev"])
    assert Embedder.from_pretrained(result.model).encode(["A sentence."]).shape == (1, 32)

    if name != "simcse-sup":  # the state of the others is resumed in tests of their own
        return
    cut_off(recipe, tmp_path / "cut")
    train(recipe, tmp_path / "cut", resume=True, quiet=True)
    first, second = (load_file(tmp_path / folder / "best" / "diffaug.safetensors") for folder in ("whole", "cut"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_three_classes_refuse_them_before_training(
    tiny_bert: Path, data_files: dict[str, str], pairs: str, tmp_path: Path
) -> None:
    changes = [f"model.backbone={tiny_bert}", *(f"data.{key}={path}" for key, path in data_files.items())]
    with pytest.raises(DiffaugError, match=r"pairs\.csv holds positive pairs, which have no neutral pairs"):
        train(load_recipe("sbert", [*changes, f"data.nli={pairs}"]), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_what_reads_sentences_alone_takes_them(recipe_run: Callable[..., Any], pairs: str) -> None:
    _, _, batches = recipe_run("simcse-unsup", f"data.nli={pairs}", "stage2.objective=nli_sentences")
    assert {len(example) for example in batches(2)["contrastive"].examples} == {1}
