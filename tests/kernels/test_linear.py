"""Linear layers whose gradients are computed together, against torch's own."""

from __future__ import annotations

from weakref import ref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffaug.kernels import linear
from diffaug.kernels.linear import LinearLayers

Layers = list[tuple[Tensor, Tensor | None]]


def layers_of(*sizes: int, biases: bool = True, learn: bool = True) -> Layers:
    parameters = [(torch.randn(size, 6), torch.randn(size) if biases else None) for size in sizes]
    return [(w.requires_grad_(learn), None if b is None else b.requires_grad_(learn)) for w, b in parameters]


def forward(layers: Layers, states: Tensor, product: object) -> Tensor:
    """What attention may look like: a layer by itself, three that read the same states, and two that do not."""
    assert callable(product)
    first, q, k, v, last = layers
    inner = product(states, *first).tanh()
    found = product(inner, *q) * product(inner, *k) + product(inner, *v)
    return product(found.tanh(), *last)


@pytest.fixture
def states() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(1, 7, 6, requires_grad=True)


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("learn", [True, False])
def test_results_and_gradients_are_torchs_in_every_forward(biases: bool, learn: bool, states: Tensor) -> None:
    layers, product = layers_of(6, 6, 6, 6, 3, biases=biases, learn=learn), LinearLayers()
    leaves = [states, *(p for layer in layers for p in layer if p is not None and p.requires_grad)]
    wanted = forward(layers, states, F.linear)
    gradient = torch.randn_like(wanted)
    of_torch = torch.autograd.grad(wanted, leaves, gradient)
    for _ in range(3):
        found = forward(layers, states, product)
        product.end_forward()
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found, leaves, gradient), of_torch)


def test_layers_that_read_the_same_are_computed_together_from_the_second_forward(
    states: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []

    def counted(states: Tensor, layers: Layers, ones: Tensor | None, passes: bool) -> tuple[Tensor, ...]:
        together.append(len(layers))
        return tuple(F.linear(states, *layer) for layer in layers)

    monkeypatch.setattr(linear, "linear", counted)
    layers, product = layers_of(6, 6, 6, 6, 3), LinearLayers()
    for _ in range(2):
        forward(layers, states, product)
        product.end_forward()
    assert together == [1] * 5 + [1, 3, 1]


def test_a_layer_that_reads_something_else_than_it_did_is_right_nevertheless(states: Tensor) -> None:
    (a, b), product = layers_of(4, 4), LinearLayers()
    other, bias = torch.randn(1, 7, 6), torch.randn(4)
    for layer in (a, b):
        product(states, *layer)
    product.end_forward()
    for read, layer in ((states, a), (other, b), (other, a), (states, b), (other, (b[0], bias)), (states, a)):
        torch.testing.assert_close(product(read, *layer), F.linear(read, *layer))
    assert product._ready
    product.end_forward()
    assert not product._ready


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("learn", [True, False])
def test_the_gradient_of_what_goes_past_is_added_by_the_layers_that_read_it(
    together: bool, learn: bool, states: Tensor
) -> None:
    layers, product = layers_of(*[6, 6][: 1 + together], learn=learn), LinearLayers()
    leaves = [states, *(p for layer in layers for p in layer if p is not None and p.requires_grad)]
    for forward in range(2):
        inner = states.tanh()
        found = product(inner, *layers[0], passes=forward == 1)
        found = found * product(inner, *layers[-1])
        past = product.past(inner)
        assert (past is inner) == (forward == 0)
        assert product.past(inner) is inner, "once only: somebody else's gradient may be anybody's"
        wanted = F.linear(inner, *layers[0]) * F.linear(inner, *layers[-1]) + inner.exp()
        of_torch = torch.autograd.grad(wanted.sum(), leaves, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad((found + past.exp()).sum(), leaves), of_torch)
        product.end_forward()


def test_gradients_of_states_and_of_what_goes_past_are_summed_in_place(states: Tensor) -> None:
    _, past = linear.linear(states, layers_of(4), torch.ones(1, 7), True)
    assert past.data_ptr() == states.data_ptr()
    gradient = torch.randn_like(past)
    (found,) = torch.autograd.grad(past, states, gradient)
    assert found.data_ptr() == gradient.data_ptr()


def test_layers_of_which_only_some_learn_stay_alone(states: Tensor) -> None:
    (learns,), (frozen,), product = layers_of(4), layers_of(4, learn=False), LinearLayers()
    for layer in (learns, frozen):
        product(states, *layer)
    product.end_forward()
    product(states, *learns)
    assert not product._ready


@pytest.mark.parametrize("learn", [True, False])
def test_states_are_kept_for_weights_that_learn_and_no_others(learn: bool, states: Tensor) -> None:
    found = LinearLayers()(states, *layers_of(4, learn=learn)[0])
    assert any(kept is states for kept in found.grad_fn.saved_tensors) == learn  # type: ignore[union-attr]


def test_gradients_that_lie_concatenated_are_not_copied() -> None:
    whole = torch.randn(5, 3, 4)
    parts = list(whole.unbind(1))
    found = linear._concatenated(parts)
    assert found.data_ptr() == whole.data_ptr()
    assert torch.equal(found, whole.flatten(1))
    # In another order, with a gap, of different tensors, or not along the rows.
    for others in (
        parts[::-1],
        parts[::2],
        [parts[0], parts[0]],
        [torch.randn(5, 4), parts[1]],
        [p.t() for p in parts],
    ):
        assert torch.equal(linear._concatenated(others), torch.cat(others, dim=1))
    ends = [whole.flatten()[:40].view(10, 4), whole.flatten()[4:44].view(10, 4)]  # overlapping
    assert torch.equal(linear._concatenated(ends), torch.cat(ends, dim=1))


def test_states_that_no_gradient_needs_are_let_go_in_the_first_forward_too() -> None:
    product, states = LinearLayers(), torch.randn(1, 7, 6)
    (frozen,) = layers_of(6, learn=False)
    kept = ref(states)
    product(states, *frozen)
    del states
    assert kept() is None
