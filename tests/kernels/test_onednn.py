"""oneDNN's products equal torch's, with their gradients, and are used where they are faster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from diffaug import Embedder
from diffaug.kernels import onednn
from diffaug.kernels.onednn import OneDnnProducts, linear, onednn_is_faster

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")

ZEN_5 = "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n"


@pytest.fixture
def fresh_rule() -> Iterator[None]:
    onednn_is_faster.cache_clear()
    yield
    onednn_is_faster.cache_clear()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(64, 24), (2500, 24), (7, 13, 24), (33, 24)], ids=str)
def test_products_and_gradients_are_those_of_float64(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    states, weight, direction = torch.randn(shape), torch.randn(40, 24), torch.randn(*shape[:-1], 40)
    offset = torch.randn(40) if bias else None
    inputs = [tensor.requires_grad_() for tensor in (states, weight, offset) if tensor is not None]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]

    found = linear(states, weight, offset)
    expected = F.linear(exact[0], exact[1], exact[2] if bias else None)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)

    gradients = torch.autograd.grad((found * direction).sum(), inputs)
    for gradient, right in zip(gradients, torch.autograd.grad((expected * direction).sum(), exact), strict=True):
        torch.testing.assert_close(gradient.double(), right, rtol=1e-4, atol=1e-3)


def test_only_products_that_gain_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Size] = []

    def spy(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        calls.append(states.shape)
        return linear(states, weight, bias)

    monkeypatch.setattr(onednn, "linear", spy)
    layer = torch.nn.Linear(8, 4)
    with OneDnnProducts():
        layer(torch.randn(64, 8))
        layer(torch.randn(4, 16, 8))
        layer(torch.randn(8))
        layer(torch.randn(31, 8))
        layer.double()(torch.randn(64, 8, dtype=torch.float64))
        with torch.autocast("cpu", torch.bfloat16):
            assert layer.float()(torch.randn(64, 8)).dtype == torch.bfloat16
    layer(torch.randn(64, 8))
    assert calls == [(64, 8), (4, 16, 8)]


@pytest.mark.parametrize(
    ("cpu", "capability", "faster"),
    [
        (ZEN_5, "AVX512", True),
        ("AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD", "AVX512", True),
        (ZEN_5, "AVX2", False),
        (ZEN_5.replace("26", "25"), "AVX512", False),  # Zen 4
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\n", "AVX512", False),
        ("", "AVX512", False),
    ],
)
@pytest.mark.usefixtures("fresh_rule")
def test_they_are_used_on_amds_cpus_since_zen_5(
    cpu: str, capability: str, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "_cpu", lambda: cpu)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert onednn_is_faster() is faster


@pytest.mark.usefixtures("fresh_rule")
def test_the_cpu_of_this_machine_is_read() -> None:
    assert onednn._cpu()
    assert onednn_is_faster() in (True, False)


def test_encode_uses_them(tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Embedder.from_pretrained(tiny_bert).encode(sentences)
    calls: list[torch.Size] = []

    def spy(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        calls.append(weight.shape)
        return linear(states, weight, bias)

    monkeypatch.setattr(onednn, "linear", spy)
    monkeypatch.setattr(onednn, "onednn_is_faster", lambda: True)
    np.testing.assert_allclose(Embedder.from_pretrained(tiny_bert).encode(sentences), plain, atol=1e-5)
    assert calls
