"""What K-FAC has to say, once each, by the logger `skipless.optim`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from torch import nn

_log = logging.getLogger("skipless.optim")

_SHOWN = 20  # names; KFAC.diagonal_names has all of them


class Notes:
    """A log that says nothing twice, and knows the names of parameters."""

    def __init__(self, names: Mapping[nn.Parameter, str]) -> None:
        self.names = names
        self._told: set[str] = set()

    def once(self, message: str) -> None:
        """Say it, if it was not said before."""
        if message not in self._told:
            self._told.add(message)
            _log.warning(message)

    def diagonal(self, parameters: Sequence[nn.Parameter], which: str) -> None:
        """Tell of parameters that have no Kronecker factors."""
        self.once(
            f"K-FAC takes only the diagonal of the curvature for parameters {which}: "
            f"{_listed([self.names[p] for p in parameters])}."
        )

    def unknown(self, parameters: Sequence[nn.Parameter]) -> None:
        """Tell of parameters that have gradients, but no curvature."""
        if parameters:
            self.once(
                "K-FAC does not move parameters whose curvature it has not measured: "
                f"{_listed([self.names[p] for p in parameters])}. They had no part in the outputs "
                "that curvature() was given, as other heads have none, or layers under a "
                "checkpoint without use_reentrant=False; or what it measured was not finite."
            )

    def strangers(self, model: nn.Module) -> None:
        """Tell of parameters that have gradients, but were frozen when K-FAC was made."""
        own = model.named_parameters()
        strange = [name for name, p in own if p.grad is not None and p not in self.names]
        if strange:
            self.once(
                f"K-FAC does not train {_listed(strange)}, which were frozen when it was made. "
                "Make another one."
            )


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
