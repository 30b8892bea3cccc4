"""Putting operations of our own in the place of torch's, for whatever model runs inside of a context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode


class Replacing(TorchFunctionMode, ABC):
    """A context in which some functions of torch are others. Subclasses say which, and for what inputs.

    Args:
        functions: torch's, and what is called instead, with the same arguments; not replaced inside of that call.
    """

    def __init__(self, functions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._functions = functions

    @abstractmethod
    def applies(self, first: Any) -> bool:
        """Whether to replace a call, given its first argument."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        replaced = self._functions.get(func)
        if replaced is not None and args and self.applies(args[0]):
            func = replaced
        return func(*args, **(kwargs or {}))
