"""This process among those that train together, as `torchrun` started them, and its device.

A network whose gradients are averaged over the processes that train it together.

Signals that ask a run to stop, remembered until it can.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")

DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class Process:
    """Which of `world` processes this one is, and the device that it computes on."""

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes."""
        if self.world == 1:
            return values
        values = values.clone()
        dist.all_reduce(values)
        return values

    def any_rank(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether it is set in any process."""
        if self.world == 1:
            return list(flags)
        # On the CPU, so that no GPU has to be waited for.
        values = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return [bool(value) for value in values.tolist()]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the tensors of the first one."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        if self.world == 1:
            return [value]
        values: list[T] = [value] * self.world
        dist.all_gather_object(values, value)
        return values


@contextmanager
def process_group(device: str = "auto", threads: int | None = None) -> Iterator[Process]:
    """This process, connected to the others if `torchrun` started several.

    Several runs of one job share a connection that was made around them: the store of `torchrun`
    keeps the addresses of an earlier one, and who comes first to the next would wait for these.
    On the CPU denormal numbers are taken as zero: in degenerate deep networks they are everywhere,
    and a hundred times slower than others. Call this before the first computation, because threads
    take the setting over when they start. Afterwards all settings are as before.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"{threads} threads were asked for; give 1 or more.")
    world, chosen = _number("WORLD_SIZE", 1), _device(device)
    with _settings(threads):
        if world == 1:
            yield Process(device=chosen)
            return
        if dist.is_initialized():
            yield Process(dist.get_rank(), world, chosen)
            return
        dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo")
        try:
            yield Process(dist.get_rank(), world, chosen)
            dist.barrier()  # none leaves while another one may still need it
        finally:
            dist.destroy_process_group()


@contextmanager
def _settings(threads: int | None) -> Iterator[None]:
    """Denormals flushed, and so many threads, for a while."""
    threads_before = torch.get_num_threads()
    flushed_before = not torch.tensor(1e-40).mul(1.0).item()  # which nothing else tells
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads_before if threads is None else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        torch.set_flush_denormal(flushed_before)


def exit_with_parent() -> None:
    """Let this process, one that another one started, end when that is gone, be it by SIGKILL."""

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def cores() -> int:
    """How many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # which not every system has
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _device(name: str) -> torch.device:
    if name not in DEVICES:
        raise ValueError(f"Device {name!r} was asked for; the devices are {', '.join(DEVICES)}.")
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    if not there[name]:
        raise ValueError(f"Device {name} was asked for, but PyTorch sees none here. Use cpu.")
    if name != "cuda":
        return torch.device(name)
    chosen = torch.device("cuda", _number("LOCAL_RANK", 0))
    torch.cuda.set_device(chosen)
    return chosen


def _number(variable: str, default: int) -> int:
    return int(os.environ.get(variable, default))


def distribute(model: nn.Module, process: Process) -> nn.Module:
    """The model itself for a process that is alone; else one that the processes share."""
    if process.world == 1:
        return model
    cuda = process.device.type == "cuda"
    if cuda:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    elif process.is_main and any(
        isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d) for m in model.modules()
    ):
        warnings.warn(
            f"BatchNorm takes its statistics over each of the {process.world} processes' shares of "
            "a batch, because PyTorch has no SyncBatchNorm for CPUs: losses differ from those of "
            "one process.",
            stacklevel=3,
        )
    return DistributedDataParallel(model, device_ids=[process.device.index] if cuda else None)


def no_sync(network: nn.Module) -> AbstractContextManager[None]:
    """While entered, gradients are kept here: they are averaged with those of a later pass."""
    return network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext()


class Interruption:
    """While entered, SIGTERM and SIGINT only set `requested`; a second one acts as usual.

    With `patient`, no number of them does more: `torchrun` sends again what its processes have had
    from the terminal already. Python takes signals in the main thread only; in any other nothing is
    changed.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, *, patient: bool = False) -> None:
        self.requested = False
        self._patient = patient
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._remember) for one in self._SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if not self._patient:
            self._restore()

    def _restore(self) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)  # pyright: ignore[reportArgumentType]
        self._before = {}
