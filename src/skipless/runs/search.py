"""Many runs by name, each trained once, by any number of workers on any number of machines.

    outcomes = run_all("rates", {"rate 0.1": Configuration(...), ...}, Place(Path("out")))

Workers share an Optuna data base: a SQLite file on one machine; for several machines a server, with
the same call on each of them. A worker that dies loses only its run, which another one takes over,
from the last checkpoint if they share a disk. A search that was stopped resumes when it is started
again. Under `torchrun`, the first process tells the others what to train.
"""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

from skipless.files import lock, new_folder, read_document, require_inside, write_atomically
from skipless.record import LOCK, METRICS, Record
from skipless.train.checkpoint import FOLDER as CHECKPOINTS
from skipless.train.engine import DivergedError
from skipless.train.journal import EVENTS
from skipless.train.process import cores, exit_with_parent, process_group, select_device

from .configuration import Configuration, DataOptions, options
from .outcome import Outcome, summarize_run
from .study import SharedStudy
from .training import load_images, train

OUTCOME = "outcome.json"

_PAUSE = 1.0  # seconds between looks at the other workers
_EXPECTED = (ValueError, OSError, ImportError)  # errors whose message is enough for a user

# From the first process: a run to take part in; None, to keep waiting; at the end, all outcomes.
Message = str | dict[str, Outcome] | None


def _is_distributed() -> bool:
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def is_main() -> bool:
    """Whether this is the first process, or the only one."""
    return int(os.environ.get("RANK", 0)) == 0


def _broadcast(message: Message) -> Message:
    """The message of the first process, in all of them; a single process gets its own back."""
    if not _is_distributed():
        return message
    messages = [message]
    dist.broadcast_object_list(messages, src=0)
    return messages[0]


def run_key(configuration: Configuration) -> str:
    """A short name that two configurations share only if they have the same outcome.

    Defaults are left out, so that it survives options that are added later.
    """
    numeric = {n: own for n, own in options().items() if n not in ("threads", "log_every")}
    given = {n: own.value(configuration) for n, own in numeric.items() if not own.resumable}
    return _digest({n: value for n, value in given.items() if value != numeric[n].default})


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def train_to_end(configuration: Configuration, folder: Path) -> bool:
    """Trains in `folder`; returns False if the run diverged. Raises InterruptedError if stopped."""
    try:
        ending, _ = train(configuration, folder, resume=True, progress=False)
    except DivergedError:
        return False
    if not ending.finished:
        raise InterruptedError(f"The run in {folder} was stopped.")
    return True


def run_once(folder: Path, train_run: Callable[[], bool], *, keep_weights: bool = False) -> Outcome:
    """The outcome of the run in `folder`, which `train_run` trains only if it has none yet.

    Other processes that need the same run wait for it. In the end, checkpoints and TensorBoard's
    files are deleted, unless weights are needed.
    """
    path = folder / OUTCOME
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / LOCK, wait=True):
        if path.exists():
            outcome = _read_outcome(path)
        else:
            finished = train_run()
            outcome = summarize_run(Record.read(folder), finished)
            write_atomically(path, json.dumps(outcome.as_mapping()) + "\n")
        for large in () if keep_weights else (CHECKPOINTS, EVENTS):
            shutil.rmtree(folder / large, ignore_errors=True)
    return outcome


def _read_outcome(path: Path) -> Outcome:
    try:
        return Outcome.of(read_document(path))
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(
            f"{path} is damaged or of another version ({error}). Delete {path.parent} to train "
            "the run again."
        ) from None


@dataclass(frozen=True)
class Place:
    """Where a search keeps its results, and how many processes of this machine work on it."""

    folder: Path  # gets a folder for each run and, without a `storage`, the data base
    storage: str | None = None  # a URL for Optuna: postgresql://user:password@host/name
    workers: int | None = None  # processes; by default one for each GPU, or else for each core

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if self.storage is not None and not self.storage.strip():
            raise ValueError(
                "storage must be a URL such as postgresql://user:password@host/name, got "
                f"{self.storage!r}. Leave it out for a file."
            )

    @property
    def url(self) -> str:
        """The URL of the data base."""
        return self.storage if self.storage is not None else f"sqlite:///{self.file.resolve()}"

    @property
    def file(self) -> Path:
        """The data base, without a `storage`."""
        return self.folder / "studies.db"

    def run(self, configuration: Configuration) -> Path:
        """The folder of a run, which all studies here share."""
        return self.folder / "runs" / run_key(configuration)

    def require_own(self) -> None:
        """Raise if something in the folder, in which we would write, is a link out of it."""
        runs = [self.folder / name for name in ("runs", "teachers")]
        inner = (path for folder in runs if folder.is_dir() for path in folder.iterdir())
        for path in (self.file, *runs, *inner):
            require_inside(path, self.folder)

    def teacher(self, configuration: Configuration) -> Path:
        """The folder of a run that others learn from, which keeps its weights."""
        return self.folder / "teachers" / run_key(configuration)


@dataclass(frozen=True)
class _Search:
    """All that a worker has to know."""

    study: str
    runs: Mapping[str, Configuration]
    place: Place
    seconds_until_dead: int
    teachers: Mapping[str, Configuration]

    def open_study(self) -> SharedStudy:
        """The study; another set of runs is another study."""
        keys = {name: run_key(configuration) for name, configuration in self.runs.items()}
        name = f"{self.study}-{_digest(keys)}"
        return SharedStudy(name, sorted(self.runs), self.place.url, self.seconds_until_dead)

    def train(self, name: str) -> bool:
        """Trains a run, from its checkpoint if it has one; returns False if it diverged."""
        configuration = self.runs[name]
        folder = self.place.run(configuration)
        if (teacher := self.teachers.get(configuration.teacher or "")) is not None:
            configuration = replace(configuration, teacher=str(self._train_teacher(teacher)))
        return train_to_end(configuration, folder)

    def _train_teacher(self, configuration: Configuration) -> Path:
        """The folder of a teacher, which the first run that needs it trains."""
        folder = self.place.teacher(configuration)
        train_run = lambda: train_to_end(configuration, folder)
        if is_main():
            run_once(folder, train_run, keep_weights=True)
        elif not (folder / OUTCOME).exists():  # then the first process is about to train it
            train_run()
        return folder


def run_all(
    study: str,
    runs: Mapping[str, Configuration],
    place: Place,
    *,
    seconds_until_dead: int = 120,
    teachers: Mapping[str, Configuration] | None = None,
) -> dict[str, Outcome]:
    """Runs every configuration; returns outcomes by name, once all workers are done.

    Args:
        study: Name of the search in the data base.
        runs: Configurations by name.
        place: Where results go.
        seconds_until_dead: A worker without a sign of life for so long loses its run to another.
        teachers: Teachers by the name that runs have as `teacher`. Each machine trains each once,
            before its students.

    An error in one run stops the search on this machine, and is raised. Under `torchrun`, all
    processes train each run together.
    """
    search = _Search(study, runs, place, seconds_until_dead, teachers or {})
    with process_group() if _is_distributed() else nullcontext():
        if not is_main():
            while not isinstance(message := _broadcast(None), dict):
                if message is not None:
                    search.train(message)
            return message
        outcomes = _run_search(search)
        _broadcast(outcomes)
        return outcomes


def _run_search(search: _Search) -> dict[str, Outcome]:
    search.place.require_own()
    checked = search.place.storage is None and not search.place.file.exists()
    if checked:
        _require_data_and_devices(search.runs)
    with (
        new_folder(search.place.folder),
        closing(search.open_study()) as shared,
        _terminable(),
    ):
        try:
            left = len(search.runs) - shared.done()
            if left and not checked:
                _require_data_and_devices(search.runs)
            workers = min(left, search.place.workers or torch.cuda.device_count() or cores())
            if workers > 1 and not _is_distributed():
                _watch(search, shared, workers)
            else:
                _work(search, shared)
        except (KeyboardInterrupt, InterruptedError):
            raise InterruptedError(
                f"The search {search.study} was stopped after {shared.done()} of "
                f"{len(search.runs)} runs. Run it again to resume."
            ) from None
        outcomes = shared.outcomes()
    return {name: outcomes[name] for name in search.runs}


def _require_data_and_devices(runs: Mapping[str, Configuration]) -> None:
    """Raise if a run cannot start, before workers do."""
    for device in {own.device for own in runs.values()}:
        select_device(device)
    names = [own.name for own in fields(DataOptions)]
    for own in {tuple(getattr(own, n) for n in names): own for own in runs.values()}.values():
        load_images(own)


def _work(search: _Search, shared: SharedStudy, *, progress: bool = True) -> None:
    """Train the remaining runs of a study, until all are done."""
    with _bar(search, progress) as bar:

        def run(name: str) -> Outcome:
            def train_run() -> bool:
                _broadcast(name)
                return search.train(name)

            bar.set_postfix_str(name)
            return run_once(search.place.run(search.runs[name]), train_run)

        while (done := shared.done()) < len(search.runs):
            bar.update(done - bar.n)
            if not shared.take(run):
                _broadcast(None)  # so that the others do not time out
                time.sleep(_PAUSE)


def _watch(search: _Search, shared: SharedStudy, workers: int) -> None:
    """Let `workers` processes train the remaining runs, until all are done or all have died."""
    with _processes(search, workers) as processes, _bar(search) as bar:
        running = dict(processes)
        while running:
            wait([process.sentinel for process in running], timeout=_PAUSE)
            for process in [p for p in running if not p.is_alive()]:
                if (error := _receive_error(running.pop(process))) is not None:
                    raise error
            if not bar.disable:
                bar.update(shared.done() - bar.n)
                bar.set_postfix_str("; ".join(_last_metrics(search, n) for n in shared.running()))
        if (done := shared.done()) < len(search.runs):
            codes = ", ".join(sorted({str(process.exitcode) for process in processes}))
            raise ChildProcessError(
                f"All {workers} workers of the search {search.study} were killed (exit codes "
                f"{codes}) after {done} of {len(search.runs)} runs, possibly out of memory. Rerun "
                "with fewer workers to resume."
            )


@contextmanager
def _processes(search: _Search, workers: int) -> Iterator[Mapping[SpawnProcess, Connection]]:
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


def _run_worker(search: _Search, number: int, workers: int, sender: Connection) -> None:
    """The main function of a worker process."""
    exit_with_parent()
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # so that a Ctrl-C for the first process does not reach us
    # As torchrun does: which GPU is ours, and how many processes share the cores.
    os.environ |= {"LOCAL_WORLD_SIZE": str(workers)}
    if gpus := torch.cuda.device_count():
        os.environ |= {"LOCAL_RANK": str(number % gpus)}
    threads = max(1, cores() // workers)
    runs, teachers = (
        {n: replace(c, threads=threads) if c.threads is None else c for n, c in own.items()}
        for own in (search.runs, search.teachers)
    )
    search = replace(search, runs=runs, teachers=teachers)
    with _terminable():
        try:
            with closing(search.open_study()) as shared:
                _work(search, shared, progress=False)
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


def _bar(search: _Search, progress: bool = True) -> tqdm:
    off = not (progress and sys.stderr.isatty())
    return tqdm(
        total=len(search.runs), desc=search.study, unit="run", dynamic_ncols=True, disable=off
    )


def _last_metrics(search: _Search, name: str) -> str:
    """A run's name and last evaluation, as far as it is on this disk."""
    folder = search.place.run(search.runs[name])
    if not (folder / METRICS).exists():
        return name
    record = Record.read(folder)
    epochs, accuracies = (record.series("validation", n)[1] for n in ("epoch", "top1"))
    return f"{name} epoch {epochs[-1]:g}: {accuracies[-1]:.0%}" if epochs else name
