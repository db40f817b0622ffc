"""Worker processes that load images ahead of time."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .data import Split
from .process import end_with_parent

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Request:
    """The samples of a batch, and the numbers that decide on their augmentation."""

    indices: list[int]
    chances: NDArray[np.float32] | None

    def load(self, split: Split, normalize: Callable[[Tensor], Tensor] | None) -> Batch:
        """The batch that is asked for."""
        chances = None if self.chances is None else torch.from_numpy(self.chances)
        images, labels = split.load(self.indices, chances)
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

    def loaded(self, requests: Iterator[Request]) -> Iterator[Batch]:
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

    current: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.current


class _Loading(Dataset[Batch | Exception]):
    """Runs in a worker."""

    def __init__(self, split: Split, normalize: Callable[[Tensor], Tensor] | None) -> None:
        self.split = split
        self.normalize = normalize

    def __getitem__(self, index: Request) -> Batch | Exception:
        try:
            return index.load(self.split, self.normalize)
        except (ValueError, OSError) as error:  # of the data: raised over there, in one line
            return error


def _be_quiet(_worker: int) -> None:
    """Leave signals to the main process, and say nothing of oddities that are no damage."""
    for number in (signal.SIGINT, signal.SIGTERM):  # schedulers send them to every process
        signal.signal(number, signal.SIG_IGN)
    # DataLoader's own watch looks at the process that forked this one, which is not the main one.
    end_with_parent()
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
