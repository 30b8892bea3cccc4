"""Replace functions of torch by others, for any model that runs inside of a context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode


class FunctionMode(TorchFunctionMode, ABC):
    """A context in which every function of torch is called through `call`."""

    @abstractmethod
    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call ``func``, or something else instead. Inside of it, torch's own functions are called."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.call(func, args, kwargs or {})


class FunctionOverrides(FunctionMode):
    """A context in which some functions of torch are replaced. Subclasses define which, and for which inputs.

    Args:
        functions: torch's function to its replacement, which gets the same arguments.
    """

    def __init__(self, functions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._functions = functions

    @abstractmethod
    def applies(self, first: Any) -> bool:
        """Whether to replace a call with this first argument."""

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        replaced = self._functions.get(func)
        if replaced is not None and args and self.applies(args[0]):
            func = replaced
        return func(*args, **kwargs)
