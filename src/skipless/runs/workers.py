"""Processes that share the work of a search: on one machine, on many, or under `torchrun`."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import optuna
import torch
import torch.distributed as dist
from tqdm import tqdm

from skipless.files import new_folder
from skipless.train.process import cores, exit_with_parent, process_group, select_device

from .configuration import Configuration, DataOptions
from .study import Database, SharedStudy
from .training import load_images

if TYPE_CHECKING:
    from .search import Place

T = TypeVar("T")

_PAUSE = 1.0  # seconds between looks at the other workers
_EXPECTED = (ValueError, OSError, ImportError)  # errors whose message is enough for a user
# Time left comes from the share of epochs that are done, as runs differ in length.
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left{postfix}"


def is_main() -> bool:
    """Whether this is the first process of `torchrun`, or the only one."""
    return int(os.environ.get("RANK", 0)) == 0


def count_workers(asked: int | None) -> int:
    """How many runs this machine trains at once: one for each GPU, or else for each core."""
    if _is_distributed():
        return 1
    return asked or torch.cuda.device_count() or cores()


def _is_distributed() -> bool:
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def broadcast(message: T) -> T:
    """The message of the first process, in all of them; a single process gets its own back."""
    if not _is_distributed():
        return message
    messages = [message]
    dist.broadcast_object_list(messages, src=0)
    return messages[0]


@dataclass(frozen=True)
class Job:
    """A study, what a worker does for each of its trials, and how to describe one in progress."""

    study: SharedStudy
    objective: Callable[[optuna.Trial], float]
    describe: Callable[[optuna.trial.FrozenTrial], str]
    cost: float = 1.0  # of a trial, beside those of other jobs
    after: "Job | None" = None  # whose result it needs

    def is_done(self) -> bool:
        """Whether all of its trials are done."""
        return self.study.done() >= self.study.wanted

    def take(self) -> bool:
        """Runs one more trial; returns False if there is none to run now."""
        ready = self.after is None or self.after.is_done()
        return ready and self.study.take(self.objective)


class Search(Protocol):
    """What workers share; it is pickled for each of them."""

    @property
    def name(self) -> str: ...
    @property
    def place(self) -> "Place": ...
    @property
    def seconds_until_dead(self) -> int: ...
    @property
    def configurations(self) -> Sequence[Configuration]: ...
    def jobs(self, database: Database) -> list[Job]: ...
    def with_threads(self, threads: int) -> "Search": ...
    def train(self, configuration: Configuration) -> object: ...


@dataclass(frozen=True)
class _Finished:
    """The last message of the first process: what the search found."""

    found: object


def share_work(search: Search, collect: Callable[[list[Job]], T]) -> T:
    """What `collect` makes of all jobs of the search, once they are done."""
    with process_group() if _is_distributed() else nullcontext():
        if is_main():
            found = _run(search, collect)
            broadcast(_Finished(found))
            return found
        # The first process names a run to take part in, or nothing, to keep waiting.
        while not isinstance(message := broadcast(None), _Finished):
            if message is not None:
                search.train(message)
        return message.found  # pyright: ignore[reportReturnType]


def _run(search: Search, collect: Callable[[list[Job]], T]) -> T:
    place = search.place
    place.require_own()
    checked = place.storage is None and not place.file.exists()
    if checked:
        _require_data_and_devices(search.configurations)
    with (
        new_folder(place.folder),
        closing(Database(place.url, search.seconds_until_dead)) as database,
        _terminable(),
    ):
        jobs = search.jobs(database)
        wanted = sum(job.study.wanted for job in jobs)
        try:
            left = wanted - _count_done(jobs)
            if left and not checked:
                _require_data_and_devices(search.configurations)
            workers = min(left, count_workers(place.workers))
            if workers > 1 and not _is_distributed():
                _watch(search, jobs, workers)
            else:
                _work(search, jobs)
        except (KeyboardInterrupt, InterruptedError):
            raise InterruptedError(
                f"The search {search.name} was stopped after {_count_done(jobs)} of {wanted} runs. "
                "Run it again to resume."
            ) from None
        return collect(jobs)


def _count_done(jobs: Sequence[Job]) -> int:
    return sum(job.study.done() for job in jobs)


def _require_data_and_devices(configurations: Sequence[Configuration]) -> None:
    """Raise if a run cannot start, before workers do."""
    for device in {own.device for own in configurations}:
        select_device(device)
    names = [own.name for own in fields(DataOptions)]
    for own in {tuple(getattr(own, n) for n in names): own for own in configurations}.values():
        load_images(own)


def _work(search: Search, jobs: Sequence[Job], *, progress: bool = True) -> None:
    """Train what is left of all jobs, until all are done."""
    with _Progress(search, jobs, progress) as bar:
        while left := [job for job in jobs if not bar.is_done(job)]:
            bar.update()
            if not any(job.take() for job in left):
                broadcast(None)  # so that the others do not time out
                time.sleep(_PAUSE)


def _watch(search: Search, jobs: Sequence[Job], workers: int) -> None:
    """Let `workers` processes do what is left, until all is done or all have died."""
    with _processes(search, workers) as processes, _Progress(search, jobs) as bar:
        running = dict(processes)
        while running:
            wait([process.sentinel for process in running], timeout=_PAUSE)
            for process in [p for p in running if not p.is_alive()]:
                if (error := _receive_error(running.pop(process))) is not None:
                    raise error
            bar.update()
        if (done := _count_done(jobs)) < (wanted := sum(job.study.wanted for job in jobs)):
            codes = ", ".join(sorted({str(process.exitcode) for process in processes}))
            raise ChildProcessError(
                f"All {workers} workers of the search {search.name} were killed (exit codes "
                f"{codes}) after {done} of {wanted} runs, possibly out of memory. Rerun with fewer "
                "workers to resume."
            )


class _Progress(AbstractContextManager["_Progress"]):
    """A bar on a terminal: how much is done, how much time is left, and what is in training."""

    def __init__(self, search: Search, jobs: Sequence[Job], progress: bool = True) -> None:
        self._left = list(jobs)
        self._done = 0.0  # the cost of all jobs that are done
        self._bar = tqdm(
            total=sum(job.study.wanted * job.cost for job in jobs),
            desc=search.name,
            bar_format=_BAR,
            dynamic_ncols=True,
            disable=not (progress and sys.stderr.isatty()),
        )

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def is_done(self, job: Job) -> bool:
        """Whether all trials of a job are done, which is asked of the data base until it is so."""
        if job not in self._left:
            return True
        if done := job.is_done():
            self._left.remove(job)
            self._done += job.study.wanted * job.cost
        return done

    def update(self) -> None:
        """Move the bar, if there is one."""
        if not self._bar.disable:
            left = [job for job in list(self._left) if not self.is_done(job)]
            done = self._done + sum(job.study.done() * job.cost for job in left)
            self._bar.update(done - self._bar.n)
            running = [job.describe(t) for job in left for t in job.study.running()]
            self._bar.set_postfix_str("; ".join(running))


@contextmanager
def _processes(search: Search, workers: int) -> Iterator[Mapping[SpawnProcess, Connection]]:
    """Worker processes, each with the connection that it sends to; all are stopped at the end."""
    # Spawned, because PyTorch's threads do not survive a fork. They ignore Ctrl-C from their start:
    # it is for this process, which then asks them to stop, once.
    context = multiprocessing.get_context("spawn")
    started: dict[SpawnProcess, Connection] = {}
    try:
        with _signal_handler(signal.SIGINT, signal.SIG_IGN):
            for number in range(workers):
                receiver, sender = context.Pipe(duplex=False)
                own = (search, number, workers, sender)
                process = context.Process(target=_run_worker, args=own)
                process.start()
                sender.close()  # so that we notice when the process ends
                started[process] = receiver
        yield started
    finally:
        try:
            for process in started:
                process.terminate()  # they save, and stop
            for process in started:
                process.join()
        except KeyboardInterrupt:  # a second Ctrl-C
            for process in started:
                process.kill()
            raise


def _run_worker(search: Search, number: int, workers: int, sender: Connection) -> None:
    """The main function of a worker process."""
    exit_with_parent()
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # so that a Ctrl-C for the first process does not reach us
    # As torchrun does: which GPU is ours, and how many processes share the cores.
    os.environ |= {"LOCAL_WORLD_SIZE": str(workers)}
    if gpus := torch.cuda.device_count():
        os.environ |= {"LOCAL_RANK": str(number % gpus)}
    search = search.with_threads(max(1, cores() // workers))
    with _terminable():
        try:
            with closing(Database(search.place.url, search.seconds_until_dead)) as database:
                _work(search, search.jobs(database), progress=False)
        except BaseException as error:
            sender.send_bytes(_pickle_error(error))


def _pickle_error(error: BaseException) -> bytes:
    """An error for another process to raise; with its traceback if it is not an expected one."""
    if not isinstance(error, (*_EXPECTED, KeyboardInterrupt)):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(found := pickle.dumps(error))
        return found
    except Exception:
        return pickle.dumps(RuntimeError("".join(traceback.format_exception(error))))


def _receive_error(receiver: Connection) -> BaseException | None:
    """The error that a process ended with, if it sent one."""
    try:
        return pickle.loads(receiver.recv_bytes())
    except EOFError:
        return None


def _terminable() -> AbstractContextManager[None]:
    """SIGTERM does what Ctrl-C does, so that a run that is being trained is saved."""
    return _signal_handler(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def _signal_handler(number: signal.Signals, handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
