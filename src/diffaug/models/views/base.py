"""What all view modules share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from diffaug.models.config import AdapterConfig, LoraConfig, PrefixConfig
from diffaug.models.rows import Rows

if TYPE_CHECKING:
    from diffaug.models.packed import Packed


class Views(nn.Module, ABC):
    """What makes one view of a sentence differ from another inside the encoder.

    Attributes:
        config: the settings of a module that is part of the saved model; None for one that training alone uses.
        packs: whether it takes rows that lie end to end.
    """

    config: PrefixConfig | AdapterConfig | LoraConfig | None = None
    packs: ClassVar[bool] = False

    @abstractmethod
    def begin(self, rows: Rows | Packed) -> dict[str, Any]:
        """Before a forward: note what these rows need, and return further keywords for the backbone's forward.

        ``rows.views`` (rows,) is the view of each row; None means inference: all views at once, or none for a module
        that training alone uses. Rows that lie end to end come only to a module that `packs`.
        """

    @abstractmethod
    def end(self) -> None:
        """After it: forget the rows.

        Raises:
            DiffaugError: a part of the backbone did not take its share: a view is never dropped silently.
        """
