"""In which steps the curvature is measured, and in which it is inverted."""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType


@dataclass(frozen=True)
class Timing:
    """Steps are numbered from 0; the first `burn_in` of them only measure."""

    burn_in: int
    curvature_period: int
    inverse_period: int
    spread: bool

    def curvature_due(self, step: int) -> bool:
        """Whether the curvature is measured in that step."""
        return step < self.burn_in or (step - self.burn_in) % self.curvature_period == 0

    def part(self, step: int) -> int | EllipsisType | None:
        """Which part of the inverses is computed in that step: ..., if it is all of them.

        >>> timing = Timing(burn_in=1, curvature_period=1, inverse_period=3, spread=True)
        >>> [timing.part(step) for step in range(6)]
        [None, Ellipsis, 1, 2, 0, 1]
        """
        past = step - self.burn_in
        if past < 0:
            return None
        if self.spread:
            return past % self.inverse_period if past else ...
        return None if past % self.inverse_period else ...
