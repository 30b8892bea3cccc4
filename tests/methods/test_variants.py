"""DiffAug with other views than two prefixes: who learns, what differs, what is saved."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load, save_file
from test_diffaug import bare_positions
from torch import Tensor, nn
from training_fixtures import pairs_of

from diffaug import Embedder
from diffaug.config import load_recipe
from diffaug.data.sampling import BatchSampler
from diffaug.errors import DiffaugError
from diffaug.methods.diffaug import DiffAug
from diffaug.models.batch import PaddedBatch
from diffaug.models.encoder import Encoder
from diffaug.models.views.hooks import HookedViews
from diffaug.training.optimizer import build_optimizer, trainable

LEARNED = {
    "prefix": {"kind": "prefix", "length": 3},
    "adapter": {"kind": "adapter", "bottleneck": 3},
    "lora": {"kind": "lora", "bottleneck": 3, "scale": 1.5},
}
Run = Callable[..., Any]


def trained_looking(encoder: Encoder) -> Encoder:
    """Give the views some weight: those of adapters and LoRA begin at zero."""
    assert encoder.views is not None
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in encoder.views.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    return encoder


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("same", {"views.same": True}),
        ("fix", {"stage2.frozen": ["views"]}),
        ("prefix-tuning", {"stage2.frozen": ["backbone"]}),
        ("adapter-4", {"views.kind": "adapter", "views.bottleneck": 4}),
        ("adapter-64", {"views.kind": "adapter", "views.bottleneck": 64}),
        ("lora-4", {"views.kind": "lora", "views.bottleneck": 4}),
        ("lora-64", {"views.kind": "lora", "views.bottleneck": 64}),
    ],
)
def test_a_variant_is_the_recipe_with_one_thing_changed(variant: str, changes: dict[str, Any]) -> None:
    expected = load_recipe("diffaug-semi").to_dict()
    for key, value in {**changes, "name": f"diffaug-semi-{variant}"}.items():
        *groups, last = key.split(".")
        place = expected
        for group in groups:
            place = place[group]
        place[last] = value
    assert load_recipe(f"diffaug-semi-{variant}").to_dict() == expected


@pytest.mark.parametrize("kind", sorted(LEARNED))
@pytest.mark.parametrize(
    ("frozen", "learn"),
    [
        ([], {"backbone", "views", "projection"}),
        (["views"], {"backbone", "projection"}),
        (["backbone"], {"views", "projection"}),
    ],
)
def test_who_learns(tiny_run: Run, kind: str, frozen: list[str], learn: set[str]) -> None:
    method, inputs = tiny_run("semi", views=LEARNED[kind], stage2={"frozen": frozen})
    for number, expected in ((1, {"views", "classifier"}), (2, learn)):
        before = {role: copy.deepcopy(module.state_dict()) for role, module in method.roles().items()}
        stage, collated = inputs(number)
        trainable(method, stage)
        optimizer = build_optimizer(method, stage)
        for _ in range(2):
            optimizer.zero_grad()
            method.losses(stage, collated, method.represent)["loss"].backward()
            optimizer.step()
        changed = {
            role
            for role, module in method.roles().items()
            if any(not torch.equal(tensor, before[role][name]) for name, tensor in module.state_dict().items())
        }
        assert changed == expected


@pytest.mark.parametrize("kind", sorted(LEARNED))
@pytest.mark.parametrize("same", [True, False])
def test_the_same_module_makes_the_same_view(tiny_run: Run, kind: str, same: bool) -> None:
    method, inputs = tiny_run("semi", views={**LEARNED[kind], "same": same})
    assert method.encoder.config.views.views == (1 if same else 2)
    trained_looking(method.encoder).eval()
    _, collated = inputs(2)
    with torch.no_grad():
        vectors = method.represent(collated.tokens)
    first, second = vectors[:8], vectors[8:16]
    assert torch.equal(collated.tokens.input_ids[:8], collated.tokens.input_ids[8:16])
    assert torch.allclose(first, second, atol=1e-6) == same


@pytest.mark.parametrize("kind", ["adapter", "lora"])
def test_losses_equal_the_procedure_by_hand(tiny_run: Run, kind: str) -> None:
    method, inputs = tiny_run("semi-aux", views=LEARNED[kind])
    trained_looking(method.encoder).eval()
    stage, collated = inputs(2)
    drawn = {name: BatchSampler(examples, size, 0).batch(0) for name, (examples, size) in stage.streams.items()}
    anchors, positives = (
        [method.projection(denoised(method, ids, view)) for (ids,) in drawn["contrastive"].examples] for view in (0, 1)
    )
    contrastive = []
    for i, anchor in enumerate(anchors):
        logits = torch.stack([F.cosine_similarity(anchor, other, dim=0) for other in positives]) / 0.05
        contrastive.append(-F.log_softmax(logits, dim=0)[i])
    nli = []
    for premise, hypothesis, label in pairs_of(drawn["nli"]):
        u, v = state_at_mask(method, premise, 0), state_at_mask(method, hypothesis, 1)
        nli.append(-F.log_softmax(method.classifier(torch.cat([u, v, (u - v).abs()])), dim=-1)[label])
    expected = torch.stack(contrastive).mean() + 0.1 * torch.stack(nli).mean()
    found = method.losses(stage, collated, method.encoder.represent)["loss"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def state_at_mask(method: DiffAug, ids: list[int], view: int, gap: int = 0) -> Tensor:
    """One sentence under one view. Positions begin at 0: there is no prefix in front."""
    views, template = method.encoder.views, method.collator.template
    assert isinstance(views, HookedViews)
    tokens = torch.tensor([[*template.before, *ids, *template.after]])
    positions = torch.arange(tokens.shape[1]) + gap * (torch.arange(tokens.shape[1]) >= len(template.before))
    with views.applied(PaddedBatch(tokens, view_ids=torch.tensor([view]))):
        out = method.encoder.backbone(input_ids=tokens, position_ids=positions.unsqueeze(0)).last_hidden_state
    found: Tensor = out[0, tokens[0].tolist().index(method.collator.tokenizer.mask_token_id)]
    return found


def denoised(method: DiffAug, ids: list[int], view: int) -> Tensor:
    return state_at_mask(method, ids, view) - state_at_mask(method, [], view, gap=len(ids))


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modernbert", "mpnet"])
@pytest.mark.parametrize("kind", ["adapter", "lora"])
def test_a_saved_model_gives_the_same_vectors(
    tiny_run: Run, tiny: Callable[[str], Path], sentences: list[str], tmp_path: Path, kind: str, family: str
) -> None:
    method, _ = tiny_run("semi", views=LEARNED[kind], model={"backbone": str(tiny(family))})
    model = Embedder(method.encoder, method.collator.tokenizer)
    before = model.encode(sentences)
    trained_looking(method.encoder)
    expected = model.encode(sentences)
    assert np.abs(expected - before).max() > 1e-3, "the views of this test change nothing"
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(Embedder.from_pretrained(tmp_path / "model").encode(sentences), expected)


@pytest.mark.parametrize("kind", ["adapter", "lora"])
def test_weights_of_views_are_neither_made_up_nor_dropped(tiny_run: Run, tmp_path: Path, kind: str) -> None:
    method, _ = tiny_run("semi", views=LEARNED[kind])
    Embedder(method.encoder, method.collator.tokenizer).save(tmp_path / "model")
    path = tmp_path / "model" / "diffaug.safetensors"
    weights = load(path.read_bytes())  # not mapped into memory: the file is about to be written again
    name = next(name for name in weights if name.startswith(f"{kind}."))
    for changed, message in (
        ({n: t for n, t in weights.items() if n != name}, f"lacks {name}"),
        ({**weights, name: weights[name][:1]}, f"has the wrong shape for {name}"),
        ({**weights, f"{kind}.more": torch.zeros(1)}, f"has the unexpected {kind}.more"),
    ):
        save_file({n: t.contiguous() for n, t in changed.items()}, path)
        with pytest.raises(DiffaugError, match=message):
            Embedder.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize("kind", sorted(LEARNED))
def test_a_copy_of_an_encoder_is_one_of_its_own(tiny_run: Run, kind: str) -> None:
    method, inputs = tiny_run("semi", views=LEARNED[kind])
    encoder, rows = trained_looking(method.encoder).eval(), inputs(2)[1].tokens
    with torch.no_grad():
        expected = encoder(rows)
        other = copy.deepcopy(encoder)
        assert torch.equal(other(rows), expected)
        for parameter in other.views.parameters():  # type: ignore[union-attr]
            nn.init.zeros_(parameter)
        assert not torch.allclose(other(rows), expected)
        assert torch.equal(encoder(rows), expected)


@pytest.mark.parametrize("views", [LEARNED["adapter"], LEARNED["lora"], {**LEARNED["prefix"], "same": True}])
def test_stage_1_cannot_end_by_itself_without_two_prefixes(tiny_run: Run, views: dict[str, Any]) -> None:
    with pytest.raises(DiffaugError, match="needs two different prefixes"):
        tiny_run("semi", views=views, stage1={"steps": "auto"})


@pytest.mark.parametrize("kind", ["adapter", "lora"])
def test_an_empty_bottleneck_is_refused(tiny_run: Run, kind: str) -> None:
    with pytest.raises(DiffaugError, match="at least 1"):
        tiny_run("semi", views={"kind": kind, "bottleneck": 0})


def test_released_denoising_counts_no_prefix_where_there_is_none(tiny_run: Run) -> None:
    for kind, more in (("adapter", 0), ("prefix", 3)):
        _, inputs = tiny_run("semi", views=LEARNED[kind])
        plain = bare_positions(inputs(2)[1])
        _, inputs = tiny_run("semi", views=LEARNED[kind], released={"denoise_counts_prefix": True})
        assert bare_positions(inputs(2)[1]).tolist() == (plain + more).tolist()
