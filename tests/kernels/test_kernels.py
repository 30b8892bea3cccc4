"""Our kernels against plain torch: on a GPU, or without one in Triton's interpreter (`make test-kernels`)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from triton_device import DEVICE, DTYPE, INTERPRETED, leaf

from diffaug.kernels import layer_norm
from diffaug.kernels.casts import CastingCopies, copy_to_wider
from diffaug.kernels.fused_operations import FusedOperations

# Of values of about one.
TOLERANCE = 1e-5 if INTERPRETED else 2e-2


@pytest.mark.parametrize("width", [24, 32])
@pytest.mark.parametrize("end_to_end", [True, False])
def test_layer_norm(width: int, end_to_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setattr(layer_norm, "_PROGRAMS", 8)
    torch.manual_seed(0)
    states, weight, bias = leaf(1, 37, width), leaf(width), leaf(width)
    if not end_to_end:
        states = leaf(1, width, 37).transpose(1, 2)
    gradient = torch.randn(1, 37, width, device=DEVICE, dtype=DTYPE)
    ours = torch.autograd.grad(layer_norm.layer_norm(states, (width,), weight, bias), [states, weight, bias], gradient)
    wanted = F.layer_norm(states.float(), (width,), weight.float(), bias.float())
    theirs = torch.autograd.grad(wanted, [states, weight, bias], gradient.float())
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=TOLERANCE, atol=10 * TOLERANCE)


@pytest.mark.parametrize("programs", [8, 640])
def test_shares_are_summed_column_by_column_and_always_alike(programs: int) -> None:
    torch.manual_seed(0)
    shares = torch.randn(3, programs, 40, device=DEVICE)  # the last of the kernel's programs has half of its columns
    found = layer_norm._summed(shares, DTYPE)
    assert found.dtype == DTYPE
    torch.testing.assert_close(found.double(), shares.double().sum(1), rtol=TOLERANCE, atol=10 * TOLERANCE)
    assert torch.equal(found, layer_norm._summed(shares, DTYPE))


def chances(seed: int, numbers: int) -> NDArray[np.float64]:
    """What `kernels.random` draws, computed by numpy."""

    def mixed(number: NDArray[np.uint32]) -> NDArray[np.uint32]:
        number = (number ^ (number >> 16)) * np.uint32(0x7FEB352D)
        number = (number ^ (number >> 15)) * np.uint32(0x846CA68B)
        return number ^ (number >> 16)

    return (mixed(mixed(np.arange(numbers, dtype=np.uint32)) ^ np.uint32(seed)) >> 8) / 2**24


@pytest.mark.parametrize("width", [24, 32])
@pytest.mark.parametrize("learns", ["both", "bias", ""])
@pytest.mark.parametrize("offset", ["none", "learns", "frozen"])
def test_dropout_sum_and_layer_norm_in_one(
    width: int, learns: str, offset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if INTERPRETED:
        monkeypatch.setattr(layer_norm, "_PROGRAMS", 8)
    torch.manual_seed(0)
    states, past, weight, bias = leaf(1, 37, width), leaf(1, 37, width), leaf(width), leaf(width)
    weight.requires_grad_(learns == "both")
    bias.requires_grad_(learns != "")
    before = leaf(width).requires_grad_(offset == "learns") if offset != "none" else None
    inputs = [each for each in (states, before, past, weight, bias) if each is not None and each.requires_grad]
    gradient = torch.randn(1, 37, width, device=DEVICE, dtype=DTYPE)
    found = layer_norm.dropped_norm(states, before, past, 0.25, torch.tensor(5, device=DEVICE), weight, bias, 1e-5)
    kept = torch.tensor(chances(5, 37 * 32) >= 0.25).view(37, 32)[:, :width].to(DEVICE) / 0.75
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.05)
    shifted = states.float() if before is None else states.float() + before.float()
    wanted = F.layer_norm(shifted * kept + past.float(), (width,), weight.float(), bias.float())
    torch.testing.assert_close(found.float(), wanted.float(), rtol=TOLERANCE, atol=10 * TOLERANCE)
    ours = torch.autograd.grad(found, inputs, gradient)
    theirs = torch.autograd.grad(wanted, inputs, gradient.to(wanted.dtype))
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=TOLERANCE, atol=10 * TOLERANCE)


@pytest.mark.skipif(INTERPRETED, reason="it looks for tensors on a GPU")
def test_the_context_replaces_both_where_they_learn() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.LayerNorm(16)).to(DEVICE, DTYPE)
    states = leaf(5, 24)
    with FusedOperations():
        found = layer(states)
    assert type(found.grad_fn).__name__ == "_LayerNormBackward"
    assert type(found.grad_fn.next_functions[0][0]).__name__ == "_LinearBackward"
    torch.testing.assert_close(found, layer(states))


@pytest.mark.parametrize("count", [1, 4096, 10_000])
def test_copies_into_more_bits_are_exact(count: int) -> None:
    source, target = torch.randn(count, device=DEVICE, dtype=DTYPE), torch.full((count + 1,), 7.0, device=DEVICE)
    copy_to_wider(target[:count], source)
    assert torch.equal(target[:count], source.float())
    assert float(target[count]) == 7.0


def test_what_is_postponed_drops_nothing_outside_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setattr(layer_norm, "_PROGRAMS", 8)
        monkeypatch.setattr(FusedOperations, "applies", lambda *_: True)
    norm, quick = torch.nn.LayerNorm(32).to(DEVICE, DTYPE), FusedOperations()
    states, past = leaf(1, 7, 32), leaf(1, 7, 32)
    for training in (True, False):  # in the first forward it is seen, in the second postponed
        with quick:
            found = norm(F.dropout(states, 0.5, training) + past)
    assert type(found.grad_fn).__name__ == "_DroppedNormBackward"
    torch.testing.assert_close(found, norm(states + past), rtol=TOLERANCE, atol=10 * TOLERANCE)


@pytest.mark.parametrize("offset", [0, 1], ids=["where it begins well", "elsewhere"])
def test_many_tensors_are_copied_at_once_whenever_they_change(offset: int) -> None:
    sources = [torch.randn(count, device=DEVICE) for count in (4096, 3, 10_000, 1)]
    room = torch.full((sum(map(len, sources)) + offset + 1,), 7.0, device=DEVICE, dtype=torch.float16)
    targets = room[offset:-1].split([len(source) for source in sources])
    copies = CastingCopies(list(zip(targets, sources, strict=True)))
    for _ in range(2):
        copies()
        for target, source in zip(targets, sources, strict=True):
            assert torch.equal(target, source.half())
            source.mul_(3.0)
    assert room[-1] == 7
