"""Views by small modules beside the backbone's linear layers: the common part of adapters and LoRA.

The modules are attached with torch's forward hooks, during one forward only. The backbone keeps its layers and the
names of its weights, and sequences of different views go through it in one batch. peft does not fit here: in a batch,
sequences can have different LoRA weights at inference only (`adapter_names`, refused in training mode), its other
switch, `set_adapter`, holds for the whole model, and it has no adapters of this kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from diffaug.errors import DiffaugError
from diffaug.models.batch import TokenBatch
from diffaug.models.views.base import Views
from diffaug.models.views.targets import Role, Target, add_update, find_targets

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Update(nn.Module, ABC):
    """What is added to the output of one layer, with parameters for every view.

    The bottlenecks of all views are computed as one matrix product, and all but a sequence's own are multiplied by
    zero. That needs a few more multiplications than gathering matrices per sequence, and no copies of them.
    """

    @abstractmethod
    def forward(self, inputs: Tensor, output: Tensor, weights: Tensor) -> Tensor:
        """(sequences, length, outputs): the update.

        Args:
            inputs: (sequences, length, inputs), the layer's input.
            output: (sequences, length, outputs), the layer's output.
            weights: (sequences or 1, views), the weight of each view for a sequence.
        """


def scale_views(inner: Tensor, weights: Tensor) -> Tensor:
    """Multiply the bottlenecks of the views in ``inner`` (sequences, length, views * width) by their weights."""
    by_view = inner.unflatten(-1, (weights.shape[1], -1))
    return (by_view * weights.to(inner.dtype)[:, None, :, None]).flatten(-2)


class HookedViews(Views):
    """Updates of the outputs of some of the backbone's linear layers.

    A deep copy of a backbone together with its views (that is, of an encoder) is independent of the original.
    """

    def __init__(
        self, views: int, backbone: PreTrainedModel, roles: tuple[Role, ...], build: Callable[[Target], Update]
    ) -> None:
        """Build an update for each of the backbone's layers with one of these roles."""
        super().__init__()
        self._count = views
        # In tuples: as attributes, the backbone's modules would become submodules of this one.
        self._backbone = (backbone,)
        self._updates: list[tuple[Target, Update]] = []
        for role in roles:
            targets = find_targets(backbone, role)
            updates = [build(target) for target in targets]
            self.add_module(role, nn.ModuleList(updates))
            self._updates += zip(targets, updates, strict=True)

    @contextmanager
    def applied(self, batch: TokenBatch) -> Iterator[dict[str, Any]]:
        """See `Views.applied`.

        At inference the updates of all views are averaged. The model was trained with one update at a time, and a sum
        would be twice as large; attention over the prefixes of both views is such an average too.
        """
        (backbone,) = self._backbone
        if backbone.training and backbone.is_gradient_checkpointing:
            # It runs layers again in the backward pass, after the hooks have been removed.
            raise DiffaugError(
                "adapters and LoRA cannot be combined with gradient checkpointing; switch it off, and set "
                "stage2.gradient_cache to save memory"
            )
        if batch.view_ids is None:
            weights = torch.full((1, self._count), 1 / self._count, device=batch.input_ids.device)
        else:
            weights = torch.eye(self._count, device=batch.view_ids.device)[batch.view_ids]
        used: set[Update] = set()
        with ExitStack() as hooks:
            for target, update in self._updates:
                hook = _hook(target, update, weights, used)
                hooks.callback(target.linear.register_forward_hook(hook).remove)
            yield {}
        if len(used) < len(self._updates):
            raise DiffaugError(
                f"only {len(used)} of {len(self._updates)} layers used their views: the backbone did not run all of "
                "its layers"
            )


def _hook(target: Target, update: Update, weights: Tensor, used: set[Update]) -> Callable[..., Tensor]:
    def hook(_: nn.Module, args: Any, output: Tensor) -> Tensor:
        used.add(update)
        return add_update(output, update(args[0], output, weights), target.third)

    return hook
