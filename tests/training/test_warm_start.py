"""Training that starts from a finished embedding model, of this library or of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from diffaug import DiffaugError, Embedder, load_recipe, train
from diffaug.config import Recipe
from diffaug.integrations.st_native import export_sentence_transformers
from diffaug.methods import method_class
from diffaug.models.config import ModelConfig, PrefixConfig
from diffaug.models.encoder import Encoder
from diffaug.models.io.start import load_start
from diffaug.models.views.build import build_views

st = pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*sentences were truncated")


@pytest.fixture(scope="module")
def st_folder(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with cls pooling, two dense layers, normalisation, a limit and prompts, one of them by default."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(5)
    modules = [
        Transformer(str(tiny_bert), max_seq_length=20),
        Pooling(32, "cls"),
        Dense(32, 16, activation_function=nn.Tanh()),
        Dense(16, 12, bias=False, activation_function=nn.Identity()),
        Normalize(),
    ]
    prompts = {"query": "find: ", "passage": "text: "}
    model = st.SentenceTransformer(modules=modules, device="cpu", prompts=prompts, default_prompt_name="query")
    folder = tmp_path_factory.mktemp("st") / "model"
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture
def warm(make_recipe: Callable[..., Recipe]) -> Callable[..., Recipe]:
    """A recipe of the diffaug method that keeps everything of a model."""

    def make(folder: Path, **groups: dict[str, Any]) -> Recipe:
        model = {
            "backbone": str(folder),
            "pooling": "auto",
            "template": None,
            "head": "none",
            **groups.pop("model", {}),
        }
        return make_recipe("sup", model=model, **groups)

    return make


def test_an_untouched_model_gives_the_vectors_of_sentence_transformers(
    st_folder: Path, sentences: list[str], data_files: dict[str, str], tmp_path: Path
) -> None:
    changes = [f"model.backbone={st_folder}", "model.pooling=auto", f"data.dev={data_files['dev']}"]
    run = train(load_recipe("untrained-mean", changes), tmp_path / "run", quiet=True)
    expected = st.SentenceTransformer(str(st_folder), device="cpu").encode(sentences)
    assert expected.shape[1] == 12
    saved = Embedder.from_pretrained(run.model, device="cpu")
    np.testing.assert_allclose(saved.encode(sentences, normalize=False), expected, atol=1e-6)
    assert export_sentence_transformers(saved, tmp_path / "back") is None
    back = st.SentenceTransformer(str(tmp_path / "back"), device="cpu")
    np.testing.assert_allclose(back.encode(sentences), expected, atol=1e-6)
    for name in ("query", "passage"):
        original = st.SentenceTransformer(str(st_folder), device="cpu").encode(sentences, prompt_name=name)
        np.testing.assert_allclose(back.encode(sentences, prompt_name=name), original, atol=1e-6)


def test_training_keeps_and_trains_every_part(st_folder: Path, warm: Callable[..., Recipe], tmp_path: Path) -> None:
    run = train(warm(st_folder, model={"head": "training"}), tmp_path / "run", quiet=True)
    before, after = load_start(str(st_folder)).finished, Embedder.from_pretrained(run.model, device="cpu").encoder
    assert before is not None
    assert after.config == replace(before.config, prefix=PrefixConfig(2, 3))
    assert [tuple(p.shape) for p in after.head.parameters()] == [(16, 32), (16,), (12, 16)]
    for old, new in zip(before.head.parameters(), after.head.parameters(), strict=True):
        difference = float((old - new).abs().max().detach())
        assert 0 < difference < 0.1, "the layers are trained, not new"


def test_a_recipe_with_its_own_pooling_and_template_keeps_the_rest(
    st_folder: Path, warm: Callable[..., Recipe]
) -> None:
    recipe = warm(st_folder, model={"pooling": "mean"})
    config = method_class("diffaug").build(recipe, *load_start(str(st_folder))).encoder.config
    assert (config.pooling, config.normalize, config.prompt, len(config.head)) == ("mean", True, "find: ", 2)
    recipe = warm(st_folder, model={"pooling": None, "template": 'A "{}" means [MASK].'})
    with pytest.raises(DiffaugError, match=r"prompt 'find: ' .* cannot be combined with a template"):
        method_class("diffaug").build(recipe, *load_start(str(st_folder)))


def test_training_goes_on_from_our_own_model(
    make_recipe: Callable[..., Recipe], warm: Callable[..., Recipe], tmp_path: Path
) -> None:
    first = train(make_recipe(), tmp_path / "first", quiet=True).model
    weights = load_file(first / "diffaug.safetensors")
    start = load_start(str(first))
    assert start.finished is not None
    torch.testing.assert_close(start.finished.views.blocks.detach(), weights["prefix.blocks"])

    stages = {}
    for again in (False, True):
        recipe = warm(first, stage1={"again": again}, stage2={"learning_rate": 0.0})
        run = train(recipe, tmp_path / f"again {again}", quiet=True)
        metrics = (tmp_path / f"again {again}" / "metrics.jsonl").read_text().splitlines()
        stages[again] = {json.loads(line)["stage"] for line in metrics}
        after = load_file(run.model / "diffaug.safetensors")
        assert json.loads((run.model / "diffaug.json").read_text())["model"]["template"] is not None
        assert torch.equal(after["prefix.blocks"], weights["prefix.blocks"]) is not again
    assert stages == {False: {2}, True: {1, 2}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"views": {"length": 4}},
            r"has prefix views \(views 2, length 3\), but .* prefix views \(views 2, length 4\)",
        ),
        ({"views": {"kind": "adapter"}}, "has prefix views .* adapter views"),
        (
            {"method": "simcse", "views": {"kind": "dropout"}},
            r"has prefix views .*method simcse\) has no learned views",
        ),
    ],
)
def test_what_cannot_be_kept_is_an_error(
    changes: dict[str, Any],
    message: str,
    make_recipe: Callable[..., Recipe],
    warm: Callable[..., Recipe],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    backbone, tokenizer, _ = load_start(make_recipe().model.backbone)
    config = ModelConfig("mean", prefix=PrefixConfig(2, 3))
    Embedder(Encoder(backbone, config, build_views(config, backbone)), tokenizer).save(folder)
    method = changes.pop("method", "diffaug")
    recipe = replace(warm(folder, **changes), method=method)
    with pytest.raises(DiffaugError, match=message):
        train(recipe, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_a_run_names_its_model(
    warm: Callable[..., Recipe], tmp_path: Path, make_recipe: Callable[..., Recipe]
) -> None:
    train(make_recipe(stage2={"steps": 1}, stage1={"steps": 1}), tmp_path / "run", quiet=True)
    with pytest.raises(DiffaugError, match=r"folder of a run; load its model: .*run/best"):
        train(warm(tmp_path / "run"), tmp_path / "next", quiet=True)
