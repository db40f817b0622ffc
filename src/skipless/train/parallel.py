"""A network whose gradients are averaged over the processes that train it together."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .process import Process


def parallel(model: nn.Module, process: Process) -> nn.Module:
    """The model itself for a process that is alone; else one that the processes share."""
    if process.world == 1:
        return model
    cuda = process.device.type == "cuda"
    if cuda:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    elif process.leads and any(
        isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d) for m in model.modules()
    ):
        warnings.warn(
            f"BatchNorm takes its statistics over each of the {process.world} processes' shares of "
            "a batch, because PyTorch has no SyncBatchNorm for CPUs: losses differ from those of "
            "one process.",
            stacklevel=3,
        )
    return DistributedDataParallel(model, device_ids=[process.device.index] if cuda else None)


def apart(network: nn.Module) -> AbstractContextManager[None]:
    """While entered, gradients are kept here: they are averaged with those of a later pass."""
    return network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext()
