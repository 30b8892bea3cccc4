"""A normalising flow over one vector: an invertible map that makes sentence vectors look like draws from N(0, I).

Glow (Kingma & Dhariwal, 2018) reduced to vectors, as BERT-flow uses it. A step is an actnorm, a reversal of the
channels and an additive coupling; a level is a few steps; after each level but the last one half of the channels is
finished and leaves the flow.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from diffaug.errors import DiffaugError

# A parameter of a scale is a third of its logarithm, which so learns three times as fast. BERT-flow's published code
# does this, and the learning rates of the recipes are those it is run with.
_SCALE_SPEED = 3.0
# Standard deviation of the weights in a coupling's hidden layers when they start, as in BERT-flow's published code.
_INITIAL_WEIGHTS = 0.05
# A channel that varies less than this over the rows of the initialisation is a constant but for rounding.
_CONSTANT = 1e-6


class Actnorm(nn.Module):
    """A learned shift and scale a channel, which start so that a first batch has mean zero and variance one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))
        self.slow_log_scale = nn.Parameter(torch.zeros(width))

    @property
    def log_scale(self) -> Tensor:
        """(width,): its sum is the log-determinant."""
        return _SCALE_SPEED * self.slow_log_scale

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Set shift and scale from ``x``, (rows, width)."""
        mean, deviation = x.mean(0), x.std(0, correction=0)
        self.shift.copy_(-mean)
        # A constant channel keeps its scale: blown up, its rounding errors would be all the flow sees.
        scaled = torch.where(deviation > _CONSTANT, deviation, torch.ones_like(deviation))
        self.slow_log_scale.copy_(-scaled.log() / _SCALE_SPEED)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) -> (rows, width)"""
        return (x + self.shift) * self.log_scale.exp()

    def inverse(self, y: Tensor) -> Tensor:
        """(rows, width) -> (rows, width)"""
        return y * (-self.log_scale).exp() - self.shift


class ScaledLinear(nn.Linear):
    """A linear layer whose outputs have a learned scale, which starts at one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.slow_log_scale = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs)"""
        return super().forward(x) * (_SCALE_SPEED * self.slow_log_scale).exp()


class Coupling(nn.Module):
    """The second half of the channels moves by a function of the first: invertible whatever the function.

    A volume is moved, not changed: the log-determinant is zero.
    """

    def __init__(self, width: int, hidden: int, output_scale: bool = False) -> None:
        super().__init__()
        self.sizes = [width // 2, width - width // 2]
        inner = [nn.Linear(inputs, hidden, bias=False) for inputs in (self.sizes[0], hidden)]
        for layer in inner:  # without a bias: the actnorm behind each has one
            nn.init.normal_(layer.weight, std=_INITIAL_WEIGHTS)
        last = (ScaledLinear if output_scale else nn.Linear)(hidden, self.sizes[1])
        # The flow starts as a plain standardisation of the channels.
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.moves = nn.Sequential(inner[0], Actnorm(hidden), nn.ReLU(), inner[1], Actnorm(hidden), nn.ReLU(), last)

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Set the inner actnorms from ``x``, (rows, width)."""
        inner = x[:, : self.sizes[0]]
        for layer in self.moves:
            if isinstance(layer, Actnorm):
                layer.initialise(inner)
            inner = layer(inner)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) -> (rows, width)"""
        fixed, moved = x.split(self.sizes, dim=-1)
        return torch.cat([fixed, moved + self.moves(fixed)], dim=-1)

    def inverse(self, y: Tensor) -> Tensor:
        """(rows, width) -> (rows, width)"""
        fixed, moved = y.split(self.sizes, dim=-1)
        return torch.cat([fixed, moved - self.moves(fixed)], dim=-1)


class FlowStep(nn.Module):
    """Actnorm, reversal of the channels (which lets the halves of the coupling change places), coupling."""

    def __init__(self, width: int, hidden: int, output_scale: bool = False) -> None:
        super().__init__()
        self.actnorm = Actnorm(width)
        self.coupling = Coupling(width, hidden, output_scale)

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Set all actnorms from ``x``, (rows, width)."""
        self.actnorm.initialise(x)
        self.coupling.initialise(self.actnorm(x).flip(-1))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) -> (rows, width)"""
        y: Tensor = self.coupling(self.actnorm(x).flip(-1))
        return y

    def inverse(self, y: Tensor) -> Tensor:
        """(rows, width) -> (rows, width)"""
        return self.actnorm.inverse(self.coupling.inverse(y).flip(-1))


class Flow(nn.Module):
    """x -> z, both (rows, width), with a log-determinant. To be initialised with data before its first use.

    It computes in the precision of its parameters, float32, also under autocast: a likelihood is a sum over all
    channels and steps, and an inverse only inverts what was not rounded away.

    Args:
        width: of the vectors. An odd number of channels is divided as evenly as it can be.
        levels: after each but the last, half of the channels leaves the flow.
        steps: in each level.
        hidden: units in each of the two hidden layers of a coupling.
        continues: which half of the channels goes on to the next level: the `first`, which the last coupling has left
            alone, as in BERT-flow's published code, or the `second`, which it has moved.
        output_scale: the last layer of a coupling has a learned scale for each of its outputs, as in that code.

    Raises:
        DiffaugError: fewer channels than the levels need, or no levels, steps or hidden units at all.
    """

    initialised: Tensor

    def __init__(
        self,
        width: int,
        levels: int,
        steps: int,
        hidden: int = 32,
        continues: Literal["first", "second"] = "second",
        output_scale: bool = False,
    ) -> None:
        super().__init__()
        if min(levels, steps, hidden) < 1:
            raise DiffaugError(
                f"a flow has at least one level, step and hidden unit, not {levels}, {steps} and {hidden}"
            )
        if width < 2**levels:
            # Every level has two channels at least, one to look at and one to move.
            raise DiffaugError(
                f"vectors of width {width} are too short for a flow of {levels} levels, which halves them "
                f"{levels} times; use fewer levels"
            )
        self.width = width
        self._first_continues = continues == "first"
        self.levels = nn.ModuleList()  # of lists of steps
        self.finished: list[int] = []  # channels that leave the flow behind each level
        for level in range(levels):
            self.levels.append(nn.ModuleList(FlowStep(width, hidden, output_scale) for _ in range(steps)))
            self.finished.append(width if level == levels - 1 else width - width // 2)
            width = width // 2
        self.register_buffer("initialised", torch.tensor(False))

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Set every actnorm so that its output over ``x``, (rows, width), has mean zero and variance one.

        Raises:
            DiffaugError: fewer than two rows, over which nothing varies.
        """
        if len(x) < 2:
            raise DiffaugError(f"a flow is initialised with the spread of at least two vectors; there is {len(x)}")
        with self._full_precision(x):
            x = self._as_parameters(x)
            for steps, finished in self._levels():
                for step in steps:
                    step.initialise(x)
                    x = step(x)
                _, x = self._split(x, finished)
        self.initialised.fill_(True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The image of ``x``, and how much the flow stretches space there.

        Returns:
            z: (rows, width), the channels in the order in which they leave the flow: those behind level 1 first,
                those that went through all levels last.
            log_det: (rows,), log |det dz/dx|. Only the actnorms stretch, so that it is the same in all rows.
        """
        self._check()
        with self._full_precision(x):
            x = self._as_parameters(x)
            done: list[Tensor] = []
            log_det = x.new_zeros(())
            for steps, finished in self._levels():
                for step in steps:
                    x = step(x)
                    log_det = log_det + step.actnorm.log_scale.sum()
                leaving, x = self._split(x, finished)
                done.append(leaving)
            z = torch.cat(done, dim=-1)
            return z, log_det.expand(z.shape[0])  # len() would fix the number of rows in an export to ONNX

    def inverse(self, z: Tensor) -> Tensor:
        """The ``x`` whose image is ``z``; both (rows, width)."""
        self._check()
        with self._full_precision(z):
            parts = self._as_parameters(z).split(self.finished, dim=-1)
            x = parts[-1][:, :0]
            for (steps, _), part in zip(reversed(self._levels()), reversed(parts), strict=True):
                x = torch.cat([x, part] if self._first_continues else [part, x], dim=-1)
                for step in reversed(steps):
                    x = step.inverse(x)
            return x

    def _split(self, x: Tensor, finished: int) -> tuple[Tensor, Tensor]:
        """The channels that leave the flow, and those that go on."""
        if self._first_continues:
            going_on, leaving = x.split([x.shape[1] - finished, finished], dim=-1)
        else:
            leaving, going_on = x.split([finished, x.shape[1] - finished], dim=-1)
        return leaving, going_on

    def _check(self) -> None:
        if not self.initialised:
            raise DiffaugError("the flow has seen no data yet: call Flow.initialise with some vectors, or train it")

    def _as_parameters(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self.width:
            raise ValueError(f"the flow takes (rows, {self.width}), not {tuple(x.shape)}")
        return x.to(next(self.parameters()).dtype)

    @staticmethod
    def _full_precision(x: Tensor) -> torch.autocast:
        return torch.autocast(x.device.type, enabled=False)

    def _levels(self) -> list[tuple[list[FlowStep], int]]:
        """The steps of each level, and how many channels leave the flow behind it."""
        return [
            ([step for step in level.children() if isinstance(step, FlowStep)], finished)
            for level, finished in zip(self.levels, self.finished, strict=True)
        ]
