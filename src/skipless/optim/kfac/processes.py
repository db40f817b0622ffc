"""The processes that train together under DistributedDataParallel: means, and shares of work."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

import torch
import torch.distributed as dist
from torch import Tensor


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this one is, from 0."""
    return dist.get_rank() if world() > 1 else 0


def average_(tensors: Sequence[Tensor]) -> None:
    """Replace the tensors by their means over all processes, in one message for each type."""
    if world() == 1:
        return
    for alike in _alike(tensors):
        message = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.all_reduce(message)
        _unpack(message.div_(world()), alike)


def share_(tensors: Sequence[Tensor], owners: Sequence[int]) -> None:
    """Replace each tensor by that of its owner, in one message from each process."""
    for owner in sorted(set(owners)) if world() > 1 else ():
        own = [tensor for tensor, by in zip(tensors, owners, strict=True) if by == owner]
        for alike in _alike(own):
            message = torch.cat([tensor.reshape(-1) for tensor in alike])
            dist.broadcast(message, src=owner)
            _unpack(message, alike)


def shares(costs: Sequence[float], bins: int) -> list[int]:
    """For each task the bin that it goes to, so that bins cost about the same.

    The dearest tasks go first, each to the bin that has least to do so far.

    >>> shares([1.0, 5.0, 3.0, 2.0], bins=2)
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


def _alike(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    alike: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(alike.values())


def _unpack(message: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = message.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
