"""What the first of several processes of `torchrun` tells the others to train."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist

from skipless.train.process import joined

from .outcome import Outcome

# The name of a run to take part in; None, to wait on; or at the end what came of all of them.
Message = str | dict[str, Outcome] | None


def several() -> bool:
    """Whether there are others."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def leads() -> bool:
    """Whether this process is the one that tells the others."""
    return int(os.environ.get("RANK", 0)) == 0


def connected() -> AbstractContextManager[object]:
    """All processes are connected, for `told` and for every run."""
    return joined() if several() else nullcontext()


def told(message: Message) -> Message:
    """What the first process says, in all of them; whoever is alone tells nobody."""
    if not several():
        return message
    said = [message]
    dist.broadcast_object_list(said, src=0)
    return said[0]


def followed(trained: Callable[[str], bool]) -> dict[str, Outcome]:
    """What came of all runs, after taking part in those that the first process named."""
    while not isinstance(message := told(None), dict):
        if message is not None:
            trained(message)
    return message
