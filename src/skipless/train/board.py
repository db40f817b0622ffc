"""Events for TensorBoard, written at once and not by a thread.

The writers of PyTorch and TensorBoard hand events to a thread. If the disk is full, that thread
dies with a traceback, and later events wait for it for ever.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore
from tensorboard.summary.writer.record_writer import RecordWriter


class Board:
    """A file of events in `folder`; TensorBoard forgets those of earlier files after `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, name: str, value: float, step: int) -> None:
        """One number, measured after `step`."""
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
