"""ConSERT's views, which are not learned: parts of the embeddings are set to zero, or positions are shuffled.

Where the paper is not specific, this follows its released code. All tokens of a sequence take part, [CLS] and [SEP]
included, and padding never does. A rate times the number of candidates is rounded down: of nine tokens, a token cutoff
of 0.1 removes none. The remaining values are not rescaled, unlike in dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from diffaug.config import Recipe
from diffaug.config.typed import nearest
from diffaug.errors import DiffaugError
from diffaug.models.backbone import first_position
from diffaug.models.batch import PackedBatch, PaddedBatch, TokenBatch
from diffaug.models.embeddings import EmbeddingOutput, reads_positions
from diffaug.models.views.base import Views

if TYPE_CHECKING:
    from typing_extensions import Self

AUGMENTATIONS = ("token_cutoff", "feature_cutoff", "element_dropout", "shuffle")
PLAIN = -1  # the view of a sequence that is not augmented, in a batch with others that are


class Cutoff(Views):
    """Augmentations of each view, with their rates:

    - `token_cutoff`: the embeddings of some tokens become zero;
    - `feature_cutoff`: some columns of the embeddings become zero, the same ones for all tokens of a sequence;
    - `element_dropout`: some single values become zero;
    - `shuffle`: some tokens exchange their positions, at rate 1 all of them.

    Random numbers come from torch's generator of the batch's device. Sequences with the view `PLAIN` are not augmented,
    and neither is anything at inference.

    Args:
        backbone: the backbone that will run.
        views: for each view, the augmentations and their rates; several are combined.

    Raises:
        DiffaugError: an unknown augmentation, a rate out of range, or a backbone that does not support it.
    """

    rates: Tensor
    supports_packed = True

    def __init__(self, backbone: PreTrainedModel, views: Sequence[Mapping[str, float]]) -> None:
        super().__init__()
        for view in views:
            _check(view)
        self._used = {name for view in views for name in view}
        if "shuffle" in self._used and not reads_positions(backbone):
            raise DiffaugError(
                f"a '{backbone.config.model_type}' backbone ignores position_ids, so that shuffle has no effect; use "
                "feature_cutoff, token_cutoff or element_dropout, or another backbone"
            )
        self._embeddings = EmbeddingOutput(backbone) if self._used - {"shuffle"} else None
        self._first_position = first_position(backbone)
        # (views + 1, augmentations): the last row belongs to PLAIN, whose index is -1.
        table = [[view.get(name, 0.0) for name in AUGMENTATIONS] for view in (*views, {})]
        self.register_buffer("rates", torch.tensor(table), persistent=False)

    @classmethod
    def from_recipe(cls, recipe: Recipe, backbone: PreTrainedModel) -> Self:
        return cls(backbone, [recipe.views.first, recipe.views.second])

    @contextmanager
    def applied(self, batch: TokenBatch) -> Iterator[dict[str, Any]]:
        if batch.view_ids is None:
            yield {}
            return
        tokens, laid_out = _layout(batch)
        rates = dict(zip(AUGMENTATIONS, self.rates[batch.view_ids].unbind(1), strict=True))  # of each sequence
        extra = {}
        if "shuffle" in self._used:
            extra["position_ids"] = laid_out(self._shuffled(tokens, rates["shuffle"]))
        cut = partial(self._cut, tokens, rates, laid_out)
        with nullcontext() if self._embeddings is None else self._embeddings.changed(cut):
            yield extra

    def _cut(
        self, tokens: Tensor, rates: Mapping[str, Tensor], laid_out: Callable[[Tensor], Tensor], embeddings: Tensor
    ) -> Tensor:
        """Set parts of the embeddings (.., width) to zero, with the rates of each sequence."""
        (sequences, length), width, device = tokens.shape, embeddings.shape[-1], tokens.device
        cut = torch.zeros(sequences, length, width, dtype=torch.bool, device=device)
        if "token_cutoff" in self._used:
            cut |= _chosen(tokens, rates["token_cutoff"]).unsqueeze(2)
        if "feature_cutoff" in self._used:
            columns = torch.ones(sequences, width, dtype=torch.bool, device=device)
            cut |= _chosen(columns, rates["feature_cutoff"]).unsqueeze(1)
        if "element_dropout" in self._used:
            elements = tokens.unsqueeze(2).expand_as(cut).flatten(1)  # (sequences, length * width)
            cut |= _chosen(elements, rates["element_dropout"]).view_as(cut)
        return embeddings.masked_fill(laid_out(cut & tokens.unsqueeze(2)), 0.0)

    def _shuffled(self, tokens: Tensor, rates: Tensor) -> Tensor:
        """(sequences, length): position ids, exchanged among some of each sequence's tokens."""
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device).expand_as(tokens)
        moving = _chosen(tokens, rates)
        # The chosen tokens come first, once in their order and once in random order; the others follow unchanged.
        in_order = (places + length * ~moving).argsort(1)
        at_random = torch.where(moving, torch.rand(tokens.shape, device=tokens.device), places + 1.0).argsort(1)
        return torch.empty_like(places).scatter(1, at_random, in_order) + self._first_position


def _layout(batch: TokenBatch) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The mask of the padded form (sequences, length), and a function from the padded form to the batch's own."""
    if isinstance(batch, PackedBatch):
        indices = batch.padded_indices()
        return batch.padded_mask(), lambda padded: padded.flatten(0, 1).index_select(0, indices).unsqueeze(0)
    assert isinstance(batch, PaddedBatch)
    mask = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask
    return mask.bool(), lambda padded: padded


def _chosen(candidates: Tensor, rates: Tensor) -> Tensor:
    """(sequences, n): a random choice of each sequence's candidates (sequences, n), their rate rounded down."""
    # 0.53 * 100 is 53, but slightly less in float32.
    numbers = (candidates.sum(1) * rates + 1e-3).floor()
    order = torch.rand(candidates.shape, device=candidates.device).masked_fill(~candidates, 2.0).argsort(1)
    first = torch.arange(candidates.shape[1], device=candidates.device) < numbers.unsqueeze(1)
    return torch.zeros_like(candidates).scatter(1, order, first)


def _check(view: Mapping[str, float]) -> None:
    for name, rate in view.items():
        if name not in AUGMENTATIONS:
            raise DiffaugError(f"unknown augmentation {name!r}{nearest(name, AUGMENTATIONS)}")
        if not (0 < rate < 1 or (rate == 1 and name == "shuffle")):
            largest = " (1 for all tokens)" if name == "shuffle" else ""
            raise DiffaugError(f"the rate of {name} must be between 0 and 1{largest}, got {rate:g}")
