"""ConSERT's views: parts of the embedding layer's output are cut off, or positions are exchanged. Nothing is learned.

What the paper leaves open is done as in its released code. Every token of a row takes part, [CLS] and [SEP] as well,
and padding never does. A rate is a part of what there is, rounded down: of a row of nine tokens, a token cutoff of 0.1
takes none. What stays is not scaled up, as dropout would do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from diffaug.errors import DiffaugError
from diffaug.models.backbone import first_position
from diffaug.models.embeddings import EmbeddingOutput, reads_positions
from diffaug.models.packed import Packed
from diffaug.models.rows import Rows
from diffaug.models.views.base import Views

AUGMENTATIONS = ("token_cutoff", "feature_cutoff", "element_dropout", "shuffle")
PLAIN = -1  # the view of a row that stays as it is, beside rows that do not


class Cutoff(Views):
    """For each view, what happens to its rows, and at which rate:

    - `token_cutoff`: the embeddings of some tokens become zero;
    - `feature_cutoff`: some columns of the embeddings become zero, the same ones for all tokens of a row;
    - `element_dropout`: some single numbers become zero;
    - `shuffle`: some tokens exchange their positions, at rate 1 all of them.

    Random numbers come from torch's generator of the rows' device. A row whose view is `PLAIN` stays as it is, and so
    do all rows at inference.

    Args:
        backbone: the one that will run.
        views: by view, the augmentations and their rates; several add up.

    Raises:
        DiffaugError: an unknown augmentation, a rate that is none, or a backbone that cannot be treated that way.
    """

    rates: Tensor
    packs = True

    def __init__(self, backbone: PreTrainedModel, views: Sequence[Mapping[str, float]]) -> None:
        super().__init__()
        for view in views:
            _check(view)
        self._used = {name for view in views for name in view}
        if "shuffle" in self._used and not reads_positions(backbone):
            raise DiffaugError(
                f"a '{backbone.config.model_type}' backbone ignores position numbers, and a shuffle would change "
                "nothing; use feature_cutoff, token_cutoff or element_dropout, or another backbone"
            )
        self._embeddings = EmbeddingOutput(backbone) if self._used - {"shuffle"} else None
        self._first_position = first_position(backbone)
        self._under_way = False
        # (views + 1, augmentations): the last row is PLAIN's, which is what an index of -1 finds.
        table = [[view.get(name, 0.0) for name in AUGMENTATIONS] for view in (*views, {})]
        self.register_buffer("rates", torch.tensor(table), persistent=False)

    def begin(self, rows: Rows | Packed) -> dict[str, Any]:
        if self._embeddings is not None:
            self._embeddings.cancel()
        self._under_way = rows.views is not None
        if rows.views is None:
            return {}
        tokens, laid_out = _layout(rows)
        rates = dict(zip(AUGMENTATIONS, self.rates[rows.views].unbind(1), strict=True))  # of each row
        if self._embeddings is not None:
            self._embeddings.start(partial(self._cut, tokens, rates, laid_out))
        return {"position_ids": laid_out(self._shuffled(tokens, rates["shuffle"]))} if "shuffle" in self._used else {}

    def end(self) -> None:
        if self._embeddings is not None and self._under_way:
            self._embeddings.finish()

    def _cut(
        self, tokens: Tensor, rates: Mapping[str, Tensor], laid_out: Callable[[Tensor], Tensor], embeddings: Tensor
    ) -> Tensor:
        """Zeros in the embeddings (.., width), by the rate of each augmentation for each row."""
        (rows, length), width, device = tokens.shape, embeddings.shape[-1], tokens.device
        cut = torch.zeros(rows, length, width, dtype=torch.bool, device=device)
        if "token_cutoff" in self._used:
            cut |= _chosen(tokens, rates["token_cutoff"]).unsqueeze(2)
        if "feature_cutoff" in self._used:
            columns = torch.ones(rows, width, dtype=torch.bool, device=device)
            cut |= _chosen(columns, rates["feature_cutoff"]).unsqueeze(1)
        if "element_dropout" in self._used:
            elements = tokens.unsqueeze(2).expand_as(cut).flatten(1)  # (rows, length * width)
            cut |= _chosen(elements, rates["element_dropout"]).view_as(cut)
        return embeddings.masked_fill(laid_out(cut & tokens.unsqueeze(2)), 0.0)

    def _shuffled(self, tokens: Tensor, rates: Tensor) -> Tensor:
        """(rows, length): position numbers, exchanged among some of each row's tokens."""
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device).expand_as(tokens)
        moving = _chosen(tokens, rates)
        # The moving tokens come first, once in their order and once in a random one; the others follow, unmoved.
        in_order = (places + length * ~moving).argsort(1)
        at_random = torch.where(moving, torch.rand(tokens.shape, device=tokens.device), places + 1.0).argsort(1)
        return torch.empty_like(places).scatter(1, at_random, in_order) + self._first_position


def _layout(rows: Rows | Packed) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Where padded rows (rows, length) hold a token, and what brings (rows, length, ..) to how the rows really lie."""
    if isinstance(rows, Packed):
        places = rows.padded_places()
        return rows.padded_mask(), lambda padded: padded.flatten(0, 1).index_select(0, places).unsqueeze(0)
    mask = torch.ones_like(rows.input_ids) if rows.attention_mask is None else rows.attention_mask
    return mask.bool(), lambda padded: padded


def _chosen(candidates: Tensor, rates: Tensor) -> Tensor:
    """(rows, n): of each row's candidates (rows, n), as many as its rate says, rounded down, picked at random."""
    # 0.53 of 100 is 53, but in float32 a little less.
    numbers = (candidates.sum(1) * rates + 1e-3).floor()
    order = torch.rand(candidates.shape, device=candidates.device).masked_fill(~candidates, 2.0).argsort(1)
    first = torch.arange(candidates.shape[1], device=candidates.device) < numbers.unsqueeze(1)
    return torch.zeros_like(candidates).scatter(1, order, first)


def _check(view: Mapping[str, float]) -> None:
    for name, rate in view.items():
        if name not in AUGMENTATIONS:
            raise DiffaugError(f"there is no augmentation {name!r}; there are {', '.join(AUGMENTATIONS)}")
        if not (0 < rate < 1 or (rate == 1 and name == "shuffle")):
            raise DiffaugError(
                f"{name} = {rate:g} is no rate: it lies between 0 and 1"
                + (", or is 1 for all tokens" if name == "shuffle" else "")
            )
