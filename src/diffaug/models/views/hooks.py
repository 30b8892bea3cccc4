"""Views by small modules beside the backbone's own layers: what adapters and LoRA share.

The modules are ours and enter through torch's forward hooks, so that the backbone keeps its layers and the names of its
weights, and rows of different views go through it together. peft does not fit here: it lets the rows of a batch have
different LoRA weights at inference only (with `adapter_names`, which it refuses in training mode), its other switch,
`set_adapter`, holds for the whole model, and it has no adapters of this kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from diffaug.errors import DiffaugError
from diffaug.models.packed import Packed
from diffaug.models.rows import Rows
from diffaug.models.views.base import Views
from diffaug.models.views.targets import Place, Role, Third, add_update, find_places

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Update(nn.Module, ABC):
    """What is added to the output of one layer, with parameters for every view.

    The bottlenecks of all views are computed side by side as one, and all but a row's own are multiplied by zero.
    That takes a few multiplications more than matrices gathered row by row, and no copy of them for every row.
    """

    @abstractmethod
    def forward(self, inputs: Tensor, output: Tensor, weights: Tensor) -> Tensor:
        """(rows, length, outputs): the update.

        Args:
            inputs: (rows, length, inputs), what the layer was given.
            output: (rows, length, outputs), what it made of them.
            weights: (rows or 1, views), how much each view counts for a row.
        """


def weigh(inner: Tensor, weights: Tensor) -> Tensor:
    """Scale the bottlenecks of the views, side by side in ``inner`` (rows, length, views * width)."""
    by_view = inner.unflatten(-1, (weights.shape[1], -1))
    return (by_view * weights.to(inner.dtype)[:, None, :, None]).flatten(-2)


class HookedViews(Views):
    """Updates of the outputs of some of the backbone's layers.

    Without a `begin` the backbone is as if they were not there. A copy of a backbone together with its views (of an
    encoder, that is) has hooks of its own: they are methods of the views, which are copied with them.
    """

    def __init__(
        self, views: int, backbone: PreTrainedModel, roles: tuple[Role, ...], build: Callable[[Place], Update]
    ) -> None:
        """Attach to ``backbone`` an update for each of its layers with one of these roles."""
        super().__init__()
        self._count = views
        self._weights: Tensor | None = None
        self._visited: set[Update] = set()
        self._places = 0
        # All places before any hook: a backbone that is refused is left as it was.
        for role, places in [(role, find_places(backbone, role)) for role in roles]:
            updates = [build(place) for place in places]
            self.add_module(role, nn.ModuleList(updates))
            self._places += len(places)
            for place, update in zip(places, updates, strict=True):
                place.linear.register_forward_hook(partial(self._visit, update, place.third))
        backbone.register_forward_pre_hook(self._refuse_checkpointing)

    def begin(self, rows: Rows | Packed) -> dict[str, Any]:
        """See `Views.begin`.

        Where every view takes part, the updates are averaged. The model was trained with one update at a time, and a
        sum would move its states twice as far; attention over both views' prefixes is such a mixture as well.
        """
        if rows.views is None:
            self._weights = torch.full((1, self._count), 1 / self._count, device=rows.input_ids.device)
        else:
            self._weights = torch.eye(self._count, device=rows.views.device)[rows.views]
        self._visited = set()
        return {}

    def end(self) -> None:
        assert self._weights is not None, "begin comes first"
        visited, self._visited, self._weights = len(self._visited), set(), None
        if visited < self._places:
            raise DiffaugError(
                f"only {visited} of {self._places} layers took their share in the views: the backbone did not run all "
                "of the layers it has"
            )

    def _visit(self, update: Update, third: Third | None, _: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        if self._weights is None:
            return None  # leaves the output as it is
        self._visited.add(update)
        return add_update(output, update(args[0], output, self._weights), third)

    def _refuse_checkpointing(self, backbone: PreTrainedModel, _: Any) -> None:
        """Gradient checkpointing runs layers again after `end`, when the hooks would stay out of it."""
        if self._weights is not None and backbone.training and backbone.is_gradient_checkpointing:
            self._weights = None
            raise DiffaugError(
                "adapters and LoRA do not go together with gradient checkpointing; switch it off, and set "
                "stage2.gradient_cache if memory is short"
            )
