"""A run that is done once, however many ask for it, and goes on where an earlier try left it."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from skipless.record import Record, write_atomically
from skipless.train.checkpoint import FOLDER as CHECKPOINTS
from skipless.train.engine import DivergedError

from .configuration import CHANGEABLE, Configuration
from .outcome import Outcome, outcome_of
from .training import train

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
