"""The interface of view modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from torch import nn

from diffaug.models.batch import TokenBatch
from diffaug.models.config import ViewsConfig


class Views(nn.Module, ABC):
    """What makes the views of a sentence differ inside the encoder.

    Attributes:
        config: the settings of a module that is saved with the model; None for one that is used in training only.
        supports_packed: whether it works on packed batches.
        supports_pruning: whether the last layer may be computed at the pooled tokens only.
    """

    config: ViewsConfig | None = None
    supports_packed: ClassVar[bool] = False
    supports_pruning: ClassVar[bool] = False

    @abstractmethod
    def applied(self, batch: TokenBatch) -> AbstractContextManager[dict[str, Any]]:
        """The context of one backbone forward, in which the views are active.

        It yields further keywords for the backbone's forward. ``batch.view_ids`` (sequences,) is the view of each
        sequence; None means inference: all views at once, or none for a module that is used in training only. After
        the context, also after an exception, the backbone is as before.

        Raises:
            DiffaugError: on exit, if a part of the backbone did not use its view: a view is never ignored silently.
        """

    def prefix_length(self, by_view: bool) -> int:
        """The number of prefix keys before each sequence, if each sees its own view only or all of them."""
        return 0
