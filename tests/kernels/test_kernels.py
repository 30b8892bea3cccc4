"""Our kernels against plain torch: on a GPU, or without one in Triton's interpreter (`make test-kernels`)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from triton_device import DEVICE, DTYPE, INTERPRETED

from diffaug.kernels import layer_norm
from diffaug.kernels.attention import attend_short
from diffaug.kernels.casts import Copies, copy_wider
from diffaug.kernels.quick import Quick
from diffaug.models.packed import Packed, PackedStates, pack
from diffaug.models.rows import Rows

# Of values of about one.
TOLERANCE = 1e-5 if INTERPRETED else 2e-2
HEADS, DIM = 2, 16


def batch(lengths: list[int], views: list[int] | None, before: int = 0) -> Packed:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    rows = Rows(torch.ones_like(mask), mask, views=None if views is None else torch.tensor(views))
    return pack(rows, 0, before).to(DEVICE)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE, requires_grad=True)


def by_hand(q: Tensor, k: Tensor, v: Tensor, prefix: Tensor | None, packed: Packed) -> Tensor:
    """Sentence by sentence, in float32."""
    found = []
    for row, (start, length) in enumerate(zip(packed.starts.tolist(), packed.lengths.tolist(), strict=True)):
        own = slice(start, start + length)
        keys, values = k[own].float(), v[own].float()
        if prefix is not None:
            view = 0 if packed.views is None else int(packed.views[row])
            before = prefix[:, view].float().transpose(1, 2)  # (2, length, heads, head_dim)
            keys, values = torch.cat([before[0], keys]), torch.cat([before[1], values])
        weights = torch.einsum("qhd,khd->hqk", q[own].float(), keys).mul(DIM**-0.5).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(found)


@pytest.mark.parametrize(
    "lengths", [[5, 20, 1, 17], [40, 3, 33], [100, 31, 64], [150, 9, 70]], ids=["short", "two", "three", "all kernels"]
)
@pytest.mark.parametrize(("length", "views"), [(3, True), (20, False), (0, False)], ids=["views", "all", "none"])
def test_attention_and_its_gradients(lengths: list[int], length: int, views: bool) -> None:
    torch.manual_seed(0)
    packed = batch(lengths, [i % 2 for i in range(len(lengths))] if views else None, length)
    tokens = packed.input_ids.shape[1]
    leaves = [leaf(tokens, HEADS, DIM) for _ in range(3)]
    prefix = leaf(2, 2 if views else 1, HEADS, length, DIM) if length else None
    gradient = torch.randn(tokens, HEADS, DIM, device=DEVICE)
    inputs = [*leaves, *([] if prefix is None else [prefix])]
    found = attend_short(*leaves, prefix, packed, DIM**-0.5, 0.0, None)
    wanted = by_hand(*leaves, prefix, packed)
    torch.testing.assert_close(found.float(), wanted, rtol=TOLERANCE, atol=TOLERANCE)
    ours = torch.autograd.grad(found, inputs, gradient.to(DTYPE))
    theirs = torch.autograd.grad(wanted, inputs, gradient)
    for mine, reference in zip(ours, theirs, strict=True):
        scale = float(reference.abs().max())
        torch.testing.assert_close(mine.float(), reference.float(), rtol=TOLERANCE, atol=TOLERANCE * scale)


def dropped_weights(seed: int, rows: int = 8) -> Tensor:
    """(rows, heads, DIM, DIM): which weights dropout leaves, for rows of DIM tokens each."""
    packed = batch([DIM] * rows, [0] * rows)
    tokens = packed.input_ids.shape[1]
    nothing = torch.zeros(tokens, HEADS, DIM, device=DEVICE, dtype=DTYPE)
    # All weights are equal, and values the rows of a unit matrix: a result shows what became of each weight.
    values = torch.eye(DIM, device=DEVICE, dtype=DTYPE)[torch.arange(tokens, device=DEVICE) % DIM]
    values = values[:, None].expand(-1, HEADS, -1)
    found = attend_short(nothing, nothing, values, None, packed, 1.0, 0.25, torch.tensor(seed, device=DEVICE))
    return (found[: rows * DIM].unflatten(0, (rows, DIM)).transpose(1, 2) > 0).float()


def test_dropout_is_independent_over_weights_rows_heads_and_seeds() -> None:
    kept, other = dropped_weights(7), dropped_weights(8)
    assert float(kept.mean()) == pytest.approx(0.75, abs=0.02)
    pairs = {
        "keys": (kept[..., :-1], kept[..., 1:]),
        "queries": (kept[..., :-1, :], kept[..., 1:, :]),
        "heads": (kept[:, :-1], kept[:, 1:]),
        "rows": (kept[:-1], kept[1:]),
        "seeds": (kept, other),
    }
    for name, sides in pairs.items():
        correlation = torch.corrcoef(torch.stack([side.flatten() for side in sides]))[0, 1]
        assert abs(float(correlation)) < 4 / sides[0].numel() ** 0.5, name


def test_dropout_drops_the_part_asked_for_and_its_gradient_knows_what() -> None:
    torch.manual_seed(0)
    packed = batch([20, 30, 9], [0, 1, 0], 3)
    tokens = packed.input_ids.shape[1]
    q, k = torch.zeros(2, tokens, HEADS, DIM, device=DEVICE, dtype=DTYPE)
    prefix = torch.zeros(2, 2, HEADS, 3, DIM, device=DEVICE, dtype=DTYPE)
    prefix[1] = 1
    v = torch.ones(tokens, HEADS, DIM, device=DEVICE, dtype=DTYPE, requires_grad=True)

    def dropped(seed: int) -> Tensor:
        return attend_short(q, k, v, prefix, packed, 1.0, 0.25, torch.tensor(seed, device=DEVICE))

    # All weights of a row are equal and all values one: a result is the kept part of the weights, scaled up.
    first = dropped(1)
    assert float(first.detach().float().mean()) == pytest.approx(1.0, abs=0.03)
    assert float(first.detach().float().std()) > 0.02
    assert torch.equal(first, dropped(1))
    assert not torch.equal(first, dropped(2))
    # The result is linear in the values: their gradient, summed, is the result less what the prefix gave.
    (gradient,) = torch.autograd.grad(first.float().sum(), v)
    with torch.no_grad():
        prefix[1] = 0
    without_prefix = dropped(1).float().sum()
    torch.testing.assert_close(gradient.float().sum(), without_prefix, rtol=1e-2, atol=0.0)


def test_packed_states_and_kernel_agree() -> None:
    torch.manual_seed(0)
    packed = batch([7, 40, 12], [1, 0, 1], 4)
    q, k, v = (leaf(1, HEADS, packed.input_ids.shape[1], DIM) for _ in range(3))
    blocks = leaf(1, 2, 2, HEADS, 4, DIM)
    flat = [states.squeeze(0).transpose(0, 1) for states in (q, k, v)]
    kernel = attend_short(*flat, blocks[0], packed, DIM**-0.5, 0.0, None)
    plain = PackedStates(packed, 1, blocks.float()).attend(q.float(), k.float(), v.float(), None, 0.0)
    torch.testing.assert_close(kernel.float(), plain.squeeze(0), rtol=TOLERANCE, atol=TOLERANCE)


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
    """What `kernels.chance` draws, computed by numpy."""

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
    with Quick():
        found = layer(states)
    assert type(found.grad_fn).__name__ == "_LayerNormBackward"
    assert type(found.grad_fn.next_functions[0][0]).__name__ == "_LinearBackward"
    torch.testing.assert_close(found, layer(states))


@pytest.mark.parametrize("count", [1, 4096, 10_000])
def test_copies_into_more_bits_are_exact(count: int) -> None:
    source, target = torch.randn(count, device=DEVICE, dtype=DTYPE), torch.full((count + 1,), 7.0, device=DEVICE)
    copy_wider(target[:count], source)
    assert torch.equal(target[:count], source.float())
    assert float(target[count]) == 7.0


def test_what_is_postponed_drops_nothing_outside_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setattr(layer_norm, "_PROGRAMS", 8)
        monkeypatch.setattr(Quick, "applies", lambda *_: True)
    norm, quick = torch.nn.LayerNorm(32).to(DEVICE, DTYPE), Quick()
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
    copies = Copies(list(zip(targets, sources, strict=True)))
    for _ in range(2):
        copies()
        for target, source in zip(targets, sources, strict=True):
            assert torch.equal(target, source.half())
            source.mul_(3.0)
    assert room[-1] == 7
