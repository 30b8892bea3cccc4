"""Several processes as one: vectors gathered with their gradients, gradients averaged.

Every process computes the contrastive loss of the whole joined batch. Its gradient with respect to a process's own
vectors is the sum over all processes (each has the same loss), and averaging the parameters' gradients over processes
takes that factor out again: loss and gradients equal those of one process on the joined batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this is the process that speaks for all."""
    return world_size() == 1 or dist.get_rank() == 0


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, own: Tensor) -> Tensor:
        parts = [torch.empty_like(own) for _ in range(world_size())]
        dist.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total.chunk(world_size())[dist.get_rank()]


def gather_rows(own: Tensor) -> Tensor:
    """The rows of all processes, in their order, through which gradients flow back. All have equally many."""
    if world_size() == 1:
        return own
    gathered: Tensor = _Gather.apply(own)
    return gathered


def own_rows(gathered: Tensor) -> Tensor:
    """This process's share of what `gather_rows` brought together."""
    return gathered if world_size() == 1 else gathered.chunk(world_size())[dist.get_rank()]


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace every gradient by its mean over the processes, in one message."""
    if world_size() == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world_size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def any_process(flags: Sequence[bool], device: torch.device) -> list[bool]:
    """For each flag, whether it is set in any process, in one message; all processes get the same answer."""
    if world_size() == 1:
        return list(flags)
    counts = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(counts)
    return [count > 0 for count in counts.tolist()]
