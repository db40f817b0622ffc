"""What a run tells while it runs: its journal, TensorBoard, and a bar for those who watch."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from skipless.record import Journal, Record, number

_SHOWN = {
    "loss": "loss {:.3f}",
    "accuracy": "accuracy {:.1%}",
    "images_per_second": "{:.0f} images/s",
}


class Log:
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

        from .board import Board

        self._journal = Journal(folder)
        with self._written():
            self._journal.rewind(step)
            self._board = Board(folder / "tensorboard", step)
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

    def __enter__(self) -> Log:
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
