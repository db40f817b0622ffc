"""This process among those that train together: its rank, device, gradients and signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    """Which of `world` processes this one is, and its device."""

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes."""
        if self.world > 1:
            dist.all_reduce(values := values.clone())
        return values

    def any_rank(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether it is set in any process."""
        if self.world == 1:
            return list(flags)
        values = torch.tensor(flags, dtype=torch.int32)  # on the CPU: no need to wait for a GPU
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values.bool().tolist()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors of all processes by those of the first."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, by rank."""
        values = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values


@contextmanager
def process_group(device: str = "auto", threads: int | None = None) -> Iterator[Process]:
    """This process, connected to the others if `torchrun` started several.

    Several runs of one job share the outermost group: `torchrun`'s store keeps the addresses of an
    earlier one, and the first process to join the next would wait for these. While entered, CPUs
    flush denormal numbers to zero: degenerate deep networks are full of them, and they are a
    hundred times slower. Threads inherit this when they start: enter before the first computation.
    """
    most = max(1024, cores())
    if threads is not None and not 1 <= threads <= most:  # OpenMP aborts if it cannot start them
        raise ValueError(f"threads must be from 1 to {most}, got {threads}")
    world, chosen = int(os.environ.get("WORLD_SIZE", 1)), select_device(device)
    threads_before = torch.get_num_threads()
    flushed_before = not torch.tensor(1e-40).mul(1.0).item()  # torch has no getter
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads_before if threads is None else threads)
    try:
        if world == 1 or dist.is_initialized():
            yield Process(0 if world == 1 else dist.get_rank(), world, chosen)
            return
        with _explain_lost_processes():
            _join("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo")
            try:
                yield Process(dist.get_rank(), world, chosen)
                dist.barrier()  # none leaves while another may still need it
            finally:
                dist.destroy_process_group()
    finally:
        torch.set_num_threads(threads_before)
        torch.set_flush_denormal(flushed_before)


@contextmanager
def gpu_kernels(tf32: bool | None, benchmark: bool) -> Iterator[None]:
    """While entered, NVIDIA's libraries compute as said; no other device notices.

    TensorFloat-32 rounds inputs of products to ten binary digits. With None, PyTorch decides: it
    takes it for convolutions only. The `benchmark` times cuDNN's algorithms for each new shape and
    takes the fastest, so that two runs may take different ones.
    """
    cudnn: Any = torch.backends.cudnn  # a module by its type
    products = (torch.backends.cuda.matmul, cudnn.conv)
    before = [*(own.fp32_precision for own in products), cudnn.benchmark]
    try:
        if tf32 is not None:
            for own in products:
                own.fp32_precision = "tf32" if tf32 else "ieee"
        cudnn.benchmark = benchmark
        yield
    finally:
        for own, precision in zip(products, before, strict=False):
            own.fp32_precision = precision
        cudnn.benchmark = before[-1]


def _join(backend: str) -> None:
    # After a restart, torchrun's store still has the addresses of processes that are gone, if it
    # was given a port, and processes would wait for these.
    store, rank, world = next(iter(rendezvous("env://")))
    store = PrefixStore(f"restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)


@contextmanager
def _explain_lost_processes() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if not isinstance(error, dist.DistError) and "gloo" not in reason:
            raise
        raise ConnectionError(
            f"Lost the other processes of this run ({reason[:200]}). If one of them died, its own "
            "message says why. Start all of them again, with --resume."
        ) from error


def select_device(name: str) -> torch.device:
    """The device of this process that is called `name`, or the best for "auto"."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, found in available.items() if found)
    if name not in available:
        raise ValueError(f"device must be one of auto, {', '.join(available)}, got {name!r}")
    if not available[name]:
        raise ValueError(f"PyTorch finds no {name} device on this machine. Use cpu.")
    if name != "cuda":
        return torch.device(name)
    chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(chosen)
    return chosen


def cores() -> int:
    """The number of cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def exit_with_parent() -> None:
    """Make this child process exit when its parent is gone, even by SIGKILL."""

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def distribute(
    model: nn.Module, process: Process, sync_batch_norm: bool | None = None
) -> nn.Module:
    """The model as one whose gradients all processes average; itself for a single process.

    With `sync_batch_norm`, BatchNorm takes its statistics over the whole batch, otherwise over this
    process's share; None synchronises on GPUs only.
    """
    if process.world == 1:
        return model
    cuda = process.device.type == "cuda"
    if any(isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d) for m in model.modules()):
        if sync_batch_norm and not cuda:
            raise ValueError(
                "sync_batch_norm needs GPUs: PyTorch has no SyncBatchNorm for "
                f"{process.device.type}. Use --no-sync-batch-norm, or a single process."
            )
        if sync_batch_norm is None and not cuda and process.is_main:
            warnings.warn(
                f"BatchNorm takes its statistics over each of the {process.world} processes' "
                "shares of a batch, because PyTorch has no SyncBatchNorm for CPUs: losses differ "
                "from those of one process.",
                stacklevel=3,
            )
        if cuda and sync_batch_norm is not False:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return DistributedDataParallel(model, device_ids=[process.device.index] if cuda else None)


def no_sync(network: nn.Module) -> AbstractContextManager[None]:
    """While entered, gradients accumulate locally; a later backward pass averages them."""
    return network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext()


class Interruption:
    """While entered in the main thread, SIGTERM and SIGINT only set `requested`.

    A second signal acts as usual, unless `ignore_repeats`: `torchrun` forwards what the terminal
    has sent its processes already.
    """

    def __init__(self, *, ignore_repeats: bool = False) -> None:
        self.requested = False
        self._ignore_repeats = ignore_repeats
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            own = (signal.SIGTERM, signal.SIGINT)
            self._handlers = {one: signal.signal(one, self._on_signal) for one in own}
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._handlers.items():
            signal.signal(one, handler)
        self._handlers = {}

    def _on_signal(self, *_: object) -> None:
        self.requested = True
        if not self._ignore_repeats:
            self.__exit__()
