"""Many runs by name, each done once, by however many workers on however many machines.

    outcomes = searched("rates", {"rate 0.1": Configuration(...), ...}, Place(Path("out")))

Workers meet in a data base of Optuna: a SQLite file for those on one machine; for several machines
a server, with the same call on each of them. One that dies loses nothing but its run, which another
one takes up, from the last checkpoint where the two share a disk. A search that was stopped goes on
when it is started again.

What the first of several processes of `torchrun` tells the others to train.

A run that is done once, however many ask for it, and goes on where an earlier try left it.

Many small runs at once, each in a process of its own with one thread.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from skipless.record import METRICS, RUN, Record, write_atomically
from skipless.train.checkpoint import FOLDER as CHECKPOINTS
from skipless.train.engine import DivergedError
from skipless.train.process import cores, exit_with_parent, process_group

from .configuration import CHANGEABLE, Configuration
from .outcome import Outcome, outcome_of
from .study import SharedStudy
from .training import train

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
    return process_group() if several() else nullcontext()


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


OUTCOME = "outcome.json"

# What does not change what comes of a run.
_INCIDENTAL = (*CHANGEABLE, "threads", "log_every")


def key_of(configuration: Configuration) -> str:
    """A short name that two configurations share only if the same would come of them.

    Usual values are left out, so that it outlives options that are added later.
    """
    usual = Configuration().as_mapping()
    told = {
        name: value
        for name, value in configuration.as_mapping().items()
        if name not in _INCIDENTAL and value != usual[name]
    }
    return digest(told)


def digest(value: object) -> str:
    """A few letters that stand for a value that JSON has."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def came_to_its_end(configuration: Configuration, folder: Path, *, resume: bool = False) -> bool:
    """Train in `folder`: True at the end of the run, False where it diverged.

    One that was asked to stop on the way raises InterruptedError.
    """
    try:
        ending, _ = train(configuration, folder, resume=resume, progress=False)
    except DivergedError:
        return False
    if not ending.finished:
        raise InterruptedError(f"The run in {folder} was stopped.")
    return True


def done_once(
    folder: Path, came_to_its_end: Callable[[], bool], *, keep_weights: bool = False
) -> Outcome:
    """What came of the run in `folder`, which is trained only if that is not known yet.

    `came_to_its_end` trains there, going on from a checkpoint if there is one. Who else wants the
    same run waits for it. Checkpoints and TensorBoard's files are deleted when it is done, unless
    its weights are needed.
    """
    path = folder / OUTCOME
    with _alone_in(folder):
        if path.exists():
            outcome = _read(path)
        else:
            finished = came_to_its_end()
            outcome = outcome_of(Record.read(folder), finished)
            write_atomically(path, json.dumps(outcome.as_mapping()) + "\n")
        for large in () if keep_weights else (CHECKPOINTS, "tensorboard"):
            shutil.rmtree(folder / large, ignore_errors=True)
    return outcome


def _read(path: Path) -> Outcome:
    try:
        return Outcome.of(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(
            f"The outcome of a run was looked for in {path}, which is damaged or of another "
            f"version ({error}). Delete {path.parent}, and it is trained anew."
        ) from None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, which ends with this process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        if sys.platform != "win32":  # where there is none, two studies may train the same run
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def trained(
    configurations: Mapping[str, Configuration], folder: Path, processes: int | None = None
) -> dict[str, Record]:
    """The records of all runs by name, each left in `folder` under its name.

    One that diverges ends there, without a last evaluation. A bar shows how far all of them are.
    """
    # Spawned, because threads of PyTorch do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes or cores(), mp_context=context, initializer=exit_with_parent
    ) as pool:
        running = {
            name: pool.submit(came_to_its_end, configuration, folder / name)
            for name, configuration in configurations.items()
        }
        try:
            _watch_grid(running, folder)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {name: Record.read(folder / name) for name in configurations}


def _watch_grid(running: Mapping[str, Future[bool]], folder: Path) -> None:
    """Wait for all runs, showing what each of those under way tells of itself."""
    with tqdm(
        total=len(running), unit="run", dynamic_ncols=True, disable=not sys.stderr.isatty()
    ) as bar:
        while True:
            done = [name for name, future in running.items() if future.done()]
            for name in done:
                running[name].result()
            bar.update(len(done) - bar.n)
            if not bar.disable:
                bar.set_postfix_str(_format_grid(folder, (n for n in running if n not in done)))
            if len(done) == len(running):
                return
            time.sleep(0.3)


def _format_grid(folder: Path, names: Iterable[str]) -> str:
    begun = (name for name in names if (folder / name / RUN).exists())
    return "; ".join(f"{name} {last_metrics(folder / name)}".rstrip() for name in begun)


def last_metrics(run: Path) -> str:
    """The last evaluation of the run in a folder, if there was one."""
    if not (run / METRICS).exists():
        return ""
    epochs, accuracies = (Record.read(run).series("validation", n)[1] for n in ("epoch", "top1"))
    return f"epoch {epochs[-1]:g}: {accuracies[-1]:.0%}" if epochs else ""


_PAUSE = 1.0  # seconds between looks at what others do
_EXPECTED = (ValueError, OSError, ImportError)  # errors whose message is enough for a user


@dataclass(frozen=True)
class Place:
    """Where a search keeps what it finds, and how many processes of this machine work on it.

    `folder` gets a folder for each run, and the data base of those without a `storage`, which is a
    URL for Optuna: postgresql://user:password@host/name. Without `workers`, there is one for each
    GPU, or else for each core.
    """

    folder: Path
    storage: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"{self.workers} workers were asked for; give 1 or more.")

    @property
    def url(self) -> str:
        """Where the data base is."""
        return self.storage or f"sqlite:///{(self.folder / 'studies.db').resolve()}"

    def run(self, configuration: Configuration) -> Path:
        """The folder of a run, which all studies here share."""
        return self.folder / "runs" / key_of(configuration)

    def teacher(self, configuration: Configuration) -> Path:
        """The folder of a run that others learn from, which keeps its weights."""
        return self.folder / "teachers" / key_of(configuration)


@dataclass(frozen=True)
class _Search:
    """What a worker has to know."""

    study: str
    runs: Mapping[str, Configuration]
    place: Place
    seconds_until_dead: int
    teachers: Mapping[str, Configuration]

    def shared(self) -> SharedStudy:
        """The study; a changed set of runs is another one."""
        keys = {name: key_of(configuration) for name, configuration in self.runs.items()}
        name = f"{self.study}-{digest(keys)}"
        return SharedStudy(name, sorted(self.runs), self.place.url, self.seconds_until_dead)

    def trained(self, name: str) -> bool:
        """Train a run, from its checkpoint if it has one: True at its end, False if it diverged."""
        configuration = self.runs[name]
        folder = self.place.run(configuration)
        if (teacher := self.teachers.get(configuration.teacher or "")) is not None:
            configuration = replace(configuration, teacher=str(self._taught(teacher)))
        return came_to_its_end(configuration, folder, resume=True)

    def _taught(self, configuration: Configuration) -> Path:
        """The folder of a teacher, which whoever needs it first trains."""
        folder = self.place.teacher(configuration)
        trained = lambda: came_to_its_end(configuration, folder, resume=True)
        if leads():
            done_once(folder, trained, keep_weights=True)
        elif not (folder / OUTCOME).exists():  # then the first process is about to train it
            trained()
        return folder


def searched(
    study: str,
    runs: Mapping[str, Configuration],
    place: Place,
    *,
    seconds_until_dead: int = 120,
    teachers: Mapping[str, Configuration] | None = None,
) -> dict[str, Outcome]:
    """What came of all `runs`, by name, as soon as all of them are done, by whatever worker.

    An error in one run stops the search of this machine, and is raised. A worker that is not heard
    of for `seconds_until_dead` loses its run to another one. Under `torchrun`, all processes train
    each run together. Where the teacher of a run is one of the names in `teachers`, that is trained
    first, on each machine once.
    """
    search = _Search(study, runs, place, seconds_until_dead, teachers or {})
    with connected():
        if not leads():
            return followed(search.trained)
        found = _found(search)
        told(found)
        return found


def _found(search: _Search) -> dict[str, Outcome]:
    make_folder(search.place.folder)
    with closing(search.shared()) as shared, _terminable():
        try:
            if several():
                _work(search, shared)
            else:
                _search_here(search, shared)
        except (KeyboardInterrupt, InterruptedError):
            raise InterruptedError(
                f"The search {search.study} was stopped after {shared.done()} of "
                f"{len(search.runs)} runs. Start it again to go on."
            ) from None
        outcomes = shared.outcomes()
    return {name: outcomes[name] for name in search.runs}


def _search_here(search: _Search, shared: SharedStudy) -> None:
    left = len(search.runs) - shared.done()
    workers = min(left, search.place.workers or torch.cuda.device_count() or cores())
    if workers > 1:
        _watch(search, shared, workers)
    elif left:
        _work(search, shared)


def _work(search: _Search, shared: SharedStudy, *, progress: bool = True) -> None:
    """Do what is left of a study, until all of it is done."""
    with _bar(search, progress) as bar:

        def run(name: str) -> Outcome:
            def trained() -> bool:
                told(name)
                return search.trained(name)

            bar.set_postfix_str(name)
            return done_once(search.place.run(search.runs[name]), trained)

        while (done := shared.done()) < len(search.runs):
            bar.update(done - bar.n)
            if not shared.take(run):
                told(None)  # so that they do not wait for longer than processes do
                time.sleep(_PAUSE)


def _watch(search: _Search, shared: SharedStudy, workers: int) -> None:
    """Let so many processes do what is left, until all of it is done or none of them is left."""
    with _processes(search, workers) as processes, _bar(search) as bar:
        running = dict(processes)
        while running:
            wait([process.sentinel for process in running], timeout=_PAUSE)
            for process in [p for p in running if not p.is_alive()]:
                if (error := _received(running.pop(process))) is not None:
                    raise error
            if not bar.disable:
                bar.update(shared.done() - bar.n)
                bar.set_postfix_str("; ".join(_format_running(search, shared.running())))
        if (done := shared.done()) < len(search.runs):
            codes = ", ".join(sorted({str(process.exitcode) for process in processes}))
            raise ChildProcessError(
                f"All {workers} workers of the search {search.study} were killed (exit codes "
                f"{codes}) after {done} of {len(search.runs)} runs. Is there enough memory? Start "
                "again to go on, with less workers."
            )


@contextmanager
def _processes(search: _Search, workers: int) -> Iterator[Mapping[SpawnProcess, Connection]]:
    """Processes that work on a search, each with what it sends; at the end all are gone."""
    # Spawned, because threads of PyTorch do not survive a fork. They ignore Ctrl-C from their very
    # start: it is for this process, which then asks them to stop, once.
    context = multiprocessing.get_context("spawn")
    started: dict[SpawnProcess, Connection] = {}
    try:
        with _ignoring_ctrl_c():
            for number in range(workers):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_process, args=(search, number, workers, sender))
                process.start()
                sender.close()  # here, so that its end is seen
                started[process] = receiver
        yield started
    finally:
        _stop(list(started))


def _stop(processes: Sequence[SpawnProcess]) -> None:
    """Ask processes to save what they have, and wait for that; who asks twice does not wait."""
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()
        raise


def _process(search: _Search, number: int, workers: int, sender: Connection) -> None:
    """The whole life of a worker."""
    exit_with_parent()
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # a Ctrl-C for the first process does not reach us
    # As torchrun tells it: which GPU is ours, and how many share the cores.
    os.environ |= {"LOCAL_WORLD_SIZE": str(workers)}
    if gpus := torch.cuda.device_count():
        os.environ |= {"LOCAL_RANK": str(number % gpus)}
    threads = max(1, cores() // workers)
    runs, teachers = (
        {name: _with_threads(given, threads) for name, given in own.items()}
        for own in (search.runs, search.teachers)
    )
    search = replace(search, runs=runs, teachers=teachers)
    with _terminable():
        try:
            with closing(search.shared()) as shared:
                _work(search, shared, progress=False)
        except BaseException as error:
            sender.send_bytes(_pickled(error))


def _with_threads(configuration: Configuration, threads: int) -> Configuration:
    if configuration.threads is not None:
        return configuration
    return replace(configuration, threads=threads)


def _pickled(error: BaseException) -> bytes:
    """An error to be raised by another process; of one that should not be, also its traceback."""
    if not isinstance(error, (*_EXPECTED, KeyboardInterrupt)):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(found := pickle.dumps(error))
        return found
    except Exception:
        return pickle.dumps(RuntimeError("".join(traceback.format_exception(error))))


def _received(receiver: Connection) -> BaseException | None:
    """The error that a process ended with, if it sent one."""
    try:
        return pickle.loads(receiver.recv_bytes())
    except EOFError:
        return None


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"The runs were to go to {folder}, which cannot be made: {error.strerror or error}. "
            "Name another folder."
        ) from error


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does, so that a run in its hands is not left for dead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _bar(search: _Search, progress: bool = True) -> tqdm:
    return tqdm(
        total=len(search.runs),
        desc=search.study,
        unit="run",
        dynamic_ncols=True,
        disable=not (progress and sys.stderr.isatty()),
    )


def _format_running(search: _Search, names: Sequence[str]) -> Iterator[str]:
    """What each run tells of itself, as far as it is on this disk."""
    for name in names:
        folder = search.place.run(search.runs[name])
        yield f"{name} {last_metrics(folder) if (folder / METRICS).exists() else ''}".rstrip()
