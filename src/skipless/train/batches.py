"""How a part of a data set is dealt out: to steps, to processes, and to parts of a step.

The order of epoch e, and what chance does to each sample in it, follow from the seed and e alone.
They do not depend on how many processes share the work, how many workers load the images, or where
an epoch is entered: so one process and eight see the same samples in the same step, and a run that
is resumed sees what it would have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .data import CHANCES, Split
from .order import demand_classes, number_of_batches, order_by_classes
from .workers import Batch, Request, Workers


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
            demand_classes(self._counts, self.batch_size, self.classes_per_batch)

    @cached_property
    def steps(self) -> int:
        """Number of whole batches in an epoch; what is left over is dropped."""
        if self.classes_per_batch is None:
            return len(self.split) // self.batch_size
        return number_of_batches(self._counts, self.batch_size, self.classes_per_batch)

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

    def once(self) -> Iterator[Batch]:
        """This process's share of all samples, in order and not augmented.

        Shares differ by one sample at most, and together they have every sample once.
        """
        return self._loaded(self._validation_requests())

    @property
    def _part(self) -> int:
        return self.batch_size // (self.world * self.accumulate)

    def _training_requests(self, number: int, first_step: int) -> Iterator[Request]:
        # Mixed by numpy, because neighbouring seeds may give neighbouring numbers.
        state = np.random.SeedSequence((self.seed, number)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0]))
        order = self._order(generator)
        chances = torch.rand(len(self.split), CHANCES, generator=generator)
        for step in range(first_step, self.steps):
            for part in range(self.accumulate):
                start = step * self.batch_size + (part * self.world + self.rank) * self._part
                chosen = order[start : start + self._part]
                yield Request(chosen.tolist(), chances[chosen].numpy())

    def _order(self, generator: torch.Generator) -> Tensor:
        if self.classes_per_batch is None:
            return torch.randperm(len(self.split), generator=generator)
        labels = torch.as_tensor(self.split.labels)
        return order_by_classes(labels, self.batch_size, self.classes_per_batch, generator)

    def _validation_requests(self) -> Iterator[Request]:
        n = len(self.split)
        first, end = self.rank * n // self.world, (self.rank + 1) * n // self.world
        for start in range(first, end, self._part):
            yield Request(list(range(start, min(start + self._part, end))), None)

    def _loaded(self, requests: Iterator[Request]) -> Iterator[Batch]:
        if self.split.slow and self.workers:
            return self._workers.loaded(requests)
        return (request.load(self.split, self.normalize) for request in requests)

    @cached_property
    def _workers(self) -> Workers:
        return Workers(self.split, self.normalize, self.workers)
