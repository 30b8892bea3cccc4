"""DiffAug's stage 2 the way its released code computes a step, on today's transformers.

One padded pass over all sentences of a step, each behind the vectors of both views, a mask hiding those of the other
one; then a pass of bare templates for each view, 128 rows each, one for every length a sentence may have. The prefix
comes as a key/value cache, computed anew for every row, with dropout of its own. So it stands in the authors'
repository (`diffaug/models.py`); where that code counts lengths wrongly, this does not, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from diffaug.models.encoder import Encoder
from diffaug.models.template import Template
from diffaug.models.views.prefix import ReparametrisedPrefix


class ReleasedWay(nn.Module):
    """See the module's text.

    Args:
        encoder: a BERT with two prefixes; from now on its backbone attends as transformers does.
        template: around the sentences, with one mask token.
        lengths: for so many lengths of a sentence, from none on, every step computes a bare template.
    """

    def __init__(self, encoder: Encoder, template: Template, lengths: int = 128) -> None:
        super().__init__()
        assert isinstance(encoder.views, ReparametrisedPrefix)
        self.backbone = encoder.backbone
        self.backbone.set_attn_implementation("sdpa")
        self.prefix = encoder.views
        self.template = template
        self.lengths = lengths

    def collate(self, columns: Sequence[Sequence[Sequence[int]]], device: torch.device) -> dict[str, Tensor]:
        """Anchors, positives and hard negatives, each a sequence of sentences' word pieces: what `forward` takes."""
        sentences = [sentence for column in columns for sentence in column]
        rows = [[*self.template.before, *sentence, *self.template.after] for sentence in sentences]
        longest = max(map(len, rows))
        views = [view for view, column in zip((0, 1, 1), columns, strict=True) for _ in column]
        values = {
            "input_ids": [row + [0] * (longest - len(row)) for row in rows],
            "real": [[1] * len(row) + [0] * (longest - len(row)) for row in rows],
            "mask_at": [self.template.mask_position(len(row)) for row in rows],
            "lengths": [len(sentence) for sentence in sentences],
            "views": views,
        }
        return {name: torch.tensor(value).to(device) for name, value in values.items()}

    def forward(self, input_ids: Tensor, real: Tensor, mask_at: Tensor, lengths: Tensor, views: Tensor) -> Tensor:
        """(sentences, width): the states at the mask token, those of the bare templates subtracted."""
        config = self.prefix.config
        count, width = input_ids.shape
        view_of = torch.arange(config.total, device=input_ids.device) // config.length
        seen = torch.cat([views[:, None] == view_of, real.bool()], dim=1)
        out = self.backbone(
            input_ids=input_ids,
            attention_mask=seen[:, None, None].expand(-1, -1, width, -1),
            position_ids=(torch.arange(width, device=input_ids.device) + config.total).expand(count, -1),
            past_key_values=self._cache(range(config.total), count),
        )
        states = out.last_hidden_state[torch.arange(count, device=input_ids.device), mask_at]
        bare = torch.stack([self._bare(view) for view in range(config.views)])  # (views, lengths, width)
        return states - bare[views, lengths]

    def _bare(self, view: int) -> Tensor:
        config, device = self.prefix.config, self.prefix.embedding.weight.device
        ids = torch.tensor([*self.template.before, *self.template.after], device=device)
        place = torch.arange(len(ids), device=device)
        behind = place >= len(self.template.before)
        out = self.backbone(
            input_ids=ids.expand(self.lengths, -1),
            position_ids=place + config.total + behind * torch.arange(self.lengths, device=device)[:, None],
            past_key_values=self._cache(range(view * config.length, (view + 1) * config.length), self.lengths),
        )
        return out.last_hidden_state[:, self.template.mask_position(len(ids))]

    def _cache(self, which: range, count: int) -> DynamicCache:
        """The keys and values of some prefix vectors, for every row apart."""
        shape = self.prefix.shape
        numbers = torch.tensor(which, device=self.prefix.embedding.weight.device).expand(count, -1)
        flat = self.prefix.dropout(self.prefix.mlp(self.prefix.embedding(numbers)))
        blocks = flat.view(count, len(which), 2 * shape.layers, shape.heads, shape.head_dim).permute(2, 0, 3, 1, 4)
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(blocks.split(2)):
            cache.update(keys, values, layer)
        return cache
