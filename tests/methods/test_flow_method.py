"""BERT-flow and SBERT-flow: the loss by hand, who learns, several processes, the saved model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from diffaug import Embedder
from diffaug.config import Recipe, load_recipe, recipe_from_dict
from diffaug.data.corpus import Corpus
from diffaug.data.sampling import BatchSampler
from diffaug.errors import DiffaugError
from diffaug.losses.likelihood import bits_per_dimension
from diffaug.methods.flow import BertFlow
from diffaug.models.backbone import load_backbone
from diffaug.models.flow import Flow
from diffaug.training.optimizer import trainable
from diffaug.training.run import train


@pytest.fixture
def flow_recipe(tiny_bert: Path, data_files: dict[str, str]) -> Callable[..., Recipe]:
    """A recipe of few steps; with `stage1=True` SBERT-flow, else BERT-flow. Keywords change groups of settings."""

    def make(stage1: bool = False, **groups: Any) -> Recipe:
        values: dict[str, Any] = {
            "name": "tiny-flow",
            "method": "flow",
            "model": {"backbone": str(tiny_bert), "pooling": "first_last", "train_pooling": "mean"},
            "data": {**data_files, "max_length": 16},
            "stage1": {"steps": 3, "batch_size": 8, "learning_rate": 1e-3} if stage1 else None,
            "stage2": {
                "objective": "nli_sentences",
                "steps": 4,
                "batch_size": 8,
                "learning_rate": 1e-2,
                "dropout": False,
            },
            "flow": {"levels": 2, "steps": 2, "hidden": 8},
            "loop": {"eval_every": 2},
        }
        for group, changes in groups.items():
            values[group] = None if changes is None else {**values.get(group, {}), **changes}
        return recipe_from_dict(values)

    return make


def build(recipe: Recipe, rank: int = 0, world: int = 1, number: int = 2) -> tuple[BertFlow, Any, Any]:
    """The method at the start of a stage, the stage, and a process's share of its first batch."""
    torch.manual_seed(0)
    method = BertFlow.build(recipe, *load_backbone(recipe.model.backbone))
    stage = next(s for s in method.stages(Corpus(recipe.data, method.collator)) if s.number == number)
    trainable(method, stage)
    method.begin(stage)
    streams = {name: BatchSampler(e, size, 0, rank, world) for name, (e, size) in stage.streams.items()}
    return method, stage, method.collate(stage, {name: s.batch(0) for name, s in streams.items()})


def first_last(method: BertFlow, rows: Any) -> Tensor:
    """(rows, width): (layer 1 + last layer) / 2, the mean over each row's tokens, row by row."""
    vectors = []
    for ids, mask in zip(rows.input_ids, rows.attention_mask, strict=True):
        tokens = ids[mask.bool()][None]
        hidden = method.encoder.backbone(input_ids=tokens, output_hidden_states=True).hidden_states
        vectors.append(((hidden[1] + hidden[-1]) / 2)[0].mean(0))
    return torch.stack(vectors)


def test_the_first_loss_is_that_of_standardised_channels(flow_recipe: Callable[..., Recipe]) -> None:
    """Couplings start without effect, so the flow is x -> (x - mean) / deviation, and its likelihood a textbook one."""
    method, stage, inputs = build(flow_recipe())
    assert inputs.tokens.attention_mask is not None
    assert len(inputs.tokens) == 8  # each sentence once
    found = method.losses(stage, inputs, method.represent)
    with torch.no_grad():
        x = first_last(method, inputs.tokens).double().numpy()
    deviation = x.std(0)
    z = (x - x.mean(0)) / deviation
    nats = 0.5 * (z**2).sum(1) + 0.5 * x.shape[1] * np.log(2 * np.pi) + np.log(deviation).sum()
    assert float(found["loss"].detach()) == pytest.approx(nats.mean() / (x.shape[1] * np.log(2)), rel=1e-4)


def test_the_loss_of_a_moved_flow_is_the_density_of_what_it_maps(flow_recipe: Callable[..., Recipe]) -> None:
    method, stage, inputs = build(flow_recipe())
    method.losses(stage, inputs, method.represent)  # initialises
    with torch.no_grad():
        for parameter in method.flow.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        moved = {name: value.clone() for name, value in method.flow.state_dict().items()}
        found = method.losses(stage, inputs, method.represent)["loss"]
        vectors = first_last(method, inputs.tokens)
    assert all(torch.equal(value, moved[name]) for name, value in method.flow.state_dict().items()), "begun again"
    flow = method.flow.double()
    nats = []
    for x in vectors.double():
        z = flow(x[None])[0][0].detach()
        jacobian = torch.autograd.functional.jacobian(lambda v: flow(v[None])[0][0], x)
        log_normal = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum()
        nats.append(float(-log_normal - torch.linalg.slogdet(jacobian).logabsdet))
    assert float(found) == pytest.approx(np.mean(nats) / (len(x) * np.log(2)), rel=1e-4)


def test_the_recipes_loss_is_the_sum_of_the_means_over_both_sentences_of_the_pairs(
    flow_recipe: Callable[..., Recipe],
) -> None:
    weight = load_recipe("bert-flow-nli").stage2.weight
    method, stage, inputs = build(flow_recipe(stage2={"weight": weight}))
    found = method.losses(stage, inputs, method.represent)
    vectors = method.represent(inputs.tokens)
    halves = [bits_per_dimension(*method.flow(half)) for half in vectors.chunk(2)]
    torch.testing.assert_close(found["loss"], halves[0] + halves[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["bits_per_dimension"], found["loss"] / 2)


def test_only_the_flow_has_gradients_and_the_frozen_backbone_no_dropout(flow_recipe: Callable[..., Recipe]) -> None:
    method, stage, inputs = build(flow_recipe(stage1=True))
    assert stage.learning_rates == {"flow": 1e-2}
    first = method.losses(stage, inputs, method.represent)["loss"]
    first.backward()
    names = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert names == {name for name, _ in method.named_parameters() if name.startswith("encoder.flow.")}
    # In training mode, twice the same: no dropout in the backbone. With it, the vectors would differ.
    assert method.training
    assert torch.equal(method.represent(inputs.tokens), method.represent(inputs.tokens))
    with_dropout, _, _ = build(flow_recipe(stage2={"dropout": True}))
    assert not torch.equal(with_dropout.represent(inputs.tokens), with_dropout.represent(inputs.tokens))


def test_stage_1_reads_the_pooling_of_training_and_stage_2_that_of_inference(
    flow_recipe: Callable[..., Recipe],
) -> None:
    for number, pooling in ((1, "mean"), (2, "first_last")):
        method, _, inputs = build(flow_recipe(stage1=True), number=number)
        method.eval()
        expected = method.encoder.represent(inputs.tokens, pooling=pooling)
        assert torch.equal(method.represent(inputs.tokens), expected)


def test_stage_1_classifies_and_leaves_the_flow_alone(flow_recipe: Callable[..., Recipe]) -> None:
    method, stage, inputs = build(flow_recipe(stage1=True), number=1)
    found = method.losses(stage, inputs, method.represent)
    assert set(found) == {"loss", "nli"}
    found["loss"].backward()
    assert not method.flow.initialised
    assert all(parameter.grad is None for parameter in method.flow.parameters())
    assert any(parameter.grad is not None for parameter in method.encoder.backbone.parameters())
    # Until stage 2 the model is SBERT, which stage 1's evaluations score.
    method.eval()
    assert torch.equal(method.encoder(inputs.tokens), method.encoder.represent(inputs.tokens))


@pytest.mark.parametrize("stage1", [False, True])
def test_a_run_changes_what_it_should_and_the_model_comes_back(
    flow_recipe: Callable[..., Recipe], tiny_bert: Path, tmp_path: Path, sentences: list[str], stage1: bool
) -> None:
    result = train(flow_recipe(stage1=stage1), tmp_path / "run", quiet=True)
    weights, source = load_file(result.model / "diffaug.safetensors"), load_file(tiny_bert / "model.safetensors")
    shared = [name for name in source if f"backbone.{name}" in weights]
    assert shared
    assert all(torch.equal(weights[f"backbone.{name}"], source[name]) for name in shared) != stage1
    assert bool(weights["flow.initialised"])

    loaded = Embedder.from_pretrained(result.model)
    flow = loaded.encoder.flow
    assert flow is not None
    with torch.no_grad():
        rows = loaded.collator.rows(loaded.collator.ids(sentences)[0])
        expected, _ = flow(loaded.encoder.represent(rows))
    torch.testing.assert_close(
        torch.from_numpy(loaded.encode(sentences)), torch.nn.functional.normalize(expected), rtol=1e-4, atol=1e-5
    )
    loaded.save(tmp_path / "again")
    assert np.array_equal(Embedder.from_pretrained(tmp_path / "again").encode(sentences), loaded.encode(sentences))


def test_a_flow_saved_by_an_older_version_gives_the_same_vectors(
    flow_recipe: Callable[..., Recipe], tmp_path: Path, sentences: list[str]
) -> None:
    """Older folders do not say which half continues: it was the second, and couplings had no scale."""
    result = train(flow_recipe(), tmp_path / "run", quiet=True)
    expected = Embedder.from_pretrained(result.model).encode(sentences)
    path = result.model / "diffaug.json"
    description = json.loads(path.read_text("utf-8"))
    assert description["model"]["flow"].pop("continues") == "second"
    assert description["model"]["flow"].pop("output_scale") is False
    path.write_text(json.dumps(description), "utf-8")
    assert np.array_equal(Embedder.from_pretrained(result.model).encode(sentences), expected)


@pytest.mark.parametrize("changes", [{"continues": "first"}, {"output_scale": True}])
def test_the_form_of_the_flow_is_saved(
    flow_recipe: Callable[..., Recipe], tmp_path: Path, sentences: list[str], changes: dict[str, Any]
) -> None:
    result = train(flow_recipe(flow=changes), tmp_path / "run", quiet=True)
    loaded = Embedder.from_pretrained(result.model)
    rows = loaded.collator.rows(loaded.collator.ids(sentences)[0])
    with torch.no_grad():
        vectors = loaded.encoder.represent(rows)
        again = Flow(vectors.shape[1], **{"levels": 2, "steps": 2, "hidden": 8, **changes})
        again.load_state_dict(loaded.encoder.flow.state_dict())
        expected = torch.nn.functional.normalize(again(vectors)[0])
    torch.testing.assert_close(torch.from_numpy(loaded.encode(sentences)), expected, rtol=1e-4, atol=1e-5)


def test_training_raises_the_likelihood(flow_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    train(flow_recipe(stage2={"steps": 30, "batch_size": 32}), tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] - 0.2


def first_step(method: BertFlow, stage: Any, inputs: Any) -> dict[str, Tensor]:
    """The flow after its initialisation, and the gradients and loss of the first step."""
    loss = method.losses(stage, inputs, method.represent)["loss"]
    loss.backward()
    state = {f"state.{name}": value for name, value in method.flow.state_dict().items()}
    gradients = {f"gradient.{n}": p.grad for n, p in method.flow.named_parameters() if p.grad is not None}
    return {**state, **gradients, "loss": loss.detach()}


def test_two_processes_start_from_the_same_flow_and_equal_one(
    flow_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each share of the batch by itself, with the rows of both where a process would ask the other for its rows."""
    recipe = flow_recipe()
    one = first_step(*build(recipe))
    assert any(float(value.abs().max()) > 1e-3 for name, value in one.items() if "gradient" in name), "vacuous"
    shares = [build(recipe, rank, world=2) for rank in (0, 1)]
    rows = torch.cat([method.represent(inputs.tokens) for method, _, inputs in shares])
    monkeypatch.setattr("diffaug.methods.flow.gather_rows", lambda own: rows)
    first, second = (first_step(*share) for share in shares)
    assert first.keys() == second.keys() == one.keys()
    for name, expected in one.items():
        if name.startswith("state."):
            assert torch.equal(first[name], second[name])
            torch.testing.assert_close(first[name], expected, rtol=1e-4, atol=1e-5)
        else:
            torch.testing.assert_close((first[name] + second[name]) / 2, expected, rtol=1e-3, atol=1e-5)
    assert not torch.equal(first["loss"], second["loss"]), "the shares are the same rows"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stage2": None}, "needs a stage2"),
        ({"stage2": {"objective": "triplets"}}, "single sentences"),
        ({"stage2": {"aux_weight": 0.1}}, "trains only the flow"),
        ({"stage2": {"gradient_cache": 4}}, "trains only the flow"),
        ({"model": {"head": "training"}}, "trains only the flow"),
        ({"flow": {"levels": 6}}, "width 32 are too short for a flow of 6 levels"),
        ({"views": {"kind": "prefix"}}, "does not support views.kind=prefix"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    flow_recipe: Callable[..., Recipe], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DiffaugError, match=message):
        build(flow_recipe(**changes))


def test_the_recipes_say_what_their_names_say() -> None:
    for name in ("bert-flow-nli", "bert-flow-target", "sbert-flow-nli", "sbert-flow-target"):
        recipe = load_recipe(name)
        assert recipe.stage2 is not None
        assert (recipe.stage1 is not None) == name.startswith("sbert")
        target = name.endswith("target")
        assert recipe.stage2.objective == ("unlabelled" if target else "nli_sentences")
        assert (recipe.stage2.epochs, recipe.stage2.learning_rate) == ((1.0, 1e-3) if target else (0.15, 2e-5))
        assert recipe.model.pooling == "first_last"
        assert not recipe.stage2.dropout
        assert (recipe.stage2.batch_size, recipe.stage2.weight) == (64, 2.0)
        assert (recipe.stage2.schedule, recipe.stage2.warmup, recipe.stage2.weight_decay) == ("constant", 0.0, 0.01)
        assert (recipe.flow.continues, recipe.flow.output_scale) == ("first", True)
        assert (recipe.loop.adam_epsilon, recipe.loop.adam_bias_correction) == (1e-6, False)
