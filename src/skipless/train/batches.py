"""Batches of a split: their order, each process's share of them, and worker processes.

The order of epoch e, and the augmentation of each sample in it, follow from the seed and e alone:
one process and eight see the same samples in the same step, whatever the number of workers, and a
resumed run sees what it would have seen.
"""

from __future__ import annotations

import atexit
import multiprocessing
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .data import Split
from .process import exit_with_parent

Batch = tuple[Tensor, Tensor]
Request = tuple[list[int], NDArray[np.float32] | None]  # samples, and draws that augment them


@dataclass(frozen=True)
class Batches:
    """Batches of images and labels for one process out of `world`."""

    split: Split
    batch_size: int  # samples in a step, over all processes
    seed: int = 0  # of order and augmentation
    rank: int = 0
    world: int = 1
    accumulate: int = 1  # parts in which each process takes its share of a step
    workers: int = 0  # processes that load image files ahead; splits in memory need none
    normalize: Callable[[Tensor], Tensor] | None = None  # applied to every batch of images
    classes_per_batch: int | None = None  # with equally many samples of each; None: by chance

    def __post_init__(self) -> None:
        least = {"batch_size": 1, "world": 1, "accumulate": 1, "seed": 0, "workers": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"{name} must be >= {smallest}, got {getattr(self, name)}")
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank must be from 0 to {self.world - 1}, got {self.rank}")
        if self.batch_size % (self.world * self.accumulate):
            raise ValueError(
                f"batch_size must be a multiple of {self.world * self.accumulate} "
                f"({self.world} processes with {self.accumulate} parts each), got "
                f"{self.batch_size}"
            )
        if (classes := self.classes_per_batch) is None:
            return
        size, counts = self.batch_size, self._counts
        if not 1 <= classes <= len(counts):
            raise ValueError(
                f"classes_per_batch must be from 1 to {len(counts)}, the classes of the training "
                f"images, got {classes}"
            )
        if size % classes:
            raise ValueError(
                f"batch_size must be a multiple of classes_per_batch, {classes}, got {size}"
            )
        if (fewest := min(counts)) < size // classes:
            raise ValueError(
                f"Batches of {size} images of {classes} classes take {size // classes} of each, "
                f"but one class has only {fewest} and would never be seen. Lower batch_size, or "
                "raise classes_per_batch."
            )

    @cached_property
    def steps(self) -> int:
        """Number of full batches in an epoch; the rest is dropped."""
        if self.classes_per_batch is None:
            return len(self.split) // self.batch_size
        return count_batches(self._counts, self.batch_size, self.classes_per_batch)

    def epoch(self, number: int, first_step: int = 0) -> Iterator[Batch]:
        """This process's batches of an epoch, from a step on: `accumulate` for every step."""
        self.require_a_step()
        if not 0 <= first_step <= self.steps:
            raise ValueError(f"first_step must be from 0 to {self.steps}, got {first_step}")
        return self._load(self._training_requests(number, first_step))

    def in_order(self) -> Iterator[Batch]:
        """This process's share of all samples, in order; shares differ by one sample at most."""
        n, size = len(self.split), self._part_size
        first, end = self.rank * n // self.world, (self.rank + 1) * n // self.world
        starts = range(first, end, size)
        return self._load((list(range(i, min(i + size, end))), None) for i in starts)

    def require_a_step(self) -> None:
        """Raise if the split has fewer samples than a batch."""
        if not self.steps:
            raise ValueError(
                f"batch_size must be at most the {len(self.split)} samples for training, got "
                f"{self.batch_size}"
            )

    @cached_property
    def _counts(self) -> list[int]:
        """How many samples each class has."""
        return torch.as_tensor(self.split.labels).unique(return_counts=True)[1].tolist()

    @property
    def _part_size(self) -> int:
        return self.batch_size // (self.world * self.accumulate)

    def _training_requests(self, number: int, first_step: int) -> Iterator[Request]:
        # Mixed by numpy, because neighbouring seeds may give neighbouring numbers.
        state = np.random.SeedSequence((self.seed, number)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0]))
        if self.classes_per_batch is None:
            order = torch.randperm(len(self.split), generator=generator)
        else:
            labels = torch.as_tensor(self.split.labels)
            order = order_by_classes(labels, self.batch_size, self.classes_per_batch, generator)
        draws = torch.rand(len(self.split), self.split.draws, generator=generator)
        for step in range(first_step, self.steps):
            for part in range(self.accumulate):
                start = step * self.batch_size + (part * self.world + self.rank) * self._part_size
                chosen = order[start : start + self._part_size]
                yield chosen.tolist(), draws[chosen].numpy()

    def _load(self, requests: Iterator[Request]) -> Iterator[Batch]:
        if self.split.slow and self.workers:
            return self._workers.load(requests)
        return map(_Source(self.split, self.normalize).load, requests)

    @cached_property
    def _workers(self) -> Workers:
        return Workers(_Source(self.split, self.normalize), self.workers)


def order_by_classes(
    labels: Tensor, batch_size: int, classes: int, generator: torch.Generator
) -> Tensor:
    """Samples in an order in which each batch has `classes` classes, equally many of each.

    So does a camera see its data, or one user's phone. Which samples of a class go together, which
    classes meet and the order of batches are random. Samples that fill no batch are left out.

    >>> labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
    >>> order = order_by_classes(labels, 4, 2, torch.Generator().manual_seed(0))
    >>> [len(set(labels[batch].tolist())) for batch in order.split(4)]
    [2, 2, 2]
    """
    share = batch_size // classes
    own = [torch.nonzero(labels == label).flatten() for label in labels.unique()]
    shuffled = [samples[torch.randperm(len(samples), generator=generator)] for samples in own]
    # Pieces of one class; no batch has two pieces of the same.
    waiting = [list(samples[: len(samples) // share * share].split(share)) for samples in shuffled]
    batches = []
    for _ in range(count_batches([len(samples) for samples in own], batch_size, classes)):
        tie_breakers = torch.rand(len(waiting), generator=generator).tolist()
        # Classes with most pieces left come first, or one class would be left alone in the end.
        order = sorted(range(len(waiting)), key=lambda c: (-len(waiting[c]), tie_breakers[c]))
        batch = torch.cat([waiting[c].pop() for c in order[:classes]])
        # Shuffled, so that processes that share a batch do not share it by class.
        batches.append(batch[torch.randperm(batch_size, generator=generator)])
    places = torch.randperm(len(batches), generator=generator).tolist()
    return torch.cat([batches[place] for place in places])


def count_batches(counts: Sequence[int], batch_size: int, classes: int) -> int:
    """How many batches of `classes` classes an epoch has, from the size of each class.

    A class of n samples has ⌊n classes / batch_size⌋ pieces. k batches hold at most k of them, one
    each; if that is enough to fill all batches, taking the classes with most pieces first fills
    them. So it is the largest k with Σ min(pieces, k) ≥ k classes.

    >>> count_batches([10, 10, 10], batch_size=10, classes=2)
    3
    >>> count_batches([100, 10, 10], batch_size=10, classes=2)
    4
    """
    pieces = [count * classes // batch_size for count in counts]
    k = sum(pieces) // classes
    # A k that is too large is replaced by a smaller one, never below the largest that fits.
    while (fewer := sum(min(own, k) for own in pieces) // classes) < k:
        k = fewer
    return k


@dataclass(frozen=True, eq=False)
class _Source(Dataset[Batch | Exception]):
    """Loads batches: by `load` in this process, by its index in a worker."""

    split: Split
    normalize: Callable[[Tensor], Tensor] | None

    def load(self, request: Request) -> Batch:
        indices, given = request
        draws = None if given is None else torch.from_numpy(given)
        images, labels = self.split.load(indices, draws)
        return (images if self.normalize is None else self.normalize(images)), labels

    def __getitem__(self, index: Request) -> Batch | Exception:
        try:
            return self.load(index)
        except (ValueError, OSError) as error:  # of the data: the main process raises it as it is
            return error


class Workers:
    """Processes that load batches; they start when first needed, and then stay.

    They are forked from a fresh process rather than from this one, which may have threads: a fork
    made while a thread holds a lock would wait for that lock forever.
    """

    def __init__(self, source: _Source, number: int) -> None:
        try:
            pickle.dumps(source.normalize)
        except (pickle.PicklingError, AttributeError, TypeError):
            raise ValueError(
                f"normalize must be picklable to reach worker processes, got {source.normalize!r}. "
                "Use an importable function, or workers=0."
            ) from None
        self.requests = _CurrentRequests()
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            context.set_forkserver_preload([__name__])  # torch is imported once, not by each worker
        self.loader = DataLoader(
            source,
            batch_size=None,  # a request is a batch already
            sampler=self.requests,
            num_workers=number,
            worker_init_fn=_init_worker,
            multiprocessing_context=context,
            persistent_workers=True,
            pin_memory=torch.cuda.is_initialized(),  # by a model that is there already
            generator=torch.Generator(),  # or each epoch would draw from the model's own numbers
        )

    def load(self, requests: Iterator[Request]) -> Iterator[Batch]:
        """The requested batches, in order; the iterator of an earlier call ends here."""
        self.requests.current = requests
        try:
            batches = self._start()
            while self.requests.current is requests:
                batch = next(batches)
                try:
                    if isinstance(batch, Exception):
                        raise batch
                    yield batch
                finally:
                    del batch  # an error and this frame would keep each other, and workers, alive
        except StopIteration:
            return
        except RuntimeError as error:
            if "DataLoader worker" not in str(error) or "Caught" in str(error):
                raise
            raise OSError(
                f"A worker process that loads images died ({' '.join(str(error).split())}), "
                "possibly out of memory: try fewer workers. In a script of your own, start "
                'training under if __name__ == "__main__".'
            ) from None
        raise RuntimeError(
            "Another epoch was started with the same workers. Finish one first, or use a Batches "
            "for each."
        )

    def _start(self) -> Iterator[Batch | Exception]:
        """The loader's iterator, which starts the workers the first time."""
        before = set(multiprocessing.active_children())
        with _block_signals():
            batches = iter(self.loader)
        for worker in set(multiprocessing.active_children()) - before:
            atexit.register(_kill, worker)
        return batches


class _CurrentRequests:
    """What the workers load next; it changes from epoch to epoch, while the workers stay."""

    current: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.current


def _init_worker(_worker: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # schedulers send them to every process
        signal.signal(number, signal.SIG_IGN)
    # DataLoader's own watch looks at the process that forked this one, not at the main one.
    exit_with_parent()
    warnings.filterwarnings("ignore", module="PIL")


def _kill(worker: BaseProcess) -> None:
    """End a worker at exit: Python would wait for it, and it ignores Python's SIGTERM."""
    if worker.is_alive():
        worker.kill()


@contextmanager
def _block_signals() -> Iterator[None]:
    """Delays SIGINT and SIGTERM; processes started meanwhile never see them."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # started later, it would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
