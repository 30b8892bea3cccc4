"""The steps of DiffAug against the procedure carried out by hand, sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_fixtures import pairs_of
from transformers import BertConfig, BertModel

from diffaug.data.sampling import Batch
from diffaug.methods.base import StepBatch
from diffaug.methods.diffaug import DiffAug
from diffaug.models.attention import attention_shape
from diffaug.models.config import PrefixConfig
from diffaug.models.views.prefix import ReparametrisedPrefix


def bare_positions(batch: StepBatch) -> Tensor:
    """The position of each bare template's mask token, which comes after the missing sentence."""
    assert batch.templates is not None
    bare = batch.tokens.slice(batch.templates.rows.start, batch.templates.rows.stop)
    assert bare.position_ids is not None
    assert bare.pool_positions is not None
    return bare.position_ids.gather(1, bare.pool_positions.unsqueeze(1)).squeeze(1)


def vector(method: DiffAug, ids: list[int], view: int, gap: int = 0) -> Tensor:
    """The state at the mask token of one sentence under one view, with positions and prefix written out."""
    encoder, template = method.encoder, method.collator.template
    tokens = [*template.before, *ids, *template.after]
    length = method.recipe.views.length
    positions = [2 * length + i + (gap if i >= len(template.before) else 0) for i in range(len(tokens))]
    states = encoder.views.attention(torch.tensor([view]))
    out = encoder.backbone(
        input_ids=torch.tensor([tokens]), position_ids=torch.tensor([positions]), prefix=states
    ).last_hidden_state
    return out[0, tokens.index(method.collator.tokenizer.mask_token_id)]


def denoised(method: DiffAug, ids: list[int], view: int) -> Tensor:
    return vector(method, ids, view) - vector(method, [], view, gap=len(ids))


def batches(method: DiffAug, inputs: Any, number: int) -> Any:
    """The examples behind the collated inputs: drawn again in the same way."""
    from diffaug.data.sampling import BatchSampler

    stage, _ = inputs(number)
    return {name: BatchSampler(e, size, 0).batch(0) for name, (e, size) in stage.streams.items()}


def nli_by_hand(method: DiffAug, batch: Any) -> Tensor:
    through = method.projection if method.recipe.released.stage1_through_projection else nn.Identity()
    losses = []
    for premise, hypothesis, label in pairs_of(batch):
        u, v = through(vector(method, premise, 0)), through(vector(method, hypothesis, 1))
        logits = method.classifier(torch.cat([u, v, (u - v).abs()]))
        losses.append(-F.log_softmax(logits, dim=-1)[label])
    return torch.stack(losses).mean()


def contrastive_by_hand(method: DiffAug, batch: Any) -> Tensor:
    columns = [[method.projection(denoised(method, example[0], 0)) for example in batch.examples]]
    if len(batch.examples[0]) == 1:
        columns.append([method.projection(denoised(method, example[0], 1)) for example in batch.examples])
    for k in range(1, len(batch.examples[0])):
        columns.append([method.projection(denoised(method, example[k], 1)) for example in batch.examples])
    candidates = [z for column in columns[1:] for z in column]
    losses = []
    for i, anchor in enumerate(columns[0]):
        logits = torch.stack([F.cosine_similarity(anchor, other, dim=0) for other in candidates]) / 0.05
        losses.append(-F.log_softmax(logits, dim=0)[i])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("setting", ["sup", "semi", "semi-aux"])
def test_losses_of_both_stages_equal_the_procedure_by_hand(tiny_run: Callable[..., Any], setting: str) -> None:
    method, inputs = tiny_run(setting)
    stage, collated = inputs(1)
    first = method.losses(stage, collated, method.encoder.represent)
    assert set(first) == {"loss", "nli"}
    expected = nli_by_hand(method, batches(method, inputs, 1)["nli"])
    torch.testing.assert_close(first["loss"], expected, rtol=1e-4, atol=1e-5)

    stage, collated = inputs(2)
    second = method.losses(stage, collated, method.encoder.represent)
    drawn = batches(method, inputs, 2)
    expected = contrastive_by_hand(method, drawn["contrastive"])
    torch.testing.assert_close(second["contrastive"], expected, rtol=1e-4, atol=1e-4)
    if setting == "semi-aux":
        expected = expected + 0.1 * nli_by_hand(method, drawn["nli"])
    assert ("nli" in second) == (setting == "semi-aux")
    torch.testing.assert_close(second["loss"], expected, rtol=1e-4, atol=1e-4)


def test_a_batch_counts_triplets_and_encodes_a_premise_once(tiny_run: Callable[..., Any]) -> None:
    _, inputs = tiny_run("semi-aux", stage1={"batch_size": 6}, stage2={"aux_batch_size": 5})
    stage, collated = inputs(1)
    assert stage.streams["nli"][1] == 6
    assert len(collated.tokens) == 6 * 3
    assert collated.tokens.view_ids.tolist() == [0] * 6 + [1] * 12
    assert (collated.pairs.premises, collated.pairs.hypotheses) == (slice(0, 6), slice(6, 18))
    assert collated.pairs.labels.tolist() == [1] * 6 + [0] * 6
    _, collated = inputs(2)
    assert collated.pairs.labels.tolist() == [1] * 5 + [0] * 5


def test_labelled_pairs_stay_pairs(tiny_run: Callable[..., Any], labelled_pairs: str) -> None:
    """Triplets cannot hold every labelled pair: none of them is lost."""
    method, inputs = tiny_run("semi", data={"nli": labelled_pairs})
    stage, collated = inputs(1)
    batch = batches(method, inputs, 1)["nli"]
    assert isinstance(batch, Batch)
    assert batch.labels is not None
    assert len(collated.tokens) == 2 * len(batch.examples)
    found = method.losses(stage, collated, method.encoder.represent)["loss"]
    torch.testing.assert_close(found, nli_by_hand(method, batch), rtol=1e-4, atol=1e-5)


def test_released_projection_is_before_the_classifier_in_both_stages(tiny_run: Callable[..., Any]) -> None:
    method, inputs = tiny_run("semi-aux", released={"stage1_through_projection": True})
    for number in (1, 2):
        found = method.losses(*inputs(number), method.encoder.represent)["nli"]
        expected = nli_by_hand(method, batches(method, inputs, number)["nli"])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_new_layers_start_as_the_release_starts_them(tiny_run: Callable[..., Any]) -> None:
    """As transformers' `init_weights`: weights N(0, initializer_range), biases zero."""
    method, _ = tiny_run("semi-aux")
    std = method.encoder.backbone.config.initializer_range
    for module in (method.encoder.views, method.projection, method.classifier):
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any(), name
            else:
                assert float(parameter.mean()) == pytest.approx(0, abs=4 * std / parameter.numel() ** 0.5), name
                assert float(parameter.std()) == pytest.approx(std, rel=0.2), name


def test_prefixes_of_bert_base_start_short() -> None:
    """The norm that the released initialisation gives a key or value row at BERT-base's shape: 0.17."""
    torch.manual_seed(0)
    shape = attention_shape(BertModel(BertConfig(num_hidden_layers=1)))
    prefix = ReparametrisedPrefix(PrefixConfig(2, 8), shape)
    rows = prefix.keys_and_values().transpose(3, 4).flatten(4)  # (layers, 2, views, length, width)
    assert float(rows.norm(dim=-1).mean()) == pytest.approx(0.17, abs=0.01)


def test_sentence_transformers_classifiers_keep_torchs_initialisation(recipe_run: Callable[..., Any]) -> None:
    for recipe, normal in (("sbert-2", False), ("consert-joint", False), ("simcse-joint", True)):
        method, _, _ = recipe_run(recipe)
        assert (not method.classifier.bias.any()) == normal, recipe


def test_a_bare_template_is_computed_once_for_each_view_and_length(tiny_run: Callable[..., Any]) -> None:
    _, inputs = tiny_run("sup")
    _, collated = inputs(2)
    assert (collated.contrastive.rows, collated.contrastive.columns) == (slice(0, 24), 3)
    assert collated.templates.rows == slice(24, len(collated.tokens))
    positions, views = bare_positions(collated).tolist(), collated.tokens.view_ids[24:].tolist()
    assert len(set(zip(positions, views, strict=True))) == len(positions) < 24
    assert collated.tokens.view_ids[:24].tolist() == [0] * 8 + [1] * 16


def test_without_denoising_there_are_no_bare_templates(tiny_run: Callable[..., Any]) -> None:
    method, inputs = tiny_run("sup", stage2={"denoise": False})
    stage, collated = inputs(2)
    assert len(collated.tokens) == 24
    assert collated.templates is collated.tokens.position_ids is None
    assert torch.isfinite(method.losses(stage, collated, method.encoder.represent)["loss"])


def test_released_denoising_counts_the_prefix(tiny_run: Callable[..., Any]) -> None:
    _, inputs = tiny_run("sup")
    plain = bare_positions(inputs(2)[1])
    _, inputs = tiny_run("sup", released={"denoise_counts_prefix": True})
    assert bare_positions(inputs(2)[1]).tolist() == (plain + 3).tolist()


def test_stages_freeze_and_train_what_they_should(tiny_run: Callable[..., Any]) -> None:
    from diffaug.training.optimizer import build_optimizer, trainable

    for setting, roles in (("sup", 3), ("semi-aux", 4)):
        method, inputs = tiny_run(setting)
        first = trainable(method, inputs(1)[0])
        assert {name.split(".")[0] for name in first} == {"encoder", "classifier"}
        assert not any("backbone" in name for name in first)
        second = trainable(method, inputs(2)[0])
        assert any("backbone" in name for name in second)
        assert any("views" in name for name in second)
        assert any("projection" in name for name in second)
        assert any("classifier" in name for name in second) == (setting == "semi-aux")
        assert len(build_optimizer(method, inputs(2)[0]).param_groups) == roles


def test_negatives_an_anchor_sees(tiny_run: Callable[..., Any]) -> None:
    for setting, expected in (("sup", 15), ("semi", 7)):
        method, inputs = tiny_run(setting)
        assert method.negatives_per_anchor(inputs(2)[0]) == expected
        assert method.negatives_per_anchor(inputs(1)[0]) is None
