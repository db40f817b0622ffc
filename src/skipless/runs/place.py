"""Where runs are kept, each in a folder of its own, and trained once."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from skipless.files import lock, read_document, require_inside, write_atomically
from skipless.record import LOCK, Record
from skipless.train.checkpoint import FOLDER as CHECKPOINTS
from skipless.train.engine import DivergedError
from skipless.train.journal import EVENTS

from .configuration import Configuration, options
from .outcome import Ending, Outcome, summarize_run
from .training import train
from .workers import broadcast

OUTCOME = "outcome.json"


def run_key(configuration: Configuration) -> str:
    """A short name that two configurations share only if they have the same outcome.

    Defaults are left out, so that it survives options that are added later.
    """
    numeric = {n: own for n, own in options().items() if n not in ("threads", "log_every")}
    given = {n: own.value(configuration) for n, own in numeric.items() if not own.resumable}
    return digest({n: value for n, value in given.items() if value != numeric[n].default})


def digest(value: object) -> str:
    """A short name that two values share only if they are equal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def train_to_end(
    configuration: Configuration,
    folder: Path,
    should_stop: Callable[[float, float], bool] = lambda epoch, top1: False,
) -> Ending:
    """Trains in `folder`; returns how that ended. Raises InterruptedError if a signal stopped it.

    Under `torchrun`, `should_stop` is asked in the first process.
    """
    hopeless = False

    def ask(epoch: float, top1: float) -> bool:
        nonlocal hopeless
        hopeless = should_stop(epoch, top1)
        return hopeless

    ending: Ending | None = None
    try:
        status, _ = train(configuration, folder, resume=True, progress=False, should_stop=ask)
    except DivergedError:
        return "diverged"
    if status.finished:
        ending = "finished"
    elif hopeless:
        ending = "stopped"
    ending = broadcast(ending)
    if ending is None:
        raise InterruptedError(f"The run in {folder} was stopped.")
    return ending


def run_once(
    folder: Path, train_run: Callable[[], Ending], *, keep_weights: bool = False
) -> Outcome:
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
            ending = train_run()
            outcome = summarize_run(Record.read(folder), ending)
            write_atomically(path, json.dumps(outcome.as_mapping()) + "\n")
        for large in () if keep_weights else (CHECKPOINTS, EVENTS):
            shutil.rmtree(folder / large, ignore_errors=True)
    return outcome


def keep_outcome(folder: Path, outcome: Outcome) -> None:
    """Let `run_once` find an outcome that is known from elsewhere."""
    if not (path := folder / OUTCOME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(outcome.as_mapping()) + "\n")


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
