"""Backbones with adapters or LoRA for the tests of both."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffaug.models.batch import PaddedBatch
from diffaug.models.config import AdapterConfig, LoraConfig
from diffaug.models.views.adapter import Adapter
from diffaug.models.views.hooks import HookedViews
from diffaug.models.views.lora import Lora

ADAPTER = AdapterConfig(views=2, bottleneck=3)
LORA = LoraConfig(views=2, rank=3, scale=1.5)


class Model(nn.Module):
    """A backbone and its views: rows in, the last layer's states out."""

    def __init__(self, backbone: PreTrainedModel, views: HookedViews) -> None:
        super().__init__()
        self.backbone = backbone
        self.views = views

    def forward(self, rows: PaddedBatch) -> Tensor:
        with self.views.applied(rows) as extra:
            out = self.backbone(input_ids=rows.input_ids, attention_mask=rows.attention_mask, **extra)
        return out.last_hidden_state


def attach(kind: str, plain: PreTrainedModel) -> Model:
    """A copy of ``plain`` with trained-looking views, in double precision."""
    backbone = copy.deepcopy(plain)
    views: HookedViews = Adapter(ADAPTER, backbone) if kind == "adapter" else Lora(LORA, backbone)
    model = Model(backbone, views).double().eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.views.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    return model


def make_rows(views: Sequence[int] | None = (0, 1, 1, 0)) -> PaddedBatch:
    """Four rows of random tokens, two of them padded."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.ones(4, 9, dtype=torch.long)
    mask[1, 6:], mask[3, 4:] = 0, 0
    ids = torch.randint(5, 60, (4, 9), generator=generator)
    return PaddedBatch(ids, mask, view_ids=None if views is None else torch.tensor(views))
