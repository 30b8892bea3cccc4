"""DiffCSE: its step against the procedure carried out by hand, and what it leaves behind."""

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
from transformers import AutoModelForMaskedLM

import diffaug.methods.diffcse as module
from diffaug import Embedder, train
from diffaug.config import load_recipe
from diffaug.errors import DiffaugError
from diffaug.losses.replaced import choose_masked
from diffaug.models.backbone import load_backbone
from diffaug.models.io.fetch import EMBEDDED_MODEL


@pytest.fixture
def diffcse(recipe_run: Callable[..., Any], tiny_masked_lm: Callable[[str], Path]) -> Callable[..., Any]:
    """As `recipe_run`, with a generator of another family than the encoder."""

    def build(*changes: str) -> Any:
        return recipe_run("diffcse", f"replaced.generator={tiny_masked_lm('distilbert')}", *changes)

    return build


@pytest.fixture
def seen_masks(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The masks of every step."""
    seen: list[Tensor] = []

    def watched(candidates: Tensor, rate: float) -> Tensor:
        seen.append(choose_masked(candidates, rate))
        return seen[-1]

    monkeypatch.setattr(module, "choose_masked", watched)
    return seen


def projected(projector: torch.nn.Sequential, vectors: np.ndarray) -> np.ndarray:
    first, norm, _, second, _ = projector
    hidden = vectors @ first.weight.numpy().T
    hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5) * norm.weight.numpy() + norm.bias.numpy()
    out = np.maximum(hidden, 0) @ second.weight.numpy().T
    return (out - out.mean(0)) / np.sqrt(out.var(0) + 1e-5)


def contrast(anchors: np.ndarray, positives: np.ndarray) -> float:
    losses = []
    for i, anchor in enumerate(anchors):
        cosines = [anchor @ p / np.linalg.norm(anchor) / np.linalg.norm(p) for p in positives]
        losses.append(np.log(np.sum(np.exp(np.array(cosines) / 0.05))) - cosines[i] / 0.05)
    return float(np.mean(losses))


@torch.no_grad()
def test_the_step_by_hand(
    diffcse: Callable[..., Any], seen_masks: list[Tensor], tiny_masked_lm: Callable[[str], Path]
) -> None:
    method, inputs, batches = diffcse("replaced.weight=0.7")
    stage, collated = inputs(2)
    torch.manual_seed(5)
    found = method.losses(stage, collated, method.represent)

    template = method.collator.template
    sentences = [[*template.before, *ids, *template.after] for (ids,) in batches(2)["contrastive"].examples] * 2
    backbone = method.encoder.backbone
    states = [backbone(input_ids=torch.tensor([ids])).last_hidden_state[0, 0] for ids in sentences]
    z = projected(method.projection, torch.stack(states).double().numpy())
    assert float(found["contrastive"]) == pytest.approx(contrast(z[:8], z[8:]), rel=1e-3)

    generator = AutoModelForMaskedLM.from_pretrained(tiny_masked_lm("distilbert")).eval()
    special = method.collator.tokenizer.all_special_ids
    (masks,) = seen_masks
    losses, replaced = [], 0
    for ids, vector, mask in zip(sentences, z, masks.tolist(), strict=True):
        assert not any(mask[i] for i in range(len(mask)) if i >= len(ids) or ids[i] in special)
        hidden = [method.collator.tokenizer.mask_token_id if mask[i] else token for i, token in enumerate(ids)]
        scores = generator(input_ids=torch.tensor([hidden])).logits[0]
        scores[:, special] = -torch.inf
        edited = [int(scores[i].argmax()) if mask[i] else token for i, token in enumerate(ids)]
        layers = method.discriminator.backbone
        tokens = layers.embeddings(input_ids=torch.tensor([edited]))
        tokens[0, 0] = torch.from_numpy(vector).float()
        for layer in layers.encoder.layer:
            tokens = layer(tokens)
        logits = F.log_softmax(method.discriminator.classifier(tokens[0]), dim=-1)
        losses += [-float(logits[i, int(edited[i] != ids[i])]) for i in range(len(ids))]
        replaced += sum(a != b for a, b in zip(edited, ids, strict=True))
    assert replaced > 10, "vacuous: the generator changed nothing"
    assert float(found["replaced"]) == pytest.approx(np.mean(losses), rel=1e-3)
    assert float(found["loss"]) == pytest.approx(float(found["contrastive"]) + 0.7 * float(np.mean(losses)), rel=1e-3)


def test_both_copies_have_masks_of_their_own(diffcse: Callable[..., Any], seen_masks: list[Tensor]) -> None:
    method, inputs, _ = diffcse()
    stage, collated = inputs(2)
    method.losses(stage, collated, method.represent)
    method.losses(stage, collated, method.represent)
    (first, second), (again, _) = seen_masks[0].chunk(2), seen_masks[1].chunk(2)
    assert not torch.equal(first, second)
    assert not torch.equal(first, again)


def test_what_learns_from_the_detection(diffcse: Callable[..., Any]) -> None:
    method, inputs, _ = diffcse()
    stage, collated = inputs(2)
    assert set(stage.learning_rates) == {"backbone", "projection", "discriminator"}
    method.losses(stage, collated, method.represent)["replaced"].backward()
    for role in ("backbone", "projection", "discriminator"):
        assert any(p.grad is not None and bool(p.grad.any()) for p in method.roles()[role].parameters()), role
    # Frozen, and no part of the state: it is read from its own folder again.
    assert not any("generator" in name for name in method.state_dict())
    assert not any(p.requires_grad for p in method.generator._model.parameters())
    assert not method.train().generator._model.training


def test_semi_supervised_and_triplets(diffcse: Callable[..., Any], seen_masks: list[Tensor]) -> None:
    method, inputs, _ = diffcse("stage2.aux_weight=0.5", "stage2.aux_batch_size=6")
    found = method.losses(*inputs(2), method.represent)
    expected = found["contrastive"] + 0.005 * found["replaced"] + 0.5 * found["nli"]
    torch.testing.assert_close(found["loss"], expected)
    assert len(seen_masks[-1]) == 16, "NLI pairs take no part in the detection"
    method, inputs, _ = diffcse("stage2.objective=triplets")
    method.losses(*inputs(2), method.represent)
    assert len(seen_masks[-1]) == 24


def test_other_backbones_bring_their_generator() -> None:
    assert load_recipe("diffcse").replaced.generator == "distilbert-base-uncased"
    for backbone, generator in (("roberta-base", "distilroberta-base"), ("embedded", "embedded")):
        assert load_recipe("diffcse", [f"model.backbone={backbone}"]).replaced.generator == generator


def test_the_embedded_encoder_fills_in_for_itself(data_files: dict[str, str]) -> None:
    recipe = load_recipe("diffcse", ["model.backbone=embedded", f"data.unlabelled={data_files['unlabelled']}"])
    method = module.DiffCSE.build(recipe, *load_backbone(str(EMBEDDED_MODEL)))
    row = torch.tensor([method.collator.tokenizer("the capital of france is paris.")["input_ids"]])
    masked = torch.zeros_like(row, dtype=torch.bool)
    masked[0, 3] = True
    assert torch.equal(method.generator.fill(row, None, masked), row)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("replaced.generator=null", "needs replaced.generator"),
        ("replaced.generator=embedded", "another vocabulary than the encoder"),
        ("replaced.mask_rate=0", "mask_rate must be above 0 and at most 1, got 0"),
        ("model.head=kept", "set model.template=null and model.head=training"),
        ("views.kind=prefix", "does not support views.kind=prefix"),
    ],
)
def test_settings_that_do_not_fit_are_refused(diffcse: Callable[..., Any], change: str, message: str) -> None:
    with pytest.raises(DiffaugError, match=message):
        diffcse(change)


@pytest.fixture
def recipe(tiny_bert: Path, tiny_masked_lm: Callable[[str], Path], data_files: dict[str, str]) -> Any:
    changes = [f"model.backbone={tiny_bert}", f"replaced.generator={tiny_masked_lm('bert')}", "stage2.steps=5"]
    changes += ["stage2.batch_size=8", "stage2.learning_rate=1e-3", "loop.eval_every=2", "loop.save_minutes=0"]
    changes += [f"data.unlabelled={data_files['unlabelled']}", f"data.dev={data_files['dev']}"]
    return load_recipe("diffcse", changes)


def test_an_interrupted_run_ends_with_the_same_bits(recipe: Any, cut_off: Callable[..., None], tmp_path: Path) -> None:
    train(recipe, tmp_path / "whole", quiet=True)
    cut_off(recipe, tmp_path / "cut")
    kept = max((tmp_path / "cut" / "checkpoints").iterdir())
    names = {name.split(".")[1] for name in load_file(kept / "state.safetensors") if name.startswith("model.")}
    assert names == {"encoder", "projection", "discriminator"}
    train(recipe, tmp_path / "cut", resume=True, quiet=True)

    folders = [tmp_path / "whole", tmp_path / "cut"]
    first, second = (load_file(folder / "best" / "diffaug.safetensors") for folder in folders)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    metrics = [(folder / "metrics.jsonl").read_text() for folder in folders]
    assert metrics[0] == metrics[1]
    assert any("replaced" in json.loads(line) for line in metrics[0].splitlines())


def test_the_saved_model_is_a_plain_encoder(recipe: Any, tmp_path: Path, sentences: list[str]) -> None:
    result = train(recipe, tmp_path / "run", quiet=True)
    weights = load_file(result.model / "diffaug.safetensors")
    assert all(name.startswith("backbone.") for name in weights)
    embedder = Embedder.from_pretrained(result.model, device="cpu")
    assert embedder.encoder.config.pooling == "cls"
    backbone, tokenizer = load_backbone(recipe.model.backbone)
    backbone.load_state_dict({name.removeprefix("backbone."): tensor for name, tensor in weights.items()})
    with torch.no_grad():
        expected = [
            backbone.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 0] for text in sentences
        ]
    found = embedder.encode(sentences, normalize=False)
    np.testing.assert_allclose(found, torch.stack(expected).numpy(), atol=1e-5)


def test_the_projection_starts_like_a_layer_of_the_backbone(diffcse: Callable[..., Any]) -> None:
    method, _, _ = diffcse()
    deviation = method.encoder.backbone.config.initializer_range
    for layer in (method.projection[0], method.projection[3]):
        assert float(layer.weight.detach().std()) == pytest.approx(deviation, rel=0.1)
