"""The processes that train together under DistributedDataParallel: means, and shares of work."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def average_(tensors: Sequence[Tensor]) -> None:
    """Replaces tensors by their means over all processes, in one message per dtype."""
    if world_size() == 1:
        return
    for group in _by_dtype_and_device(tensors):
        message = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.all_reduce(message)
        _unpack_(message.div_(world_size()), group)


def broadcast_(tensors: Sequence[Tensor], owners: Sequence[int]) -> None:
    """Replaces each tensor by its owner's, in one message from each process."""
    for owner in sorted(set(owners)) if world_size() > 1 else ():
        own = [tensor for tensor, by in zip(tensors, owners, strict=True) if by == owner]
        for group in _by_dtype_and_device(own):
            message = torch.cat([tensor.reshape(-1) for tensor in group])
            dist.broadcast(message, src=owner)
            _unpack_(message, group)


def any_process(flags: Sequence[bool], device: torch.device) -> list[bool]:
    """For each flag, whether it is set on any of the processes."""
    if world_size() == 1 or not flags:
        return list(flags)
    means = torch.tensor([float(flag) for flag in flags], device=device)
    average_([means])
    return (means > 0).tolist()


def balance(costs: Sequence[float], bins: int) -> list[int]:
    """For each task its bin, such that all bins cost about the same.

    The most expensive tasks go first, each to the bin with the least cost so far.

    >>> balance([1.0, 5.0, 3.0, 2.0], bins=2)
    [0, 0, 1, 1]
    """
    load = [(0.0, number) for number in range(bins)]
    heapify(load)
    chosen = [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda task: -costs[task]):
        busy, number = load[0]
        chosen[task] = number
        heapreplace(load, (busy + costs[task], number))
    return chosen


def _by_dtype_and_device(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def _unpack_(message: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = message.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
