"""What K-FAC has to say, once."""

from __future__ import annotations

import logging

_log = logging.getLogger("skipless.optim")


class ToldOnce:
    """A log that says nothing twice. No method of the optimiser, which would never be freed."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def __call__(self, message: str) -> None:
        """Say it, if it was not said before."""
        if message not in self._told:
            self._told.add(message)
            _log.warning(message)
