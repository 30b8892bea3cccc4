"""Supervised PromptBERT: its step, and what its saved model computes, against plain transformers models.

The head of BERT is the transform of its masked language model and is applied before the template's share is subtracted;
RoBERTa's is a new Linear + Tanh behind that. Head and subtraction are kept in the saved model.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertForMaskedLM

from diffaug import Embedder, train
from diffaug.config import Recipe, load_recipe, recipe_names
from diffaug.data.read import read_scored_pairs
from diffaug.errors import DiffaugError
from diffaug.hub.card import model_card
from diffaug.models.backbone import load_mlm_transform
from diffaug.training.scoring import spearman

BERT = ('This sentence of "', '" means [MASK].')
ROBERTA = ("This sentence : '", " ' means <mask>.")
TRANSFORM = ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def masked_bert(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with the head of a masked language model, all of its weights random."""
    folder = tmp_path_factory.mktemp("masked") / "bert"
    shutil.copytree(tiny_bert, folder)
    torch.manual_seed(1)
    model = BertForMaskedLM(AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
            parameter.copy_(centre + 0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def mask_state(model: Any, tokenizer: Any, template: tuple[str, str], ids: list[int], gap: int = 0) -> Tensor:
    """The state at the mask token, with the tokens behind the sentence ``gap`` positions further back.

    RoBERTa's positions start at 2.
    """
    first = 2 if model.config.model_type == "roberta" else 0
    before = [tokenizer.cls_token_id, *tokenizer(template[0], add_special_tokens=False)["input_ids"]]
    after = [*tokenizer(template[1], add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
    tokens = [*before, *ids, *after]
    positions = [first + i + (gap if i >= len(before) else 0) for i in range(len(tokens))]
    out = model(input_ids=torch.tensor([tokens]), position_ids=torch.tensor([positions]))
    return out.last_hidden_state[0, tokens.index(tokenizer.mask_token_id)]


def info_nce(columns: list[list[Tensor]]) -> Tensor:
    candidates = torch.stack([vector for column in columns[1:] for vector in column])
    logits = F.cosine_similarity(torch.stack(columns[0]).unsqueeze(1), candidates.unsqueeze(0), dim=-1) / 0.05
    return F.cross_entropy(logits, torch.arange(len(logits)))


def sup_recipe(backbone: Path, files: dict[str, str], *changes: str) -> Recipe:
    settings = [f"model.backbone={backbone}", f"data.nli={files['nli']}", f"data.dev={files['dev']}"]
    short = ["stage2.steps=3", "stage2.batch_size=8", "stage2.learning_rate=1e-3", "loop.eval_every=1"]
    return load_recipe("promptbert-sup", [*settings, *short, "loop.precision=fp32", *changes])


# The head.


def test_the_head_starts_with_the_weights_of_the_checkpoint(recipe_run: Run, masked_bert: Path) -> None:
    saved = load_file(masked_bert / "model.safetensors")
    expected = {name: saved[f"cls.predictions.transform.{name}"] for name in TRANSFORM}
    assert load_mlm_transform(str(masked_bert)).keys() == expected.keys()  # type: ignore[union-attr]
    for place in ("kept", "training"):
        method, _, _ = recipe_run("promptbert-sup", f"model.head={place}", backbone=masked_bert)
        head = method.encoder.head if place == "kept" else method.projection
        for found, weight in zip(head.state_dict().values(), expected.values(), strict=True):
            assert torch.equal(found, weight)
        states = torch.randn(3, 32)
        transform = BertForMaskedLM.from_pretrained(masked_bert).cls.predictions.transform
        torch.testing.assert_close(head(states), transform(states))


def test_the_embedded_encoder_has_the_transform() -> None:
    from diffaug.models.io.fetch import EMBEDDED_MODEL

    assert load_mlm_transform(str(EMBEDDED_MODEL)) is not None


def test_a_checkpoint_without_the_transform(recipe_run: Run, tiny: Callable[[str], Path]) -> None:
    for family in ("bert", "distilbert"):
        method, _, _ = recipe_run("promptbert-sup", backbone=tiny(family))
        assert [(layer.activation, layer.layer_norm) for layer in method.encoder.config.head] == [("tanh", None)]
        assert method.notes == [
            f"{tiny(family)} has no transform of BERT's masked language model: the head is a new Linear + Tanh"
        ]
        with pytest.raises(DiffaugError, match=r"has no transform of BERT's .*; set model\.head_kind=tanh"):
            recipe_run("promptbert-sup", "model.head_kind=mlm", backbone=tiny(family))


def test_a_run_says_that_the_checkpoint_has_no_transform(
    tiny_bert: Path, masked_bert: Path, data_files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, backbone in enumerate((tiny_bert, masked_bert)):
        train(sup_recipe(backbone, data_files, "stage2.steps=1"), tmp_path / str(number))
        said = " ".join(capsys.readouterr().err.split())
        assert ("has no transform of BERT's masked language model" in said) == (backbone == tiny_bert)


def test_other_methods_have_no_such_head(recipe_run: Run) -> None:
    for name in ("simcse-sup", "diffaug-sup"):
        with pytest.raises(DiffaugError, match=r"does not support model\.head_kind=mlm; set it to tanh"):
            recipe_run(name, "model.head_kind=mlm")


# The step.


@torch.no_grad()
def test_the_head_of_bert_comes_before_the_subtraction(recipe_run: Run, masked_bert: Path) -> None:
    method, inputs, batches = recipe_run("promptbert-sup", backbone=masked_bert)
    language_model = BertForMaskedLM.from_pretrained(masked_bert).eval()
    bert, head = language_model.bert, language_model.cls.predictions.transform
    tokenizer = AutoTokenizer.from_pretrained(masked_bert)
    examples = batches(2)["contrastive"].examples

    def states(ids: list[int]) -> tuple[Tensor, Tensor]:
        return mask_state(bert, tokenizer, BERT, ids), mask_state(bert, tokenizer, BERT, [], gap=len(ids))

    pairs = [[states(example[k]) for example in examples] for k in range(3)]
    stage, collated = inputs(2)
    found = method.losses(stage, collated, method.represent)["loss"]
    expected = info_nce([[head(plain) - head(bare) for plain, bare in column] for column in pairs])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    other = info_nce([[head(plain - bare) for plain, bare in column] for column in pairs])
    assert abs(float(other - expected)) > 1e-2  # guard: the order matters
    # One template: sentences of one length share a bare template, whatever their column.
    assert len(collated.tokens) - 24 == len({len(ids) for example in examples for ids in example})
    # Without denoising the head is applied all the same.
    method, inputs, _ = recipe_run("promptbert-sup", "stage2.denoise=false", backbone=masked_bert)
    plain = info_nce([[head(state) for state, _ in column] for column in pairs])
    torch.testing.assert_close(method.losses(*inputs(2), method.represent)["loss"], plain, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_head_of_roberta_comes_behind_the_subtraction(recipe_run: Run, tiny_roberta: Path, tmp_path: Path) -> None:
    backbone = tmp_path / "roberta-base"  # the name chooses its settings
    shutil.copytree(tiny_roberta, backbone)
    method, inputs, batches = recipe_run("promptbert-sup", backbone=backbone)
    assert method.notes == []
    model, tokenizer = AutoModel.from_pretrained(backbone).eval(), AutoTokenizer.from_pretrained(backbone)
    weight, bias = method.encoder.head.state_dict().values()

    def vector(ids: list[int]) -> Tensor:
        plain = mask_state(model, tokenizer, ROBERTA, ids)
        return torch.tanh(F.linear(plain - mask_state(model, tokenizer, ROBERTA, [], gap=len(ids)), weight, bias))

    columns = [[vector(example[k]) for example in batches(2)["contrastive"].examples] for k in range(3)]
    found = method.losses(*inputs(2), method.represent)["loss"]
    torch.testing.assert_close(found, info_nce(columns), rtol=1e-4, atol=1e-4)


def test_head_and_backbone_learn_and_the_table_does_not(recipe_run: Run, masked_bert: Path) -> None:
    from diffaug.training.optimizer import trainable

    method, inputs, _ = recipe_run("promptbert-sup", backbone=masked_bert)
    stage, collated = inputs(2)
    assert dict(stage.learning_rates) == {"backbone": 5e-5, "projection": 5e-5}
    learning = trainable(method, stage)
    method.losses(stage, collated, method.represent)["loss"].backward()
    assert "encoder.denoise.table" not in learning
    heads = [name for name in learning if name.startswith("encoder.head.")]
    assert len(heads) == 4
    assert all(float(learning[name].grad.norm()) > 0 for name in heads)  # type: ignore[union-attr]


# The saved model.


@pytest.fixture(scope="module")
def trained(
    masked_bert: Path, tiny_roberta: Path, data_files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The model of a short run, by the family of its backbone; made once."""
    made: dict[str, Path] = {}

    def model(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp("trained")
            backbone = masked_bert if family == "bert" else folder / "roberta-base"
            if family == "roberta":
                shutil.copytree(tiny_roberta, backbone)
            made[family] = train(sup_recipe(backbone, data_files), folder / "run", quiet=True).model
        return made[family]

    return model


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_head_and_subtraction_are_kept(
    family: str, trained: Callable[[str], Path], tiny: Callable[[str], Path], sentences: list[str]
) -> None:
    """With the weights in the file, by hand: the bare templates are those of the trained backbone."""
    folder = trained(family)
    weights = load_file(folder / "diffaug.safetensors")
    model = AutoModel.from_pretrained(tiny(family), add_pooling_layer=False).eval()
    state = {name.removeprefix("backbone."): t for name, t in weights.items() if name.startswith("backbone.")}
    model.load_state_dict(state)
    dense, *norm = (
        [weights[f"head.0.{part}.weight"], weights[f"head.0.{part}.bias"]]
        for part in (("0", "2") if family == "bert" else ("0",))
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = BERT if family == "bert" else ROBERTA
    expected = []
    for sentence in sentences:
        text = sentence if sentence[-1] in ".?!\"'" else sentence + "."
        ids = tokenizer((" " if family == "roberta" else "") + text, add_special_tokens=False)["input_ids"]
        plain = mask_state(model, tokenizer, template, ids)
        bare = mask_state(model, tokenizer, template, [], gap=len(ids))
        if family == "bert":
            head = [F.layer_norm(F.gelu(F.linear(s, *dense)), (32,), *norm[0], eps=1e-12) for s in (plain, bare)]
            expected.append(head[0] - head[1])
        else:
            expected.append(torch.tanh(F.linear(plain - bare, *dense)))
    found = Embedder.from_pretrained(folder, device="cpu").encode(sentences, normalize=False)
    np.testing.assert_allclose(found, torch.stack(expected).detach().numpy(), atol=2e-5)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_dev_score_is_that_of_the_saved_model(
    family: str, trained: Callable[[str], Path], data_files: dict[str, str]
) -> None:
    model = Embedder.from_pretrained(trained(family), device="cpu")
    pairs = read_scored_pairs(data_files["dev"])
    assert spearman(model, pairs) == pytest.approx(model.provenance.scores["dev"], abs=1e-3)


def test_sentences_up_to_the_longest_are_denoised(trained: Callable[[str], Path]) -> None:
    model = Embedder.from_pretrained(trained("bert"), device="cpu")
    limit = model.collator.max_length
    assert limit is not None
    assert model.encoder.config.denoise.lengths == limit + 1  # type: ignore[union-attr]
    with pytest.warns(UserWarning, match="were truncated"):
        vectors = model.encode(["", "yes " * (limit - 1), "yes " * 500])
    assert np.isfinite(vectors).all()


@torch.no_grad()
def test_other_methods_may_keep_the_subtraction_too(recipe_run: Run) -> None:
    method, _, _ = recipe_run("diffaug-sup", "model.denoise=true")
    method.refresh()
    ids, _ = method.collator.ids(["A dog runs through the park.", "Yes."])
    rows, bare = method.collator.rows(ids), method.collator.bare_templates([len(row) for row in ids])
    expected = method.encoder.represent(rows) - method.encoder.represent(bare)
    torch.testing.assert_close(method.encoder(rows), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(DiffaugError, match="denoising needs a template"):
        recipe_run("simcse-sup", "model.denoise=true")


def test_the_table_needs_an_end(recipe_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffaug.models.denoise.position_limit", lambda backbone: None)
    with pytest.raises(DiffaugError, match=r"'bert' backbone has no maximum length.*; set model\.denoise=false"):
        recipe_run("promptbert-sup")


def test_a_resumed_run_ends_with_the_same_weights(
    masked_bert: Path, data_files: dict[str, str], tmp_path: Path, cut_off: Callable[[Recipe, Path], None]
) -> None:
    recipe = sup_recipe(masked_bert, data_files, "stage2.steps=5", "loop.save_minutes=0")
    cut_off(recipe, tmp_path / "run")
    resumed = train(recipe, tmp_path / "run", resume=True, quiet=True)
    whole = train(recipe, tmp_path / "whole", quiet=True)
    found, expected = (load_file(result.model / "diffaug.safetensors") for result in (resumed, whole))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_card_and_exports(trained: Callable[[str], Path], sentences: list[str], tmp_path: Path) -> None:
    from diffaug.integrations.st_native import export_sentence_transformers

    model = Embedder.from_pretrained(trained("bert"), device="cpu")
    card = model_card(model.encoder, model.provenance)
    assert "activation `gelu`" in card
    assert "behind_head yes" in card
    obstacle = export_sentence_transformers(model, tmp_path / "st")
    assert obstacle == "template, final stop, denoising, norm in the head"
    back = Embedder.from_pretrained(tmp_path / "st", device="cpu")
    np.testing.assert_array_equal(back.encode(sentences), model.encode(sentences))
    assert back.fingerprint() == model.fingerprint()


# The final full stop.


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("promptbert")])
def test_the_full_stop_is_added_at_test_only(
    name: str, recipe_run: Run, data_files: dict[str, str], masked_bert: Path
) -> None:
    method, _, batches = recipe_run(name, backbone=masked_bert)
    tokenizer = AutoTokenizer.from_pretrained(masked_bert)
    unlabelled = Path(data_files["unlabelled"]).read_text("utf-8").splitlines()
    with Path(data_files["nli"]).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    texts = [text for row in [*rows, unlabelled] for text in row]
    assert any(not text.endswith(".") for text in texts)
    as_they_are = {tuple(tokenizer(text, add_special_tokens=False)["input_ids"][:16]) for text in texts}
    drawn = [ids for example in batches(2)["contrastive"].examples for ids in example]
    assert all(tuple(ids) in as_they_are for ids in drawn)
    at_test = Embedder(method.encoder, method.collator.tokenizer, device="cpu").collator
    stop = tokenizer("a dog .", add_special_tokens=False)["input_ids"]
    assert at_test.ids(["a dog"])[0] == [stop]
    assert method.collator.ids(["a dog"])[0] == [stop[:-1]]


def test_training_follows_the_setting_of_inference_where_it_has_none(recipe_run: Run) -> None:
    for setting, in_training, at_test in (
        ((), True, True),
        (("model.final_stop=false",), False, False),
        (("model.final_stop=false", "model.train_final_stop=true"), True, False),
        (("model.train_final_stop=false",), False, True),
    ):
        reset = "model.train_final_stop=null"
        method, _, _ = recipe_run("promptbert-unsup", reset, *setting)
        without, with_stop = method.collator.ids(["a dog", "a dog."])[0]
        assert (without == with_stop) == in_training
        collator = Embedder(method.encoder, method.collator.tokenizer, device="cpu").collator
        without, with_stop = collator.ids(["a dog", "a dog."])[0]
        assert (without == with_stop) == at_test
    # Nothing is added to a sentence that is read without a template.
    method, _, _ = recipe_run("simcse-sup", "model.train_final_stop=true")
    without, with_stop = method.collator.ids(["a dog", "a dog."])[0]
    assert without != with_stop
