from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, BertConfig, PreTrainedModel

from diffaug.models.attention import AttentionShape
from diffaug.models.config import AdapterConfig, LoraConfig, PrefixConfig
from diffaug.models.views.adapter import Adapter
from diffaug.models.views.lora import Lora
from diffaug.models.views.parameter_count import added_parameters
from diffaug.models.views.prefix import FoldedPrefix, ReparametrisedPrefix


@pytest.fixture(scope="module")
def bert_base() -> PreTrainedModel:
    """BERT-base's shape, without a byte of weights."""
    with torch.device("meta"):
        return AutoModel.from_config(BertConfig())


# The paper's table has 0.3 % for the prefix of length 8 and for r = 4, and 4.8 % for r = 64, which is 16 times the
# rounded 0.3 %: sixteen times the exact share is 4.3 %.


def test_prefix() -> None:
    with torch.device("meta"):
        for kind in (ReparametrisedPrefix, FoldedPrefix):
            prefix = kind(PrefixConfig(views=2, length=8), AttentionShape(layers=12, heads=12, head_dim=64))
            # layers * (key, value) * (views * length) * size; the MLP that makes them is folded away and not counted
            assert added_parameters(prefix) == 12 * 2 * 16 * 768 == 294_912
            assert (sum(p.numel() for p in prefix.parameters()) == 294_912) == (kind is FoldedPrefix)


@pytest.mark.parametrize(("rank", "number", "share"), [(4, 294_912, 0.27), (64, 4_718_592, 4.31)])
def test_lora(bert_base: PreTrainedModel, rank: int, number: int, share: float) -> None:
    with torch.device("meta"):
        lora = Lora(LoraConfig(views=2, rank=rank, scale=1.0), bert_base)
    # views * layers * (query, value) * (W_down, W_up): at r = 4 as many as the prefix has, to the last one
    assert added_parameters(lora) == 2 * 12 * 2 * (768 * rank + rank * 768) == number
    assert round(100 * number / bert_base.num_parameters(), 2) == share


@pytest.mark.parametrize(("bottleneck", "number", "share"), [(4, 331_968, 0.30), (64, 4_758_528, 4.35)])
def test_adapter(bert_base: PreTrainedModel, bottleneck: int, number: int, share: float) -> None:
    with torch.device("meta"):
        adapter = Adapter(AdapterConfig(views=2, bottleneck=bottleneck), bert_base)
    # views * layers * (attention, feed-forward) * (W_down, W_up and their biases)
    places, biases = 2 * 12 * 2, bottleneck + 768
    assert added_parameters(adapter) == places * (2 * 768 * bottleneck + biases) == number
    assert round(100 * number / bert_base.num_parameters(), 2) == share
