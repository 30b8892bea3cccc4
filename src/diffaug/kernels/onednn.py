"""Faster matrix products of float32 on AMD's CPUs since Zen 5.

torch computes the products of float32 with MKL, which uses AVX-512 on Intel's CPUs only. oneDNN, which torch includes
too, uses it on every CPU that has it. With the 512-bit units of Zen 5, its products take half the time. With the
256-bit units of Zen 4, AVX-512 gains nothing, and on Intel's CPUs MKL is faster.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug.kernels.function_mode import FunctionOverrides

# With fewer rows, copies to and from oneDNN's layout take longer than it saves.
_FEWEST_ROWS = 32
# Rows that are multiplied at a time: their copies fit the CPU's cache.
_ROWS = 1024
# oneDNN generates code for each number of rows and keeps it, so there are few numbers: multiples of this.
_ROW_STEP = 64


def fast_products() -> AbstractContextManager[Any]:
    """A context in which a model on the CPU computes its products in the fastest way that this CPU has."""
    return OneDnnProducts() if onednn_is_faster() else nullcontext()


@cache
def onednn_is_faster() -> bool:
    """Whether oneDNN uses units of this CPU that MKL does not use."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _since_zen_5(_cpu())
    )


def _cpu() -> str:
    """A text with the vendor and the family of the CPU."""
    try:
        return Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    except OSError:
        return platform.processor()  # on Windows, for example "AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD"


def _since_zen_5(cpu: str) -> bool:
    family = re.search(r"family\s*:?\s*(\d+)", cpu, re.IGNORECASE)
    return "AuthenticAMD" in cpu and family is not None and int(family[1]) >= 26


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same as `torch.nn.functional.linear`, for float32 on a CPU."""
    parts = [_product(rows, weight, bias) for rows in states.reshape(-1, states.shape[-1]).split(_ROWS)]
    product = parts[0] if len(parts) == 1 else torch.cat(parts)
    return product.view(*states.shape[:-1], weight.shape[0])


def _product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(rows, outputs), from states (rows, inputs)."""
    rows = len(states)
    if rest := rows % _ROW_STEP:
        states = F.pad(states, (0, 0, 0, _ROW_STEP - rest))
    product: Tensor = F.linear(states.to_mkldnn(), weight, bias).to_dense()
    return product[:rows]


class OneDnnProducts(FunctionOverrides):
    """A context with oneDNN's products of float32 on a CPU; gradients of what it computes use oneDNN too."""

    def __init__(self) -> None:
        replaced: dict[Any, Callable[..., Any]] = {F.linear: linear}
        super().__init__(replaced)

    def applies(self, first: Tensor) -> bool:
        return (
            first.device.type == "cpu"
            and first.dtype == torch.float32
            and first.numel() >= _FEWEST_ROWS * first.shape[-1]
            and first.layout == torch.strided
            and not torch.is_autocast_enabled("cpu")
        )
