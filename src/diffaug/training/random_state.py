"""The state of torch's random numbers: of the CPU, and of the device that a run computes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states by device type, as `set_random_state` takes them."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_random_state(device: torch.device, states: Mapping[str, Tensor]) -> None:
    """Set the states; one of another type of device is ignored."""
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu" and device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type], device)


@contextmanager
def same_random_state(device: torch.device) -> Iterator[None]:
    """After this context the random numbers go on as if it had drawn none."""
    states = random_state(device)
    try:
        yield
    finally:
        set_random_state(device, states)
