"""Replaced-token detection, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from diffaug.losses.replaced import choose_masked, replaced_labels, replaced_token_loss


def candidates(*lengths: int) -> torch.Tensor:
    """Rows of [CLS], a sentence of each length, [SEP], padding: only the sentence may be masked."""
    place = torch.arange(max(lengths) + 2)
    return (place >= 1) & (place <= torch.tensor(lengths).unsqueeze(1))


def test_a_whole_number_of_tokens_is_chosen_exactly_and_only_among_the_candidates() -> None:
    torch.manual_seed(0)
    allowed = candidates(*[10] * 200, *[20] * 200)
    chosen = choose_masked(allowed, 0.3)
    assert chosen.sum(1).tolist() == [3] * 200 + [6] * 200
    assert not bool((chosen & ~allowed).any())


def test_every_token_is_equally_likely_and_rows_are_independent() -> None:
    torch.manual_seed(0)
    chosen = choose_masked(candidates(*[10] * 20_000), 0.3)
    # The standard deviation of a share is 0.003.
    assert chosen[:, 1:11].float().mean(0).tolist() == pytest.approx([0.3] * 10, abs=0.015)
    pairs = (chosen[0::2] & chosen[1::2])[:, 1:11].float().mean()
    assert float(pairs) == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize("length", [1, 2, 5, 7])
def test_chance_rounds_so_that_the_mean_is_right(length: int) -> None:
    torch.manual_seed(0)
    counts = choose_masked(candidates(*[length] * 20_000), 0.3).sum(1)
    assert set(counts.tolist()) == {math.floor(0.3 * length), math.ceil(0.3 * length)}
    assert float(counts.float().mean()) == pytest.approx(0.3 * length, abs=0.02)


def test_nothing_everything_and_empty_sentences() -> None:
    allowed = candidates(4, 0, 7)
    assert not bool(choose_masked(allowed, 0.0).any())
    assert torch.equal(choose_masked(allowed, 1.0), allowed)


def test_the_seed_decides() -> None:
    allowed = candidates(*range(3, 30))
    torch.manual_seed(1)
    first = choose_masked(allowed, 0.3)
    second = choose_masked(allowed, 0.3)
    torch.manual_seed(1)
    assert torch.equal(choose_masked(allowed, 0.3), first)
    assert not torch.equal(first, second)


def test_labels_and_loss_by_hand() -> None:
    # "[CLS] a dog runs [SEP]" and "[CLS] yes [SEP]": the generator wrote "cat" for "dog" and got "yes" right.
    original = torch.tensor([[101, 5, 6, 7, 102], [101, 8, 102, 0, 0]])
    filled = torch.tensor([[101, 5, 9, 7, 102], [101, 8, 102, 0, 0]])
    real = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    labels = replaced_labels(original, filled)
    assert labels.tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]

    logits = torch.zeros(2, 5, 2)  # log 2 for every token it has no opinion on
    logits[0, 2] = torch.tensor([0.0, 3.0])  # replaced, and right
    logits[0, 3] = torch.tensor([-1.0, 1.0])  # replaced, and wrong
    logits[1, 3:] = 50.0 * torch.tensor([-1.0, 1.0])  # nonsense at padding must not count
    total, tokens = replaced_token_loss(logits, labels, real)
    expected = 6 * math.log(2) + math.log(1 + math.exp(-3)) + math.log(1 + math.exp(2))
    assert float(total) == pytest.approx(expected, rel=1e-6)
    assert float(tokens) == 8


def test_no_gradient_reaches_padding_and_bf16_logits_are_widened() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 2, dtype=torch.bfloat16, requires_grad=True)
    real = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    total, tokens = replaced_token_loss(logits, torch.zeros(3, 4, dtype=torch.long), real)
    assert total.dtype == tokens.dtype == torch.float32
    total.backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(-1) > 0, real)
