"""Signals that ask a run to stop, remembered until it can."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interruption:
    """While entered, SIGTERM and SIGINT only set `requested`; a second one acts as usual.

    With `patient`, no number of them does more: `torchrun` sends again what its processes have had
    from the terminal already. Python takes signals in the main thread only; in any other nothing is
    changed.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, *, patient: bool = False) -> None:
        self.requested = False
        self._patient = patient
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._remember) for one in self._SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if not self._patient:
            self._restore()

    def _restore(self) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)  # pyright: ignore[reportArgumentType]
        self._before = {}
