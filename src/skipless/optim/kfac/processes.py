"""The processes that train together under DistributedDataParallel: means, and shares of work."""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapreplace

import torch
import torch.distributed as dist
from torch import Tensor

from skipless.optim.groups import by_dtype_and_device


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def average_(tensors: Sequence[Tensor]) -> None:
    """Replaces tensors by their means over all processes, in one message per dtype."""

    def average(message: Tensor) -> None:
        dist.all_reduce(message)
        message.div_(world_size())

    if world_size() > 1:
        _exchange_(tensors, average)


def broadcast_(tensors: Sequence[Tensor], owners: Sequence[int]) -> None:
    """Replaces each tensor by its owner's, in one message from each process."""
    for owner in sorted(set(owners)) if world_size() > 1 else ():
        own = [tensor for tensor, by in zip(tensors, owners, strict=True) if by == owner]
        _exchange_(own, partial(dist.broadcast, src=owner))


def _exchange_(tensors: Sequence[Tensor], exchange: Callable[[Tensor], object]) -> None:
    for group in by_dtype_and_device(tensors):
        message = torch.cat([tensor.reshape(-1) for tensor in group])
        exchange(message)
        parts = message.split([tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def means(values: Sequence[float], device: torch.device) -> list[float]:
    """The means of values over all processes."""
    own = torch.tensor(values, dtype=torch.float64, device=device)
    average_([own])
    return own.tolist()


def any_process(flags: Sequence[bool], device: torch.device) -> list[bool]:
    """For each flag, whether it is set on any of the processes."""
    if world_size() == 1 or not flags:
        return list(flags)
    return [mean > 0.0 for mean in means(flags, device)]


def balance(costs: Sequence[float], bins: int) -> list[int]:
    """For each task its bin, such that all bins cost about the same.

    The most expensive tasks go first, each to the bin with the least cost so far.

    >>> balance([1.0, 5.0, 3.0, 2.0], bins=2)
    [0, 0, 1, 1]
    """
    load = [(0.0, number) for number in range(bins)]  # a heap
    chosen = [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda task: -costs[task]):
        busy, number = load[0]
        chosen[task] = number
        heapreplace(load, (busy + costs[task], number))
    return chosen
