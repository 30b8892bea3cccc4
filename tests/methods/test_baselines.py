"""SimCSE, unsupervised PromptBERT, SBERT and no training: their steps against the procedure carried out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from training_fixtures import pairs_of

from diffaug import Embedder, train
from diffaug.config import load_recipe, recipe_names
from diffaug.data.collate import Collator
from diffaug.errors import DiffaugError
from diffaug.methods.twostage import TwoStage
from diffaug.models.backbone import load_tokenizer
from diffaug.models.config import ModelConfig


def first_token(method: TwoStage, ids: list[int]) -> Tensor:
    template = method.collator.template
    tokens = torch.tensor([[*template.before, *ids, *template.after]])
    return method.encoder.backbone(input_ids=tokens).last_hidden_state[0, 0]


def token_mean(method: TwoStage, ids: list[int]) -> Tensor:
    template = method.collator.template
    tokens = torch.tensor([[*template.before, *ids, *template.after]])
    return method.encoder.backbone(input_ids=tokens).last_hidden_state[0].mean(0)


def at_mask(method: TwoStage, ids: list[int], template: int, gap: int = 0) -> Tensor:
    around = method.collator.templates[template]
    tokens = [*around.before, *ids, *around.after]
    positions = [i + (gap if i >= len(around.before) else 0) for i in range(len(tokens))]
    states = method.encoder.backbone(input_ids=torch.tensor([tokens]), position_ids=torch.tensor([positions]))
    return states.last_hidden_state[0, tokens.index(method.collator.tokenizer.mask_token_id)]


def denoised(method: TwoStage, ids: list[int], template: int) -> Tensor:
    return at_mask(method, ids, template) - at_mask(method, [], template, gap=len(ids))


def info_nce(columns: list[list[Tensor]]) -> Tensor:
    candidates = [z for column in columns[1:] for z in column]
    losses = []
    for i, anchor in enumerate(columns[0]):
        logits = torch.stack([F.cosine_similarity(anchor, other, dim=0) for other in candidates]) / 0.05
        losses.append(-F.log_softmax(logits, dim=0)[i])
    return torch.stack(losses).mean()


def nli(method: TwoStage, batch: Any, vector: Callable[[list[int]], Tensor]) -> Tensor:
    losses = []
    for premise, hypothesis, label in pairs_of(batch):
        u, v = vector(premise), vector(hypothesis)
        assert method.classifier is not None
        losses.append(-F.log_softmax(method.classifier(torch.cat([u, v, (u - v).abs()])), dim=-1)[label])
    return torch.stack(losses).mean()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_unsupervised_simcse_contrasts_the_first_token_behind_the_head(recipe_run: Callable[..., Any]) -> None:
    method, inputs, batches = recipe_run("simcse-unsup")
    sentences = [ids for (ids,) in batches(2)["contrastive"].examples]
    column = [method.projection(first_token(method, ids)) for ids in sentences]
    close(method.losses(*inputs(2), method.represent)["loss"], info_nce([column, column]))
    assert method.encoder.config.head == ()  # dropped at test
    assert method.negatives_per_anchor(inputs(2)[0]) == 7


@torch.no_grad()
def test_supervised_simcse_keeps_its_head(recipe_run: Callable[..., Any], tmp_path: Path) -> None:
    method, inputs, batches = recipe_run("simcse-sup")
    columns = [
        [method.encoder.head(first_token(method, example[k])) for example in batches(2)["contrastive"].examples]
        for k in range(3)
    ]
    close(method.losses(*inputs(2), method.represent)["loss"], info_nce(columns))
    assert method.projection is None
    embedder = Embedder(method.encoder, method.collator.tokenizer)
    embedder.save(tmp_path / "model")
    # What is embedded goes through the head too.
    ids, _ = embedder.collator.ids(["A dog runs."])
    expected = method.encoder.head(first_token(method, ids[0]))
    found = Embedder.from_pretrained(tmp_path / "model").encode("A dog runs.", normalize=False)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


@torch.no_grad()
def test_joint_training_adds_the_cross_entropy_of_pooled_states(recipe_run: Callable[..., Any]) -> None:
    method, inputs, batches = recipe_run("simcse-joint", "stage2.aux_batch_size=6", "stage2.weight=0.5")
    drawn = batches(2)
    column = [method.projection(first_token(method, ids)) for (ids,) in drawn["contrastive"].examples]
    expected_nli = nli(method, drawn["nli"], lambda ids: first_token(method, ids))
    found = method.losses(*inputs(2), method.represent)
    close(found["nli"], expected_nli)
    close(found["loss"], 0.5 * info_nce([column, column]) + 0.1 * expected_nli)


@torch.no_grad()
def test_unsupervised_promptbert_has_a_template_and_a_delta_for_each_view(recipe_run: Callable[..., Any]) -> None:
    method, inputs, batches = recipe_run("promptbert-unsup")
    sentences = [ids for (ids,) in batches(2)["contrastive"].examples]
    columns = [[method.projection(denoised(method, ids, view)) for ids in sentences] for view in (0, 1)]
    close(method.losses(*inputs(2), method.represent)["loss"], info_nce(columns))
    # Guard: the templates differ, in what they say and in where their slot begins.
    first, second = method.collator.templates
    assert first.before != second.before
    assert float((columns[0][0] - columns[1][0]).norm()) > 1e-2
    # At test there is one template, no delta and no head.
    ids = method.collator.ids(["A dog runs."])[0]
    close(method.encoder(method.collator.rows(ids))[0], at_mask(method, ids[0], 0))


@torch.no_grad()
def test_pairs_of_joint_promptbert_are_read_with_the_first_template(recipe_run: Callable[..., Any]) -> None:
    method, inputs, batches = recipe_run("promptbert-sup-joint", "stage2.aux_batch_size=6")
    for stage in (1, 2):
        expected = nli(method, batches(stage)["nli"], lambda ids: at_mask(method, ids, 0))
        close(method.losses(*inputs(stage), method.represent)["nli"], expected)


@torch.no_grad()
@pytest.mark.parametrize(("name", "classes"), [("sbert", 3), ("sbert-2", 2)])
def test_sbert_classifies_token_means(recipe_run: Callable[..., Any], name: str, classes: int) -> None:
    method, inputs, batches = recipe_run(name)
    drawn = batches(1)["nli"]
    close(method.losses(*inputs(1), method.represent)["loss"], nli(method, drawn, lambda ids: token_mean(method, ids)))
    assert method.classifier.out_features == classes
    assert set(range(classes)) == {label for i in range(3) for _, _, label in pairs_of(batches(1, index=i)["nli"])}


def test_three_classes_are_not_to_be_had_from_triplets(recipe_run: Callable[..., Any]) -> None:
    with pytest.raises(DiffaugError, match=r"holds triplets.*data\.nli_classes=2"):
        recipe_run("sbert-2", "data.nli_classes=3")


def test_stages_train_the_roles_they_should(recipe_run: Callable[..., Any]) -> None:
    _, inputs, _ = recipe_run("simcse-sup-joint")
    assert set(inputs(1)[0].learning_rates) == {"backbone", "classifier"}
    assert set(inputs(2)[0].learning_rates) == {"backbone", "projection", "classifier"}
    _, inputs, _ = recipe_run("simcse-sup-unsup", "stage2.frozen=[backbone]")
    assert set(inputs(2)[0].learning_rates) == {"projection"}
    with pytest.raises(DiffaugError, match=r"stage2\.frozen: unknown role 'prefix'; did you mean 'projection'"):
        recipe_run("simcse-unsup", "stage2.frozen=[prefix]")


@pytest.mark.parametrize("pooling", ["cls", "mean", "first-last", "static-last", "last2"])
def test_no_training_is_the_plain_model_with_its_pooling(
    pooling: str, tiny_bert: Path, data_files: dict[str, str], sentences: list[str], tmp_path: Path
) -> None:
    changes = [f"model.backbone={tiny_bert}", f"data.dev={data_files['dev']}", f"data.test={data_files['dev']}"]
    result = train(load_recipe(f"untrained-{pooling}", changes), tmp_path / "run", quiet=True)
    plain = Embedder.from_pretrained(tiny_bert, pooling=pooling.replace("-", "_"))  # type: ignore[arg-type]
    found = Embedder.from_pretrained(result.model).encode(sentences)
    np.testing.assert_allclose(found, plain.encode(sentences), atol=1e-6)
    assert result.scores["test"] == pytest.approx(result.scores["dev"], abs=1e-3)


def test_a_method_refuses_views_it_does_not_have(recipe_run: Callable[..., Any]) -> None:
    with pytest.raises(DiffaugError, match=r"'promptbert' does not support views\.kind=prefix; set it to dropout"):
        recipe_run("promptbert-unsup", "views.kind=prefix")
    with pytest.raises(DiffaugError, match=r"needs model\.template"):
        recipe_run("promptbert-sup", "model.template=null")
    with pytest.raises(DiffaugError, match="trains nothing"):
        recipe_run("untrained-mean", "stage1={steps: 3}")


def test_templates_of_both_views_are_spaced_alike(recipe_run: Callable[..., Any], tiny_roberta: Path) -> None:
    changes = ["model.template=\"This : ' {} ' means [MASK].\"", "model.second_template=\"The '{}' means [MASK].\""]
    with pytest.raises(DiffaugError, match="both templates must have a space"):
        recipe_run("promptbert-unsup", *changes, backbone=tiny_roberta)


def test_recipes_know_the_settings_of_other_backbones() -> None:
    bert, roberta = (
        load_recipe("simcse-unsup", [f"model.backbone={b}"]) for b in ("bert-base-uncased", "roberta-base")
    )
    assert (bert.stage2.batch_size, bert.stage2.learning_rate) == (64, 3e-5)  # type: ignore[union-attr]
    assert (roberta.stage2.batch_size, roberta.stage2.learning_rate) == (512, 1e-5)  # type: ignore[union-attr]
    changes = ["model.backbone=FacebookAI/roberta-base", "stage2.batch_size=32"]
    changed = load_recipe("simcse-joint", changes)  # what the user says goes; what is extended is inherited
    assert (changed.stage2.batch_size, changed.stage2.learning_rate) == (32, 1e-5)  # type: ignore[union-attr]
    for name in recipe_names():
        template = load_recipe(name, ["model.backbone=roberta-base"]).model.template
        assert template in (None, "This sentence : ' {} ' means [MASK].") or name == "quickstart"


# How many tokens a row has at most in the released code of a method, [CLS] and [SEP] included.
RELEASED_LENGTHS = {"simcse": 32, "diffcse": 32, "bert-flow": 64, "sbert-flow": 64, "consert": 64 + 3}


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_long_sentences_are_cut_where_the_releases_cut_them(tiny: Callable[[str], Path], family: str) -> None:
    tokenizer = load_tokenizer(str(tiny(family)))
    text, seen = "the dog runs " * 60, set()
    for name in recipe_names():
        method = next((m for m in RELEASED_LENGTHS if name.split("-")[: m.count("-") + 1] == m.split("-")), None)
        if method is None:
            continue
        seen.add(method)
        limit = load_recipe(name).data.max_length
        collator = Collator(tokenizer, ModelConfig(), max_length=limit)
        rows = collator.rows(collator.ids([text])[0])
        expected = tokenizer(text, truncation=True, max_length=RELEASED_LENGTHS[method])["input_ids"]
        assert rows.input_ids[0].tolist() == expected, name
    assert seen == set(RELEASED_LENGTHS)


def test_sbert_has_the_optimiser_of_sentence_transformers() -> None:
    for name in ("sbert", "sbert-2"):
        recipe = load_recipe(name)
        assert recipe.stage1 is not None
        assert (recipe.stage1.weight_decay, recipe.stage1.warmup, recipe.loop.clip) == (0.01, 0.1, 1.0)
        assert (recipe.loop.adam_epsilon, recipe.loop.adam_bias_correction) == (1e-6, False)
    for name in ("sbert-flow-nli", "sbert-flow-target", "consert-sup-unsup", "consert-sup-joint"):
        assert load_recipe(name).stage1.weight_decay == 0.01  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["simcse-sup", "promptbert-joint", "simcse-sup-unsup", "sbert-2"])
@pytest.mark.parametrize(("labels", "kept"), [("0.1", 4), ("10", 10), ("1.0", 40)])
def test_few_labels_reach_every_method(recipe_run: Callable[..., Any], name: str, labels: str, kept: int) -> None:
    method, inputs, _ = recipe_run(name, f"data.labels={labels}")
    for number in (1, 2):
        if getattr(method.recipe, f"stage{number}") is None:
            continue
        streams = inputs(number)[0].streams
        if "nli" in streams:
            assert len(streams["nli"][0]) == kept, "triplets, of which each gives two pairs"
        if method.recipe.stage2 is not None and method.recipe.stage2.objective == "triplets":
            assert len(streams["contrastive"][0]) == kept
