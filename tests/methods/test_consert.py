"""ConSERT and SimCSE's synonyms: their steps against the procedure carried out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from diffaug import Embedder
from diffaug.config import load_recipe
from diffaug.errors import DiffaugError
from diffaug.models.views.cutoff import PLAIN
from diffaug.models.views.synonym import SynonymReplacement
from diffaug.training.loop import Loop
from diffaug.training.run import train

WIDTH = 32


def tokens(method: Any, ids: list[int]) -> Tensor:
    template = method.collator.template
    return torch.tensor([[*template.before, *ids, *template.after]])


def layer_mean(method: Any, ids: list[int], *layers: int) -> Tensor:
    hidden = method.encoder.backbone(input_ids=tokens(method, ids), output_hidden_states=True).hidden_states
    return torch.stack([hidden[layer][0].mean(0) for layer in layers]).mean(0)


def nt_xent(first: list[Tensor], second: list[Tensor], temperature: float = 0.1) -> Tensor:
    losses = []
    for own, other in ((first, second), (second, first)):
        for i, anchor in enumerate(own):
            across = [F.cosine_similarity(anchor, z, dim=0) / temperature for z in other]
            within = [F.cosine_similarity(anchor, z, dim=0) / temperature for j, z in enumerate(own) if j != i]
            losses.append(torch.logsumexp(torch.stack(across + within), dim=0) - across[i])
    return torch.stack(losses).mean()


def nli(method: Any, batch: Any) -> Tensor:
    losses = []
    for (premise, hypothesis), label in zip(batch.examples, batch.labels, strict=True):
        u, v = layer_mean(method, premise, -1), layer_mean(method, hypothesis, -1)
        losses.append(-F.log_softmax(method.classifier(torch.cat([u, v, (u - v).abs()])), dim=-1)[label])
    return torch.stack(losses).mean()


class Watched:
    """A step, and what went into the backbone's embeddings and out of them in it."""

    def __init__(self, method: Any, inputs: tuple[Any, Any]) -> None:
        backbone = method.encoder.backbone
        before, behind = [], []
        handles = [
            backbone.embeddings.register_forward_pre_hook(
                lambda _, __, keywords: before.append(keywords["position_ids"]), with_kwargs=True
            ),
            backbone.encoder.register_forward_pre_hook(lambda _, args: behind.append(args[0])),
        ]
        self.losses = method.losses(*inputs, method.represent)
        for handle in handles:
            handle.remove()
        (self.positions,), (self.embeddings,) = before, behind
        self._backbone = backbone

    def mean_of_last_layer(self, row: int, length: int) -> Tensor:
        """What the layers make of the embeddings they were given."""
        return self._backbone.encoder(self.embeddings[row : row + 1, :length]).last_hidden_state[0].mean(0)


@torch.no_grad()
def test_unsupervised_consert_cuts_features_of_one_view_and_shuffles_the_other(recipe_run: Callable[..., Any]) -> None:
    method, inputs, batches = recipe_run("consert-unsup")
    sentences = [tokens(method, ids) for (ids,) in batches(2)["contrastive"].examples]
    step = Watched(method, inputs(2))
    columns: list[list[Tensor]] = [[], []]
    embed = method.encoder.backbone.embeddings
    for i, sentence in enumerate(sentences):
        length = sentence.shape[1]
        cut = step.embeddings[i, :length]
        zero = (cut == 0).all(0)
        assert int(zero.sum()) == int(0.2 * WIDTH)
        torch.testing.assert_close(cut[:, ~zero], embed(input_ids=sentence)[0][:, ~zero])
        assert step.positions[i, :length].tolist() == list(range(length))
        columns[0].append(step.mean_of_last_layer(i, length))
        shuffled = step.positions[8 + i, :length]
        assert sorted(shuffled.tolist()) == list(range(length))
        by_hand = embed(input_ids=sentence, position_ids=shuffled.unsqueeze(0))
        torch.testing.assert_close(step.embeddings[8 + i, :length], by_hand[0])
        columns[1].append(step.mean_of_last_layer(8 + i, length))
    assert any(step.positions[8 + i, :5].tolist() != list(range(5)) for i in range(8))
    expected = nt_xent(*columns)
    torch.testing.assert_close(step.losses["contrastive"], expected, rtol=1e-4, atol=1e-4)
    # The released loss: 0.15 of the sum of both directions.
    torch.testing.assert_close(step.losses["loss"], 0.15 * 2 * expected, rtol=1e-4, atol=1e-4)
    assert method.negatives_per_anchor(inputs(2)[0]) == 14


@torch.no_grad()
def test_joint_consert_adds_the_cross_entropy_of_uncut_pairs(recipe_run: Callable[..., Any]) -> None:
    # A rate at which short sentences lose tokens, too.
    changes = ("stage2.aux_batch_size=6", "views.second={token_cutoff: 0.3}")
    method, inputs, batches = recipe_run("consert-joint", *changes)
    drawn = batches(2)
    step = Watched(method, inputs(2))
    sentences = [ids for (ids,) in drawn["contrastive"].examples]
    second = []
    for i, ids in enumerate(sentences):
        length = tokens(method, ids).shape[1]
        gone = (step.embeddings[8 + i, :length] == 0).all(1)
        assert int(gone.sum()) == int(0.3 * length) > 0
        second.append(step.mean_of_last_layer(8 + i, length))
    expected_nli = nli(method, drawn["nli"])
    expected = nt_xent([layer_mean(method, ids, -1) for ids in sentences], second)
    torch.testing.assert_close(step.losses["nli"], expected_nli, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(step.losses["loss"], 0.15 * expected + expected_nli, rtol=1e-4, atol=1e-4)
    assert method.classifier.out_features == 3


@torch.no_grad()
@pytest.mark.parametrize("name", ["consert-sup-unsup", "consert-sup-joint"])
def test_consert_may_begin_as_sbert(recipe_run: Callable[..., Any], name: str) -> None:
    method, inputs, batches = recipe_run(name, "stage2.aux_batch_size=6", "views.first={feature_cutoff: 0.5}")
    found = method.losses(*inputs(1), method.represent)
    torch.testing.assert_close(found["loss"], nli(method, batches(1)["nli"]), rtol=1e-4, atol=1e-4)
    assert ("nli" in method.losses(*inputs(2), method.represent)) == (name == "consert-sup-joint")


@torch.no_grad()
def test_the_last_two_layers_at_test_and_the_last_in_training(recipe_run: Callable[..., Any]) -> None:
    method, _, _ = recipe_run("consert-unsup")
    ids, _ = method.collator.ids(["A dog runs."])
    rows = method.collator.rows(ids)
    torch.testing.assert_close(method.encoder(rows)[0], layer_mean(method, ids[0], -2, -1))
    plain = replace(rows, view_ids=torch.tensor([PLAIN]))
    torch.testing.assert_close(method.represent(plain)[0], layer_mean(method, ids[0], -1))
    assert not torch.allclose(method.encoder(rows), method.represent(plain), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "on"),
    [("consert-unsup", False), ("consert-joint", True), ("consert-sup-unsup", True), ("consert-sup-joint", True)],
)
def test_dropout_is_off_in_the_unsupervised_recipe_alone(recipe_run: Callable[..., Any], name: str, on: bool) -> None:
    method, inputs, _ = recipe_run(name, "stage2.aux_batch_size=6")
    stage, collated = inputs(2)
    method.begin(stage)
    assert any(isinstance(m, nn.Dropout) and m.p > 0 and m.training for m in method.modules()) == on
    plain = replace(collated.tokens, view_ids=torch.full_like(collated.tokens.view_ids, PLAIN))
    with torch.no_grad():
        assert torch.equal(method.represent(plain), method.represent(plain)) != on


def test_the_recipes_have_the_published_settings() -> None:
    names = ("unsup", "joint", "sup-unsup", "sup-joint")
    recipes = {name: load_recipe(f"consert-{name}") for name in names}
    views = {name: (recipe.views.first, recipe.views.second) for name, recipe in recipes.items()}
    assert views == {
        "unsup": ({"feature_cutoff": 0.2}, {"shuffle": 1.0}),
        "joint": ({}, {"token_cutoff": 0.1}),
        "sup-unsup": ({}, {"feature_cutoff": 0.1}),
        "sup-joint": ({}, {"token_cutoff": 0.1}),
    }
    for name, recipe in recipes.items():
        second = recipe.stage2
        assert second is not None
        joint = name.endswith("joint")
        assert (second.batch_size, second.temperature, second.weight) == (96, 0.1, 0.15 if joint else 0.3)
        assert second.learning_rate == (2e-5 if joint else 5e-7)
        if joint:
            assert (second.epochs, second.steps) == (1, None)
        else:  # a pass over the 89,192 sentences has a last, smaller batch
            assert second.steps == {"unsup": 10, "sup-unsup": 25}[name] * math.ceil(89_192 / 96)
        for stage in (recipe.stage1, second):
            assert stage is None or (stage.weight_decay, stage.warmup) == (0.01, 0.1)
        assert (recipe.loop.adam_epsilon, recipe.loop.adam_bias_correction) == (1e-6, False)
        assert second.aux_weight == (1.0 if joint else 0.0)
        assert (recipe.stage1 is not None) == name.startswith("sup")
        assert (recipe.model.pooling, recipe.model.train_pooling, recipe.data.max_length) == ("last2", "mean", 65)


@torch.no_grad()
def test_all_processes_share_their_negatives(recipe_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process contrasts its own sentences with those of the other, view by view."""
    method, inputs, _ = recipe_run("consert-unsup")
    _, collated = inputs(2)
    own, others = torch.randn(2, 16, WIDTH).unbind()
    rest = iter(others.chunk(2))
    monkeypatch.setattr("diffaug.methods.twostage.gather_rows", lambda view: torch.cat([view, next(rest)]))
    found = method.contrast(own, collated)["contrastive"]
    columns = [[*own.chunk(2)[view], *others.chunk(2)[view]] for view in (0, 1)]
    torch.testing.assert_close(found, nt_xent(*columns), rtol=1e-4, atol=1e-4)


def settings(tiny_bert: Path, data_files: dict[str, str], *more: str) -> list[str]:
    files = [f"data.{name}={path}" for name, path in data_files.items()]
    return [f"model.backbone={tiny_bert}", *files, "data.max_length=16", "stage2.batch_size=8", *more]


def test_a_trained_model_reloads_equal(tiny_bert: Path, data_files: dict[str, str], tmp_path: Path) -> None:
    changes = settings(tiny_bert, data_files, "stage2.steps=4", "stage2.learning_rate=1e-3", "loop.eval_every=4")
    result = train(load_recipe("consert-unsup", changes), tmp_path / "run", quiet=True)
    embedder = Embedder.from_pretrained(result.model)
    assert embedder.encoder.config.pooling == "last2"
    assert embedder.encoder.views is None
    before, after = load_file(tiny_bert / "model.safetensors"), load_file(result.model / "diffaug.safetensors")
    assert any(not torch.equal(before[name.removeprefix("backbone.")], weight) for name, weight in after.items())
    sentences = ["A dog runs.", "The market fell sharply on Monday, and nobody knew why."]
    embedder.save(tmp_path / "again")
    again = Embedder.from_pretrained(tmp_path / "again")
    np.testing.assert_array_equal(embedder.encode(sentences), again.encode(sentences))


def test_a_resumed_run_has_the_same_views(
    tiny_bert: Path, data_files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = ("stage2.steps=6", "stage2.learning_rate=1e-3", "loop.eval_every=6", "loop.save_minutes=0")
    recipe = load_recipe("consert-unsup", settings(tiny_bert, data_files, *every))
    expected = load_file(train(recipe, tmp_path / "whole", quiet=True).model / "diffaug.safetensors")
    step = Loop._step

    def breaks(self: Loop, *args: Any) -> Any:
        if self.progress.step == 3:
            raise RuntimeError("the lights went out")
        return step(self, *args)

    monkeypatch.setattr(Loop, "_step", breaks)
    with pytest.raises(RuntimeError, match="lights"):
        train(recipe, tmp_path / "broken", quiet=True)
    monkeypatch.setattr(Loop, "_step", step)
    torch.manual_seed(99)
    found = load_file(train(recipe, tmp_path / "broken", resume=True, quiet=True).model / "diffaug.safetensors")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("consert-unsup", "model.template='{} means [MASK].' | model.pooling=mask", "does not use a template"),
        ("consert-unsup", "views.same=true", "set views.first and views.second"),
        ("consert-unsup", "views.kind=dropout", "does not support views.kind=dropout"),
        ("consert-unsup", "views.second={shufle: 1.0}", "unknown augmentation 'shufle'; did you mean 'shuffle'"),
        ("consert-unsup", "stage2.objective=triplets", "without hard negatives"),
        ("simcse-synonym", "stage2.objective=triplets", "triplets have their own positives"),
        ("promptbert-unsup", "views.kind=synonym", "does not support views.kind=synonym"),
    ],
)
def test_what_makes_no_sense_is_refused(recipe_run: Callable[..., Any], name: str, change: str, message: str) -> None:
    with pytest.raises(DiffaugError, match=message):
        recipe_run(name, *change.split(" | "))


@torch.no_grad()
@pytest.mark.usefixtures("tiny_wordnet")
@pytest.mark.parametrize("objective", ["unlabelled", "nli_sentences"])
def test_synonyms_are_the_positives_of_simcse(
    recipe_run: Callable[..., Any], data_files: dict[str, str], objective: str
) -> None:
    changes = (f"stage2.objective={objective}", "seed=5", "data.max_length=60")
    method, inputs, batches = recipe_run("simcse-synonym", *changes)
    lines = Path(data_files["unlabelled" if objective == "unlabelled" else "nli"]).read_text("utf-8").splitlines()
    texts = lines if objective == "unlabelled" else [text for line in lines[1:] for text in line.split(",")]
    exchange = SynonymReplacement(seed=5)
    before, after = (method.collator.ids(sentences)[0] for sentences in (texts, [exchange(text) for text in texts]))
    expected = {tuple(sentence): tuple(positive) for sentence, positive in zip(before, after, strict=True)}
    seen = [example for index in range(3) for example in batches(2, index=index)["contrastive"].examples]
    assert all(expected[tuple(sentence)] == tuple(positive) for sentence, positive in seen)
    changed = sum(sentence != positive for sentence, positive in seen)
    assert 0 < changed < len(seen), "some sentences have a synonym, some have none"

    def vector(ids: list[int]) -> Tensor:
        states = method.encoder.backbone(input_ids=tokens(method, ids)).last_hidden_state
        return method.projection(states[0, 0])

    first, second = ([vector(ids) for ids in c] for c in zip(*batches(2)["contrastive"].examples, strict=True))
    logits = torch.stack([torch.stack([F.cosine_similarity(a, b, dim=0) for b in second]) for a in first]) / 0.05
    found = method.losses(*inputs(2), method.represent)["loss"]
    torch.testing.assert_close(found, F.cross_entropy(logits, torch.arange(len(first))), rtol=1e-4, atol=1e-4)
    assert method.negatives_per_anchor(inputs(2)[0]) == 7
