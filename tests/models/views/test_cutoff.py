"""ConSERT's views: what is cut, how much of it, and whom it leaves alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from diffaug.errors import DiffaugError
from diffaug.models.attention import attention_shape
from diffaug.models.backbone import first_position, load_backbone
from diffaug.models.batch import PaddedBatch
from diffaug.models.config import ModelConfig
from diffaug.models.encoder import Encoder
from diffaug.models.views.cutoff import AUGMENTATIONS, PLAIN, Cutoff, _chosen
from diffaug.training.execution.gradient_cache import GradientCache

LENGTHS = [21, 10, 9, 2]
WIDTH = 32
ALL = {"token_cutoff": 0.3, "feature_cutoff": 0.2, "element_dropout": 0.1, "shuffle": 1.0}
# Every token of these attends to every other, whatever their distance.
FULL_ATTENTION = ["bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert"]


@pytest.fixture
def bert(tiny_bert: Path) -> PreTrainedModel:
    return load_backbone(str(tiny_bert))[0].eval()


@pytest.fixture
def rows() -> PaddedBatch:
    """Four sentences, all in the first view, padded to the longest."""
    torch.manual_seed(0)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    ids = torch.randint(5, 100, mask.shape)
    return PaddedBatch(ids, mask, view_ids=torch.zeros(len(LENGTHS), dtype=torch.long))


def embeddings(backbone: PreTrainedModel, view: Mapping[str, float], rows: PaddedBatch) -> tuple[Tensor, Tensor]:
    """The embedding layer's output (rows, length, width), as it is and as the first view has it."""
    module = Cutoff(backbone, [view, {}])
    found = []
    for run in (replace(rows, view_ids=None), rows):
        with module.applied(run) as extra, torch.no_grad():
            out = backbone(rows.input_ids, rows.attention_mask, output_hidden_states=True, **extra)
        found.append(out.hidden_states[0])
    return found[0], found[1]


@pytest.mark.parametrize(("rate", "expected"), [(0.1, [2, 1, 0, 0]), (0.7, [14, 7, 6, 1])])
def test_token_cutoff_takes_whole_tokens(
    bert: PreTrainedModel, rows: PaddedBatch, rate: float, expected: list[int]
) -> None:
    ever_cut = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.bool)
    for seed in range(60):
        torch.manual_seed(seed)
        plain, cut = embeddings(bert, {"token_cutoff": rate}, rows)
        gone = (cut == 0).all(2)
        assert gone.sum(1).tolist() == expected
        assert torch.equal(cut[~gone], plain[~gone])
        ever_cut |= gone
    assert rows.attention_mask is not None
    # [CLS] and [SEP] take part like any other token, padding does not.
    able = torch.tensor(expected) > 0
    assert torch.equal(ever_cut[able], rows.attention_mask.bool()[able])


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert"])
def test_rows_end_to_end_are_cut_like_padded_ones(
    tiny: Callable[[str], Path], rows: PaddedBatch, family: str, augmentation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load_backbone(str(tiny(family)))[0]
    attention_shape(backbone)
    encoder = Encoder(backbone, ModelConfig(pooling="mean"), Cutoff(backbone, [{augmentation: 0.5}, {}])).eval()
    # Padded to what packed rows are rounded up to, every draw from the same seed: the real rows have the same numbers.
    assert rows.attention_mask is not None
    ids, mask = (F.pad(tensor, (0, 32 - max(LENGTHS))) for tensor in (rows.input_ids, rows.attention_mask))
    padded = PaddedBatch(ids, mask, view_ids=torch.tensor([0, 1, 0, PLAIN]))
    draw, seed = torch.rand, torch.Generator()
    monkeypatch.setattr(torch, "rand", lambda shape, **_: draw(shape, generator=seed.manual_seed(5)))
    wanted = encoder.represent(padded)
    found = encoder.represent(encoder.pack(padded))[: len(LENGTHS)]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    changed = (wanted - encoder.represent(replace(padded, view_ids=None))).norm(dim=1) > 1e-3
    assert changed[[0, 1, 3]].tolist() == [True, False, False]


@pytest.mark.parametrize(("rate", "of", "expected"), [(0.53, 100, 53), (0.2, 768, 153), (0.1, 9, 0), (1.0, 7, 7)])
def test_rates_are_rounded_down_but_not_by_float32(rate: float, of: int, expected: int) -> None:
    assert int(_chosen(torch.ones(1, of, dtype=torch.bool), torch.tensor([rate])).sum()) == expected


def test_feature_cutoff_takes_the_same_columns_of_all_tokens(bert: PreTrainedModel, rows: PaddedBatch) -> None:
    assert rows.attention_mask is not None
    plain, cut = embeddings(bert, {"feature_cutoff": 0.2}, rows)
    columns = []
    for i, length in enumerate(LENGTHS):
        gone = cut[i, :length] == 0
        assert gone[0].sum() == int(WIDTH * 0.2)
        assert bool((gone == gone[0]).all())
        assert torch.equal(cut[i, :length][~gone], plain[i, :length][~gone])
        assert torch.equal(cut[i, length:], plain[i, length:])
        columns.append(tuple(gone[0].nonzero().flatten().tolist()))
    assert len(set(columns)) == len(LENGTHS), "each sentence has columns of its own"


def test_element_dropout_takes_single_numbers_and_scales_nothing(bert: PreTrainedModel, rows: PaddedBatch) -> None:
    plain, cut = embeddings(bert, {"element_dropout": 0.2}, rows)
    gone = cut == 0
    assert gone.sum((1, 2)).tolist() == [int(length * WIDTH * 0.2) for length in LENGTHS]
    assert torch.equal(cut[~gone], plain[~gone])
    assert not gone[0].all(0).any()
    assert not gone[0].all(1).any()
    assert not gone[1, LENGTHS[1] :].any()


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_shuffle_exchanges_positions_of_tokens(tiny_roberta: Path, rows: PaddedBatch, rate: float) -> None:
    backbone = load_backbone(str(tiny_roberta))[0].eval()
    start = first_position(backbone)
    assert start == 2
    module = Cutoff(backbone, [{"shuffle": rate}])
    ever_moved = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.bool)
    for seed in range(40):
        torch.manual_seed(seed)
        with module.applied(rows) as extra:
            positions = extra["position_ids"] - start
        for i, length in enumerate(LENGTHS):
            assert sorted(positions[i, :length].tolist()) == list(range(length))
            moved = positions[i] != torch.arange(max(LENGTHS))
            assert not moved[length:].any(), "padding stays where it is"
            assert moved.sum() <= int(length * rate)
            ever_moved[i] |= moved
    assert rows.attention_mask is not None
    able = torch.tensor([int(length * rate) > 1 for length in LENGTHS])
    assert torch.equal(ever_moved[able], rows.attention_mask.bool()[able])


@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_a_shuffled_sentence_is_the_sentence_in_another_order(
    family: str, tiny: Callable[[str], Path], rows: PaddedBatch
) -> None:
    """A token with the position of another stands where the other stood."""
    backbone = load_backbone(str(tiny(family)))[0].eval()
    module = Cutoff(backbone, [{"shuffle": 1.0}])
    mask = rows.attention_mask
    assert mask is not None
    with torch.no_grad():
        with module.applied(rows) as extra:
            shuffled = backbone(rows.input_ids, mask, **extra).last_hidden_state
        places = extra["position_ids"] - first_position(backbone)
        reordered = backbone(torch.zeros_like(rows.input_ids).scatter(1, places, rows.input_ids), mask)
        plain = backbone(rows.input_ids, mask).last_hidden_state
    expected = reordered.last_hidden_state.gather(1, places.unsqueeze(2).expand_as(shuffled))
    torch.testing.assert_close(shuffled[mask.bool()], expected[mask.bool()])
    assert not torch.allclose(shuffled[0], plain[0], atol=1e-2)


def test_shuffle_reaches_rotary_positions(tiny_modernbert: Path, rows: PaddedBatch) -> None:
    backbone = load_backbone(str(tiny_modernbert))[0].eval()
    encoder = Encoder(backbone, ModelConfig(pooling="mean"), Cutoff(backbone, [{"shuffle": 1.0}]))
    with torch.no_grad():
        shuffled, plain = encoder(rows), encoder(replace(rows, view_ids=None))
    assert not torch.allclose(shuffled[0], plain[0], atol=1e-3)


@pytest.mark.parametrize("family", [*FULL_ATTENTION, "modernbert"])
def test_plain_rows_and_inference_are_untouched(family: str, tiny: Callable[[str], Path], rows: PaddedBatch) -> None:
    backbone = load_backbone(str(tiny(family)))[0].eval()
    config = ModelConfig(pooling="mean")
    encoder = Encoder(backbone, config, Cutoff(backbone, [ALL, {"feature_cutoff": 0.2}]))
    mixed = replace(rows, view_ids=torch.tensor([0, PLAIN, 1, PLAIN]))
    with torch.no_grad():
        expected = Encoder(backbone, config)(replace(rows, view_ids=None))
        assert torch.equal(encoder(replace(rows, view_ids=None)), expected)
        found = encoder(mixed)
    torch.testing.assert_close(found[[1, 3]], expected[[1, 3]])
    assert not torch.allclose(found[0], expected[0], atol=1e-3)
    assert not torch.allclose(found[2], expected[2], atol=1e-3)


def test_several_add_up_and_views_differ(bert: PreTrainedModel, rows: PaddedBatch) -> None:
    plain, cut = embeddings(bert, {"token_cutoff": 0.3, "feature_cutoff": 0.2}, rows)
    gone = cut[0] == 0
    assert gone.all(1).sum() == int(LENGTHS[0] * 0.3)
    assert gone.all(0).sum() == int(WIDTH * 0.2)
    assert torch.equal(cut[0][~gone], plain[0][~gone])
    second = replace(rows, view_ids=torch.ones_like(rows.view_ids))  # type: ignore[arg-type]
    assert torch.equal(*embeddings(bert, {"token_cutoff": 0.3}, second))


def test_rows_without_padding(bert: PreTrainedModel, rows: PaddedBatch) -> None:
    whole = replace(rows.slice(0, 1), attention_mask=None)
    _, cut = embeddings(bert, ALL, whole)
    assert (cut == 0).all(2).sum() == int(LENGTHS[0] * 0.3)


def test_the_seed_decides(bert: PreTrainedModel, rows: PaddedBatch) -> None:
    encoder = Encoder(bert, ModelConfig(pooling="mean"), Cutoff(bert, [ALL]))
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            found.append(encoder(rows))
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


def test_the_gradient_cache_sees_the_same_views_twice(bert: PreTrainedModel, rows: PaddedBatch) -> None:
    encoder = Encoder(bert.train(), ModelConfig(pooling="mean"), Cutoff(bert, [ALL]))

    def gradients(vectors: Tensor, cache: GradientCache | None) -> list[Tensor]:
        encoder.zero_grad()
        (vectors[0] * vectors[1] - vectors[2] * vectors[3]).sum().backward()
        if cache is not None:
            cache.backward()
        return [p.grad.clone() for p in encoder.parameters() if p.grad is not None]

    torch.manual_seed(3)
    plain = gradients(torch.cat([encoder.represent(rows.slice(i, i + 2)) for i in (0, 2)]), None)
    torch.manual_seed(3)
    cache = GradientCache(encoder.represent, 2, nullcontext)
    cached = gradients(cache(rows), cache)
    assert len(plain) == len(cached) > 0
    for one, other in zip(plain, cached, strict=True):
        torch.testing.assert_close(one, other)


def test_it_has_nothing_to_save_and_copies_with_its_encoder(bert: PreTrainedModel, rows: PaddedBatch) -> None:
    module = Cutoff(bert, [ALL])
    assert module.config is None
    assert not list(module.parameters())
    assert not module.state_dict()
    encoder = copy.deepcopy(Encoder(bert, ModelConfig(pooling="mean"), module))
    calls: list[int] = []
    bert.embeddings.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        assert not torch.allclose(encoder(rows), encoder(replace(rows, view_ids=None)), atol=1e-3)
    assert not calls, "the copy ran the embeddings of the original"


def test_a_forward_that_did_not_happen(bert: PreTrainedModel, rows: PaddedBatch) -> None:
    module = Cutoff(bert, [{"token_cutoff": 0.3}])
    encoder = Encoder(bert, ModelConfig(pooling="mean"), module)
    with torch.no_grad():
        expected = encoder(replace(rows, view_ids=None))
    with pytest.raises(DiffaugError, match="ran 0 times"), module.applied(rows):
        pass
    with pytest.raises(RuntimeError, match="half-way"), module.applied(rows):
        raise RuntimeError("half-way")
    with torch.no_grad():
        assert torch.equal(encoder(replace(rows, view_ids=None)), expected)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ({"tokn_cutoff": 0.1}, "unknown augmentation 'tokn_cutoff'; did you mean 'token_cutoff'"),
        ({"token_cutoff": 1.0}, "the rate of token_cutoff must be between 0 and 1, got 1$"),
        ({"feature_cutoff": 0.0}, "the rate of feature_cutoff must be between 0 and 1, got 0"),
        ({"shuffle": 1.5}, r"the rate of shuffle must be between 0 and 1 \(1 for all tokens\), got 1.5"),
    ],
)
def test_views_that_make_no_sense_are_refused(bert: PreTrainedModel, view: dict[str, float], message: str) -> None:
    with pytest.raises(DiffaugError, match=message):
        Cutoff(bert, [{}, view])


def test_shuffle_without_positions_is_refused(tiny: Callable[[str], Path]) -> None:
    backbone = load_backbone(str(tiny("deberta-v2")))[0]
    backbone.embeddings.position_biased_input = False
    with pytest.raises(DiffaugError, match="'deberta-v2' backbone ignores position_ids"):
        Cutoff(backbone, [{}, {"shuffle": 1.0}])
    Cutoff(backbone, [{}, {"feature_cutoff": 0.2}])
