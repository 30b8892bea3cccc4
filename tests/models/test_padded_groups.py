"""Rows end to end, padded for a while: against padding row by row."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from diffaug.models import padded_groups as module
from diffaug.models.batch import PackedBatch, PaddedBatch, pack
from diffaug.models.padded_groups import PaddedGroup, padded_groups, split_by_tokens


def packed(lengths: list[int]) -> PackedBatch:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return pack(PaddedBatch(torch.ones_like(mask), mask), 0, fill=False)


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ([5], [1]),
        ([3, 3, 4], [3]),
        ([3, 3, 4, 4], [3, 1]),  # four times four are too many
        ([4, 3, 3, 3], [3, 1]),  # the longest need not be the last
        ([13, 2, 13], [1, 1, 1]),
        ([13], [1]),
    ],
)
def test_parts_stay_within_the_budget(lengths: list[int], sizes: list[int]) -> None:
    parts = split_by_tokens(lengths, 12)
    assert [part.stop - part.start for part in parts] == sizes
    assert [length for part in parts for length in lengths[part]] == lengths


def one_for_all(batch: PackedBatch) -> list[PaddedGroup]:
    """As on a GPU, wider than any row."""
    return [module._group(batch, slice(0, len(batch.starts)), 0, len(batch.sequence_ids), batch.max_keys)]


@pytest.mark.parametrize("lengths", [[1, 2, 2, 5, 7, 7, 7, 7], [4, 4, 4], [6, 1, 3, 2, 2, 9]])
@pytest.mark.parametrize("several", [True, False])
def test_padded_and_back(lengths: list[int], several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROUP_TOKENS", 16)
    batch = packed(lengths)
    found = padded_groups(batch) if several else one_for_all(batch)
    assert sum(group.tokens for group in found) == sum(lengths)
    states = torch.randn(sum(lengths), 2, 3, requires_grad=True)
    for group, part in zip(found, states.split([group.tokens for group in found]), strict=True):
        own = lengths[group.rows]
        rows = part.split(own)
        padded = group.pad(part)
        assert padded.shape == (len(own), group.width, 2, 3)
        real = group.is_token.view(len(own), group.width)
        assert real.sum(1).tolist() == own
        expected = pad_sequence(list(rows), batch_first=True)
        assert torch.equal((padded * real[..., None, None])[:, : expected.shape[1]], expected)
        assert torch.equal(group.unpad(padded), part)
        mask = group.mask(2)
        seen = torch.ones(len(own), 2 + group.width, dtype=torch.bool) if mask is None else mask[:, 0, 0]
        assert seen.sum(1).tolist() == [2 + length for length in own]


@pytest.mark.parametrize("several", [True, False])
def test_gradients_are_those_of_padding_row_by_row(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What mixes the tokens of a row reads its own alone, and of its results the padding's are dropped."""
    monkeypatch.setattr(module, "_GROUP_TOKENS", 16)
    lengths = [1, 2, 2, 5, 7, 7, 7, 7]
    batch = packed(lengths)
    states = torch.randn(sum(lengths), 3, requires_grad=True)
    weights = torch.randn_like(states)

    def mixed(rows: torch.Tensor, real: torch.Tensor) -> torch.Tensor:  # (.., width, 3)
        return (rows * real[..., None]).sum(-2, keepdim=True) ** 2 + rows**3

    results = []
    found = padded_groups(batch) if several else one_for_all(batch)
    for group, part in zip(found, states.split([group.tokens for group in found]), strict=True):
        results.append(group.unpad(mixed(group.pad(part), group.is_token.view(-1, group.width))))
    (gradient,) = torch.autograd.grad((torch.cat(results) * weights).sum(), states)
    by_row = torch.cat([mixed(row, torch.ones(len(row))) for row in states.split(lengths)])
    (expected,) = torch.autograd.grad((by_row * weights).sum(), states)
    torch.testing.assert_close(gradient, expected)
