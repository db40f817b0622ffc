"""Optimisers that measure curvature in forward passes, such as K-FAC."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Curved(Protocol):
    """What the engine has to do for them."""

    def curvature(self, outputs: Tensor, targets: Tensor) -> None:
        """Measure the curvature in the pass that gave `outputs`, if it is time to."""
        ...

    def synchronize(self) -> None:
        """Make it equal on all processes, before one of them saves it."""
        ...
