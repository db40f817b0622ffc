"""What a run tells while it runs: its journal, TensorBoard, and a bar for those who watch.

Events for TensorBoard, written at once and not by a thread.

The writers of PyTorch and TensorBoard hand events to a thread. If the disk is full, that thread
dies with a traceback, and later events wait for it for ever.

Where a run comes from: versions, commit and machine.
"""

from __future__ import annotations

import math
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from skipless.record import Json, MetricsFile, Record, number

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore


class TensorBoardWriter:
    """A file of events in `folder`; TensorBoard forgets those of earlier files after `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, name: str, value: float, step: int) -> None:
        """One number, measured after `step`."""
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore

        self._write(
            Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))
        )

    def flush(self) -> None:
        """Make all events durable."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())


_SHOWN = {
    "loss": "loss {:.3f}",
    "accuracy": "accuracy {:.1%}",
    "images_per_second": "{:.0f} images/s",
}


class RunLog:
    """Writes numbers to all three places; a `quiet` one, of a process that does not lead, nowhere.

    The bar is for terminals: elsewhere, and without `progress`, nothing is printed. `last` tells
    the last checkpoint, for errors.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        total: int,
        *,
        last: Callable[[], str] = lambda: "none",
        quiet: bool = False,
        progress: bool = True,
    ) -> None:
        self._quiet = quiet
        self._last = last
        self._done: set[tuple[str, int]] = set()
        if quiet:
            return
        from tqdm import tqdm

        self._journal = MetricsFile(folder)
        with self._written():
            self._journal.rewind(step)
            self._board = TensorBoardWriter(folder / "tensorboard", step)
        rows = Record.read(folder).metrics
        self._done = {(str(row["kind"]), int(number(row, "step"))) for row in rows}
        self._bar = tqdm(
            total=total,
            initial=step,
            unit="step",
            dynamic_ncols=True,
            disable=not (progress and sys.stderr.isatty()),
        )
        self._told: dict[str, str] = {}

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._quiet:
            self._bar.close()
            with self._written():
                self._board.close()

    def has(self, kind: str, step: int) -> bool:
        """Whether the journal has a row of this kind for this step."""
        return (kind, step) in self._done

    def advance(self, step: int) -> None:
        """Move the bar on."""
        if not self._quiet:
            self._bar.update(step - self._bar.n)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write numbers measured after `step`."""
        if self._quiet:
            return
        self._done.add((kind, step))
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self._written():
            self._journal.append(kind, step, plain)
            for name, value in values.items():
                self._board.add(f"{kind}/{name}", value, step)
        self._show(kind, values)

    def flush(self) -> None:
        """Make all that was written as durable as a checkpoint."""
        if not self._quiet:
            with self._written():
                self._journal.flush()
                self._board.flush()

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Where a disk is full, say what is safe and what to do."""
        try:
            yield
        except OSError as error:
            raise OSError(
                f"What was measured could not be written to {self._journal.path.parent}: "
                f"{error.strerror or error}. The last checkpoint that is whole: {self._last()}. "
                "Make room, then go on with --resume."
            ) from error

    def _show(self, kind: str, values: Mapping[str, float]) -> None:
        if kind == "train":
            self._told |= {name: form.format(values[name]) for name, form in _SHOWN.items()}
        else:
            self._told[kind] = f"{kind} {values['top1']:.1%}"
        self._bar.set_postfix_str(", ".join(self._told.values()), refresh=False)


_PACKAGES = ("skipless", "torch", "numpy", "scipy", "pytorch-optimizer", "pillow")


def provenance() -> dict[str, Json]:
    """What `run.json` tells of the circumstances."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **_versions()},
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [*gpus],
        },
        "command": [*sys.argv],
    }


def _versions() -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str | None:
    """What git answers for the current folder, or None where there is no git or no repository."""
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
