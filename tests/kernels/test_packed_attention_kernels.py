"""Attention of rows end to end against plain torch: on a GPU, or without one in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from triton_device import DEVICE, DTYPE, INTERPRETED, leaf

from diffaug.kernels import attention
from diffaug.kernels.attention import attend
from diffaug.models.batch import PackedBatch, PaddedBatch, pack
from diffaug.models.packed_attention import PackedAttention

# Of values of about one.
TOLERANCE = 1e-5 if INTERPRETED else 2e-2
HEADS, DIM = 2, 16


@pytest.fixture(autouse=True, params=[True, False], ids=["as it is", "many blocks"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as users have it; once rows of few tokens count as long ones, and have several blocks."""
    if not request.param:
        monkeypatch.setattr(attention, "_SHORT", (32,))
        monkeypatch.setattr(attention, "_BLOCK", 16)


def batch(lengths: list[int], views: list[int] | None, before: int = 0, *, fill: bool = True) -> PackedBatch:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    rows = PaddedBatch(torch.ones_like(mask), mask, view_ids=None if views is None else torch.tensor(views))
    return pack(rows, 0, before, fill=fill).to(DEVICE)


def seeds(weights: int, prefix: int = 0) -> Tensor:
    return torch.tensor([weights, prefix], device=DEVICE)


def by_hand(
    q: Tensor, k: Tensor, v: Tensor, prefix: Tensor | None, packed: PackedBatch, kept: Tensor | None = None
) -> Tensor:
    """Sentence by sentence, in float32; ``kept`` (2, rows, heads, length, head_dim) multiplies each row's prefix."""
    found = []
    for row, (start, length) in enumerate(zip(packed.starts.tolist(), packed.lengths.tolist(), strict=True)):
        own = slice(start, start + length)
        keys, values = k[own].float(), v[own].float()
        if prefix is not None:
            view = 0 if packed.view_ids is None else int(packed.view_ids[row])
            before = prefix[:, view].float()
            if kept is not None:
                before = before * kept[:, row]
            before = before.transpose(1, 2)  # (2, length, heads, head_dim)
            keys, values = torch.cat([before[0], keys]), torch.cat([before[1], values])
        weights = torch.einsum("qhd,khd->hqk", q[own].float(), keys).mul(DIM**-0.5).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(found)


@pytest.mark.parametrize(
    "lengths", [[5, 20, 1, 17], [40, 3, 33], [100, 31, 64], [150, 300, 9, 70]], ids=["short", "two", "three", "all"]
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
    found = attend(*leaves, prefix, packed, DIM**-0.5)
    wanted = by_hand(*leaves, prefix, packed)
    torch.testing.assert_close(found.float(), wanted, rtol=TOLERANCE, atol=TOLERANCE)
    ours = torch.autograd.grad(found, inputs, gradient.to(DTYPE))
    theirs = torch.autograd.grad(wanted, inputs, gradient)
    for mine, reference in zip(ours, theirs, strict=True):
        scale = float(reference.abs().max())
        torch.testing.assert_close(mine.float(), reference.float(), rtol=TOLERANCE, atol=TOLERANCE * scale)


def dropped_weights(seed: int, tokens: int = DIM, rows: int = 8) -> Tensor:
    """(rows, heads, tokens, tokens): which weights dropout leaves, for rows of so many tokens each."""
    packed = batch([tokens] * rows, [0] * rows)
    total, width = packed.input_ids.shape[1], max(16, 1 << (tokens - 1).bit_length())
    nothing = torch.zeros(total, HEADS, width, device=DEVICE, dtype=DTYPE)
    # All weights are equal, and values the rows of a unit matrix: a result shows what became of each weight.
    values = torch.eye(width, device=DEVICE, dtype=DTYPE)[torch.arange(total, device=DEVICE) % tokens]
    values = values[:, None].expand(-1, HEADS, -1)
    found = attend(nothing, nothing, values, None, packed, 1.0, 0.25, seeds=seeds(seed))
    return (found[: rows * tokens, :, :tokens].unflatten(0, (rows, tokens)).transpose(1, 2) > 0).float()


@pytest.mark.parametrize("tokens", [DIM, 40])
def test_dropout_is_independent_over_weights_rows_heads_and_seeds(tokens: int) -> None:
    kept, other = dropped_weights(7, tokens), dropped_weights(8, tokens)
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
    packed = batch([20, 40, 9], [0, 1, 0], 3)
    tokens = packed.input_ids.shape[1]
    q, k = torch.zeros(2, tokens, HEADS, DIM, device=DEVICE, dtype=DTYPE)
    prefix = torch.zeros(2, 2, HEADS, 3, DIM, device=DEVICE, dtype=DTYPE)
    prefix[1] = 1
    v = torch.ones(tokens, HEADS, DIM, device=DEVICE, dtype=DTYPE, requires_grad=True)

    def dropped(seed: int) -> Tensor:
        return attend(q, k, v, prefix, packed, 1.0, 0.25, seeds=seeds(seed))

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


def test_gradients_with_dropout() -> None:
    """The weights that dropout takes out are known from equal weights: with these, plain torch's gradients."""
    torch.manual_seed(0)
    rows, tokens = 3, 40
    packed, kept = batch([tokens] * rows, [0] * rows), dropped_weights(5, tokens, rows)
    inputs = [leaf(packed.input_ids.shape[1], HEADS, DIM) for _ in range(3)]
    found = attend(*inputs, None, packed, DIM**-0.5, 0.25, seeds=seeds(5))[: rows * tokens]
    # (rows, heads, tokens, DIM)
    q, k, v = (part[: rows * tokens].float().unflatten(0, (rows, tokens)).transpose(1, 2) for part in inputs)
    weights = (q @ k.mT * DIM**-0.5).softmax(-1) * kept / 0.75
    wanted = (weights @ v).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(found.float(), wanted, rtol=TOLERANCE, atol=TOLERANCE)
    gradient = torch.randn_like(wanted)
    ours = torch.autograd.grad(found, inputs, gradient.to(DTYPE))
    for mine, reference in zip(ours, torch.autograd.grad(wanted, inputs, gradient), strict=True):
        scale = float(reference.abs().max())
        torch.testing.assert_close(mine.float(), reference.float(), rtol=TOLERANCE, atol=TOLERANCE * scale)


def prefix_masks(packed: PackedBatch, length: int, rate: float, seed: int) -> Tensor:
    """(2, rows, heads, length, DIM): what dropout multiplies each row's prefix by, read off results of attention."""
    total, rows = packed.input_ids.shape[1], len(packed.starts)
    zeros = torch.zeros(total, HEADS, DIM, device=DEVICE, dtype=DTYPE)
    keys = packed.lengths + length
    masks = torch.zeros(2, rows, HEADS, length, DIM, device=DEVICE)
    for vector in range(length):
        # All weights are equal and one vector alone has a value: a row's result is that vector's mask.
        prefix = torch.zeros(2, 2, HEADS, length, DIM, device=DEVICE, dtype=DTYPE)
        prefix[1, :, :, vector] = 1
        found = attend(zeros, zeros, zeros, prefix, packed, 1.0, 0.0, rate, seeds(0, seed)).float()
        masks[1, :, :, vector] = found[packed.starts] * keys[:, None, None]
        for channel in range(DIM):
            # One number of one key is not zero, and own values are one: the less they weigh, the larger that number.
            query, prefix = zeros.clone(), torch.zeros_like(prefix)
            query[..., channel] = 1
            prefix[0, :, :, vector, channel] = 1
            found = attend(query, zeros, zeros + 1, prefix, packed, 1.0, 0.0, rate, seeds(0, seed)).float()
            weight = found[packed.starts][..., 0] / packed.lengths[:, None]  # of one own key
            masks[0, :, :, vector, channel] = (1 / weight - keys[:, None] + 1).clamp(min=1e-6).log()
    return (masks > 0.5).float() / (1 - rate)


@pytest.mark.parametrize("lengths", [[5, 20, 1, 17], [70, 3, 40]], ids=["short", "long"])
def test_prefix_dropout_is_drawn_per_row_and_its_gradient_knows_what(lengths: list[int]) -> None:
    torch.manual_seed(0)
    length, rate = 2, 0.25
    packed = batch(lengths, [i % 2 for i in range(len(lengths))], length, fill=False)
    tokens = packed.input_ids.shape[1]
    kept = prefix_masks(packed, length, rate, seed=3)
    leaves = [leaf(tokens, HEADS, DIM) for _ in range(3)]
    prefix = leaf(2, 2, HEADS, length, DIM)
    found = attend(*leaves, prefix, packed, DIM**-0.5, 0.0, rate, seeds(0, 3))
    wanted = by_hand(*leaves, prefix, packed, kept)
    torch.testing.assert_close(found.float(), wanted, rtol=TOLERANCE, atol=TOLERANCE)
    gradient = torch.randn_like(wanted)
    ours = torch.autograd.grad(found, [*leaves, prefix], gradient.to(DTYPE))
    theirs = torch.autograd.grad(wanted, [*leaves, prefix], gradient)
    for mine, reference in zip(ours, theirs, strict=True):
        scale = float(reference.abs().max())
        torch.testing.assert_close(mine.float(), reference.float(), rtol=TOLERANCE, atol=TOLERANCE * scale)

    # Independent over rows, keys and values, heads, vectors and channels, and drawn anew with another seed.
    real = (kept > 0).float()
    other = attend(*leaves, prefix, packed, DIM**-0.5, 0.0, rate, seeds(0, 4))
    assert float(real.mean()) == pytest.approx(1 - rate, abs=0.06)
    pairs = {
        "keys and values": (real[0], real[1]),
        "rows": (real[:, :-1], real[:, 1:]),
        "heads": (real[:, :, :-1], real[:, :, 1:]),
        "vectors": (real[:, :, :, :-1], real[:, :, :, 1:]),
        "channels": (real[..., :-1], real[..., 1:]),
    }
    for name, sides in pairs.items():
        correlation = torch.corrcoef(torch.stack([side.flatten() for side in sides]))[0, 1]
        assert abs(float(correlation)) < 4 / sides[0].numel() ** 0.5, name
    assert not torch.equal(found, other)


def test_packed_states_and_kernel_agree() -> None:
    torch.manual_seed(0)
    packed = batch([7, 40, 12], [1, 0, 1], 4)
    q, k, v = (leaf(1, HEADS, packed.input_ids.shape[1], DIM) for _ in range(3))
    blocks = leaf(1, 2, 2, HEADS, 4, DIM)
    flat = [states.squeeze(0).transpose(0, 1) for states in (q, k, v)]
    kernel = attend(*flat, blocks[0], packed, DIM**-0.5)
    plain = PackedAttention(packed, 1, blocks.float()).attend(q.float(), k.float(), v.float(), None, 0.0)
    torch.testing.assert_close(kernel.float(), plain.squeeze(0), rtol=TOLERANCE, atol=TOLERANCE)
