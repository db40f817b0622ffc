"""How a part of a data set is dealt out: to steps, to processes, and to parts of a step.

The order of epoch e, and what chance does to each sample in it, follow from the seed and e alone.
They do not depend on how many processes share the work, how many workers load the images, or where
an epoch is entered: so one process and eight see the same samples in the same step, and a run that
is resumed sees what it would have seen.

The order of an epoch whose batches have few classes each.

That is what a device sees that is near one thing at a time: a camera, or the phone of one user.
What normalises over a batch then normalises over these classes alone.

Worker processes that load images ahead of time.
"""

from __future__ import annotations

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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .data import AUGMENT_DRAWS, Split
from .process import exit_with_parent


def order_by_classes(
    labels: Tensor, batch_size: int, classes: int, generator: torch.Generator
) -> Tensor:
    """Samples in an order of which each `batch_size` have `classes` classes, equally many of each.

    Which samples of a class go together, which classes meet, and which batch comes first are left
    to chance. No sample comes twice; those that fill no batch are left out, others in each epoch.

    >>> labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
    >>> order = order_by_classes(labels, 4, 2, torch.Generator().manual_seed(0))
    >>> [len(set(labels[batch].tolist())) for batch in order.split(4)]
    [2, 2, 2]
    """
    share = batch_size // classes
    own = [torch.nonzero(labels == label).flatten() for label in labels.unique()]
    shuffled = [samples[torch.randperm(len(samples), generator=generator)] for samples in own]
    # Pieces of one class, which no batch has two of.
    waiting = [list(samples[: len(samples) // share * share].split(share)) for samples in shuffled]
    batches = []
    for _ in range(count_batches([len(samples) for samples in own], batch_size, classes)):
        chance = torch.rand(len(waiting), generator=generator).tolist()
        # Those with most pieces left first, or in the end one class would be left alone.
        order = sorted(range(len(waiting)), key=lambda c: (-len(waiting[c]), chance[c]))
        batch = torch.cat([waiting[c].pop() for c in order[:classes]])
        # Shuffled, so that processes that share a batch do not share it by class.
        batches.append(batch[torch.randperm(batch_size, generator=generator)])
    places = torch.randperm(len(batches), generator=generator).tolist()
    return torch.cat([batches[place] for place in places])


def count_batches(counts: Sequence[int], batch_size: int, classes: int) -> int:
    """How many batches of `classes` classes there are in an epoch, from the size of each class.

    A class of n samples has ⌊n classes / batch_size⌋ pieces. Into k batches no more than k of them
    can go, one each; where these are enough for all of the batches, taking the classes with most
    pieces first fills them. So it is the largest k with Σ min(pieces, k) ≥ k classes.

    >>> count_batches([10, 10, 10], batch_size=10, classes=2)
    3
    >>> count_batches([100, 10, 10], batch_size=10, classes=2)
    4
    """
    pieces = [count * classes // batch_size for count in counts]
    k = sum(pieces) // classes
    # Where k is too large, a smaller one takes its place, never below the largest that fits.
    while (fewer := sum(min(own, k) for own in pieces) // classes) < k:
        k = fewer
    return k


def require_classes(counts: Sequence[int], batch_size: int, classes: int) -> None:
    """Raise where batches cannot have so many classes, or where one would never be seen."""
    if not 1 <= classes <= len(counts):
        raise ValueError(
            f"classes_per_batch = {classes} was asked for, but the images for training have "
            f"{len(counts)} classes. Give a number from 1 to {len(counts)}."
        )
    if batch_size % classes:
        raise ValueError(
            f"Batches of {batch_size} images of {classes} classes were asked for, equally many of "
            f"each. Make the size a multiple of {classes}."
        )
    if (fewest := min(counts)) < batch_size // classes:
        raise ValueError(
            f"Batches of {batch_size} images of {classes} classes take {batch_size // classes} of "
            f"each, but one class has only {fewest} and would never be seen. Make batches smaller, "
            "or take more classes."
        )


Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class BatchRequest:
    """The samples of a batch, and the numbers that decide on their augmentation."""

    indices: list[int]
    draws: NDArray[np.float32] | None

    def load(self, split: Split, normalize: Callable[[Tensor], Tensor] | None) -> Batch:
        """The batch that is asked for."""
        draws = None if self.draws is None else torch.from_numpy(self.draws)
        images, labels = split.load(self.indices, draws)
        return (images if normalize is None else normalize(images)), labels


class Workers:
    """Processes that load what is asked for; they start when first needed, and then stay.

    They are started from a fresh process rather than as copies of this one, which may have threads:
    a copy made while a thread holds a lock would wait for it for ever.
    """

    def __init__(
        self, split: Split, normalize: Callable[[Tensor], Tensor] | None, number: int
    ) -> None:
        _demand_picklable(normalize)
        self.requests = _Requests()
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            context.set_forkserver_preload([__name__])  # torch is imported once, not by each worker
        self.loader = DataLoader(
            _Loading(split, normalize),
            batch_size=None,  # a request is a batch already
            sampler=self.requests,
            num_workers=number,
            worker_init_fn=_be_quiet,
            multiprocessing_context=context,
            persistent_workers=True,
            pin_memory=torch.cuda.is_initialized(),  # by a model that is there already
            generator=torch.Generator(),  # or each epoch would draw from the model's own numbers
        )

    def loaded(self, requests: Iterator[BatchRequest]) -> Iterator[Batch]:
        """The batches that are asked for, in order; an earlier call's iterator ends here."""
        self.requests.current = requests
        try:
            with _interrupts_held():
                batches = iter(self.loader)
            while self.requests.current is requests:
                if isinstance(batch := next(batches), Exception):
                    raise batch
                yield batch
        except StopIteration:
            return
        except RuntimeError as error:
            raise _explained(error) from None
        raise RuntimeError(
            "Another epoch was begun with the same workers: finish one first, or make a Batches "
            "for each."
        )


class _Requests:
    """What the workers are to load; changes from epoch to epoch, while the workers stay."""

    current: Iterator[BatchRequest] = iter(())

    def __iter__(self) -> Iterator[BatchRequest]:
        return self.current


class _Loading(Dataset[Batch | Exception]):
    """Runs in a worker."""

    def __init__(self, split: Split, normalize: Callable[[Tensor], Tensor] | None) -> None:
        self.split = split
        self.normalize = normalize

    def __getitem__(self, index: BatchRequest) -> Batch | Exception:
        try:
            return index.load(self.split, self.normalize)
        except (ValueError, OSError) as error:  # of the data: raised over there, in one line
            return error


def _be_quiet(_worker: int) -> None:
    """Leave signals to the main process, and say nothing of oddities that are no damage."""
    for number in (signal.SIGINT, signal.SIGTERM):  # schedulers send them to every process
        signal.signal(number, signal.SIG_IGN)
    # DataLoader's own watch looks at the process that forked this one, which is not the main one.
    exit_with_parent()
    warnings.filterwarnings("ignore", module="PIL")


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Signals to stop wait meanwhile; processes that are started meanwhile never see them."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # it would let interrupts in again, were it to start later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _demand_picklable(normalize: Callable[[Tensor], Tensor] | None) -> None:
    try:
        pickle.dumps(normalize)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise ValueError(
            f"`normalize` is {normalize!r}, which cannot be sent to worker processes. Give a "
            "function that can be imported, or set workers=0."
        ) from None


def _explained(error: RuntimeError) -> Exception:
    """What to do about a worker that died; any other error as it is."""
    if "DataLoader worker" not in str(error) or "Caught" in str(error):
        return error
    return OSError(
        f"A process that loads images died ({' '.join(str(error).split())}). It may have run out "
        "of memory: try fewer workers. In a script of your own, start training under "
        'if __name__ == "__main__".'
    )


@dataclass(frozen=True)
class Batches:
    """Batches of images and labels from a split, for one process out of `world`.

    A step takes `batch_size` samples over all processes, and each process takes its share in
    `accumulate` parts, one after the other. `workers` processes load image files ahead of time;
    what is in memory needs none. `normalize` is applied to every batch of images. With
    `classes_per_batch`, the batches of a step have so many classes, equally many samples of each.
    """

    split: Split
    batch_size: int
    seed: int = 0
    rank: int = 0
    world: int = 1
    accumulate: int = 1
    workers: int = 0
    normalize: Callable[[Tensor], Tensor] | None = None
    classes_per_batch: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "world", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} was asked for; give at least 1.")
        for name in ("seed", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)} was asked for; give at least 0.")
        if not 0 <= self.rank < self.world:
            raise ValueError(
                f"rank = {self.rank} was asked for, but {self.world} processes are numbered from 0 "
                f"to {self.world - 1}."
            )
        if self.batch_size % (self.world * self.accumulate):
            raise ValueError(
                f"A batch of {self.batch_size} cannot be shared by {self.world} processes in "
                f"{self.accumulate} parts each. Make it a multiple of "
                f"{self.world * self.accumulate}."
            )
        if self.classes_per_batch is not None:
            require_classes(self._counts, self.batch_size, self.classes_per_batch)

    @cached_property
    def steps(self) -> int:
        """Number of whole batches in an epoch; what is left over is dropped."""
        if self.classes_per_batch is None:
            return len(self.split) // self.batch_size
        return count_batches(self._counts, self.batch_size, self.classes_per_batch)

    @cached_property
    def _counts(self) -> list[int]:
        """How many samples each class has."""
        return torch.as_tensor(self.split.labels).unique(return_counts=True)[1].tolist()

    def epoch(self, number: int, first_step: int = 0) -> Iterator[Batch]:
        """This process's batches of epoch `number`, from a step on: `accumulate` for every step."""
        if not self.steps:
            raise ValueError(
                f"A batch of {self.batch_size} was asked for, but there are only "
                f"{len(self.split)} samples. Make it smaller."
            )
        if not 0 <= first_step <= self.steps:
            raise ValueError(
                f"Step {first_step} of an epoch was asked for, but it has {self.steps}, numbered "
                "from 0."
            )
        return self._loaded(self._training_requests(number, first_step))

    def in_order(self) -> Iterator[Batch]:
        """This process's share of all samples, in order and not augmented.

        Shares differ by one sample at most, and together they have every sample once.
        """
        return self._loaded(self._validation_requests())

    @property
    def _part(self) -> int:
        return self.batch_size // (self.world * self.accumulate)

    def _training_requests(self, number: int, first_step: int) -> Iterator[BatchRequest]:
        # Mixed by numpy, because neighbouring seeds may give neighbouring numbers.
        state = np.random.SeedSequence((self.seed, number)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0]))
        order = self._order(generator)
        draws = torch.rand(len(self.split), AUGMENT_DRAWS, generator=generator)
        for step in range(first_step, self.steps):
            for part in range(self.accumulate):
                start = step * self.batch_size + (part * self.world + self.rank) * self._part
                chosen = order[start : start + self._part]
                yield BatchRequest(chosen.tolist(), draws[chosen].numpy())

    def _order(self, generator: torch.Generator) -> Tensor:
        if self.classes_per_batch is None:
            return torch.randperm(len(self.split), generator=generator)
        labels = torch.as_tensor(self.split.labels)
        return order_by_classes(labels, self.batch_size, self.classes_per_batch, generator)

    def _validation_requests(self) -> Iterator[BatchRequest]:
        n = len(self.split)
        first, end = self.rank * n // self.world, (self.rank + 1) * n // self.world
        for start in range(first, end, self._part):
            yield BatchRequest(list(range(start, min(start + self._part, end))), None)

    def _loaded(self, requests: Iterator[BatchRequest]) -> Iterator[Batch]:
        if self.split.slow and self.workers:
            return self._workers.loaded(requests)
        return (request.load(self.split, self.normalize) for request in requests)

    @cached_property
    def _workers(self) -> Workers:
        return Workers(self.split, self.normalize, self.workers)
