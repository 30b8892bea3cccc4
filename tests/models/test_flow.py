"""The flow: invertible, its log-determinant that of its Jacobian, its initialisation a standardisation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats
from torch import Tensor

from diffaug.errors import DiffaugError
from diffaug.losses.likelihood import bits_per_dimension
from diffaug.models.flow import Actnorm, Coupling, Flow

# Even, divided evenly to the last level, and odd at every level.
SHAPES = [(8, 1), (16, 2), (32, 3), (7, 2), (13, 3)]
RELEASED = {"continues": "first", "output_scale": True}  # what the recipes have
either_form = pytest.mark.parametrize("form", [{}, RELEASED], ids=["default", "released"])


def random_flow(width: int, levels: int, seed: int = 0, **form: Any) -> Flow:
    """A flow far from its starting point: every parameter moved at random, the couplings' last layers too."""
    torch.manual_seed(seed)
    flow = Flow(width, levels, steps=3, hidden=8, **form)
    flow.initialise(correlated(64, width))
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return flow


def correlated(rows: int, width: int, seed: int = 0) -> Tensor:
    """Gaussian vectors with a mean, unequal variances and correlations, as pooled states have."""
    return 3 + torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) @ mixing(width)


def mixing(width: int) -> Tensor:
    """(width, width): its square is the covariance of `correlated`."""
    return torch.randn(width, width, generator=torch.Generator().manual_seed(99)) * torch.linspace(0.1, 2, width)


@either_form
@pytest.mark.parametrize(("width", "levels"), SHAPES)
def test_the_inverse_takes_everything_back(width: int, levels: int, form: dict[str, Any]) -> None:
    flow, x = random_flow(width, levels, **form), correlated(9, width)
    z, log_det = flow(x)
    assert z.shape == x.shape
    assert log_det.shape == (9,)
    assert not torch.allclose(z, x, atol=0.5)
    torch.testing.assert_close(flow.inverse(z), x, rtol=1e-4, atol=1e-4)
    exact, z = flow.double(), z.double()
    torch.testing.assert_close(exact(exact.inverse(z))[0], z, rtol=1e-10, atol=1e-10)


@either_form
@pytest.mark.parametrize(("width", "levels"), SHAPES)
def test_the_log_determinant_is_that_of_the_jacobian(width: int, levels: int, form: dict[str, Any]) -> None:
    flow, x = random_flow(width, levels, **form).double(), correlated(3, width).double()
    log_dets = flow(x)[1].detach()
    assert float(log_dets[0]) != pytest.approx(0, abs=0.1)
    for row, log_det in zip(x, log_dets, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda v: flow(v[None])[0][0], row)
        assert (jacobian - torch.diag(jacobian.diag())).abs().max() > 0.05, "nothing is mixed: the test shows nothing"
        torch.testing.assert_close(torch.linalg.slogdet(jacobian).logabsdet, log_det, rtol=1e-9, atol=1e-9)


@either_form
def test_channels_leave_in_the_order_documented(form: dict[str, Any]) -> None:
    """What leaves behind level 1 stands first, and level 2 cannot touch it."""
    flow, x = random_flow(16, 2, **form), correlated(5, 16)
    before = flow(x)[0]
    with torch.no_grad():
        for parameter in flow.levels[1].parameters():
            parameter.add_(1.0)
    after = flow(x)[0]
    assert torch.equal(before[:, :8], after[:, :8])
    assert (before[:, 8:] != after[:, 8:]).all()


def test_the_released_form_is_the_computation_of_the_released_code() -> None:
    """Its steps, written anew with NumPy: additive couplings, and behind a level the second half leaves."""
    flow, x = random_flow(32, 3, **RELEASED).double(), correlated(5, 32).double()
    weights = {name: value.detach().numpy() for name, value in flow.state_dict().items()}
    rest, left, log_det = x.numpy(), [], 0.0
    for level in range(3):
        for step in range(3):
            at = f"levels.{level}.{step}."

            def actnorm(values: Any, name: str, at: str = at) -> Any:
                return (values + weights[f"{at}{name}.shift"]) * np.exp(3 * weights[f"{at}{name}.slow_log_scale"])

            log_det += 3 * weights[f"{at}actnorm.slow_log_scale"].sum()
            rest = actnorm(rest, "actnorm")[:, ::-1]
            kept, moved = np.split(rest, 2, axis=1)
            inner = np.maximum(actnorm(kept @ weights[f"{at}coupling.moves.0.weight"].T, "coupling.moves.1"), 0)
            inner = np.maximum(actnorm(inner @ weights[f"{at}coupling.moves.3.weight"].T, "coupling.moves.4"), 0)
            shift = inner @ weights[f"{at}coupling.moves.6.weight"].T + weights[f"{at}coupling.moves.6.bias"]
            moved = moved + shift * np.exp(3 * weights[f"{at}coupling.moves.6.slow_log_scale"])
            rest = np.concatenate([kept, moved], axis=1)
        if level < 2:
            rest, leaving = np.split(rest, 2, axis=1)
            left.append(leaving)
    z, found = flow(x)
    np.testing.assert_allclose(z.detach().numpy(), np.concatenate([*left, rest], axis=1), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.detach().numpy(), np.full(5, log_det), rtol=1e-10)


def test_every_channel_is_moved_by_others() -> None:
    flow, row = random_flow(16, 2).double(), correlated(1, 16)[0].double()
    jacobian = torch.autograd.functional.jacobian(lambda v: flow(v[None])[0][0], row)
    assert ((jacobian.abs() > 1e-6).sum(1) > 1).all()


def test_actnorm_starts_with_mean_zero_and_variance_one() -> None:
    x, actnorm = correlated(50, 6), Actnorm(6)
    actnorm.initialise(x)
    y = actnorm(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(6), rtol=0, atol=1e-5)
    torch.testing.assert_close(y.pow(2).mean(0), torch.ones(6), rtol=0, atol=1e-5)


def test_a_constant_channel_is_centred_and_not_blown_up() -> None:
    x, actnorm = correlated(50, 3), Actnorm(3)
    x[:, 1] = 7.3
    actnorm.initialise(x)
    assert actnorm.log_scale[1] == 0
    torch.testing.assert_close(actnorm(x)[:, 1], torch.zeros(50), rtol=0, atol=1e-4)


@either_form
@pytest.mark.parametrize(("width", "levels"), SHAPES)
def test_initialisation_standardises_every_channel_and_every_hidden_unit(
    width: int, levels: int, form: dict[str, Any]
) -> None:
    torch.manual_seed(1)
    flow, x = Flow(width, levels, steps=3, **form), correlated(64, width)
    seen: list[Tensor] = []
    for module in flow.modules():
        if isinstance(module, Actnorm):
            module.register_forward_hook(lambda module, args, out: seen.append(out.detach()))
    flow.initialise(x)
    seen.clear()
    z, log_det = flow(x)
    assert len(seen) == levels * 3 * 3
    for out in (*seen, z):
        torch.testing.assert_close(out.mean(0), torch.zeros(out.shape[1]), rtol=0, atol=1e-4)
        torch.testing.assert_close(out.pow(2).mean(0), torch.ones(out.shape[1]), rtol=0, atol=1e-3)
    # The couplings start without effect, so that all the flow does is to divide by the standard deviations.
    torch.testing.assert_close(log_det[0], -x.std(0, correction=0).log().sum(), rtol=1e-4, atol=1e-4)


def test_hidden_weights_start_with_the_released_deviation() -> None:
    torch.manual_seed(0)
    first, second = (Coupling(768, 32).moves[i].weight for i in (0, 3))
    assert float(first.detach().std()) == pytest.approx(0.05, rel=0.03)
    assert float(second.detach().std()) == pytest.approx(0.05, rel=0.1)


def test_a_coupling_leaves_its_first_half_alone() -> None:
    torch.manual_seed(0)
    coupling, x = Coupling(6, 8), torch.randn(4, 6)
    assert torch.equal(coupling(x), x)  # the last layer starts at zero
    torch.nn.init.normal_(coupling.moves[-1].weight)
    y = coupling(x)
    assert torch.equal(y[:, :3], x[:, :3])
    assert (y[:, 3:] != x[:, 3:]).any(0).all()


@either_form
def test_training_lowers_the_bits_per_dimension_towards_the_entropy_of_the_data(form: dict[str, Any]) -> None:
    torch.manual_seed(0)
    flow = Flow(16, 2, steps=3, **form)
    flow.initialise(correlated(256, 16))
    held_out = correlated(4096, 16, seed=1_000)
    with torch.no_grad():
        before = float(bits_per_dimension(*flow(held_out)))
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-2)
    for step in range(60):
        loss = bits_per_dimension(*flow(correlated(256, 16, seed=step)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in flow.parameters())
    with torch.no_grad():
        after = float(bits_per_dimension(*flow(held_out)))
    assert after < before - 0.2
    # No density can describe data in fewer bits than their entropy; a wrong log-determinant would go below it.
    covariance = mixing(16).T @ mixing(16)
    entropy = stats.multivariate_normal(cov=covariance.double().numpy()).entropy() / (16 * math.log(2))
    assert after > entropy - 0.02


def test_full_precision_under_autocast() -> None:
    flow, x = random_flow(16, 2), correlated(5, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z, log_det = flow(x)
        back = flow.inverse(z)
    assert z.dtype == torch.float32
    assert torch.equal(z, flow(x)[0])
    assert torch.equal(log_det, flow(x)[1])
    assert torch.equal(back, flow.inverse(z))
    assert flow(x.bfloat16())[0].dtype == torch.float32

    plain, inside = Flow(16, 2, steps=3), Flow(16, 2, steps=3)
    inside.load_state_dict(plain.state_dict())
    plain.initialise(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside.initialise(x)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, inside.state_dict()[name])


def test_the_state_carries_everything_also_that_it_is_initialised(tmp_path: Path) -> None:
    flow, x = random_flow(16, 2), correlated(5, 16)
    save_file(flow.state_dict(), tmp_path / "flow.safetensors")
    again = Flow(16, 2, steps=3, hidden=8)
    assert not again.initialised
    again.load_state_dict(load_file(tmp_path / "flow.safetensors"))
    assert again.initialised
    assert torch.equal(again(x)[0], flow(x)[0])


def test_no_use_before_the_initialisation() -> None:
    flow = Flow(8, 2, steps=1)
    with pytest.raises(DiffaugError, match="no data yet"):
        flow(torch.randn(3, 8))
    with pytest.raises(DiffaugError, match="no data yet"):
        flow.inverse(torch.randn(3, 8))
    with pytest.raises(DiffaugError, match="at least two vectors; there is 1"):
        flow.initialise(torch.randn(1, 8))
    assert not flow.initialised


def test_shapes_that_make_no_flow_are_refused() -> None:
    with pytest.raises(DiffaugError, match="width 7 are too short for a flow of 3 levels"):
        Flow(7, 3, steps=3)
    with pytest.raises(DiffaugError, match="at least one level"):
        Flow(8, 0, steps=3)
    with pytest.raises(ValueError, match="takes"):
        random_flow(8, 2)(torch.randn(3, 9))
