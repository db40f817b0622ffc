r"""The conditions of DKS and TAT on φ̂(x) = γ(φ(αx + β) + δ), in terms of the moments of φ(αz + β).

Each method asks for four. Two of them give γ and δ (`output`), a third one is `balance` = 0, and
the fourth prescribes the `reading`, by which alone the network enters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .activations import Array
from .moments import Moments


@dataclass(frozen=True)
class Conditions:
    """A method's third condition, `balance` = 0, and the logarithm of what its fourth one reads."""

    name: str
    balance: Callable[[Moments], Array]
    reading: Callable[[Moments], Array]
    output: Callable[[Moments], tuple[Array, Array]]


def _dks_output(m: Moments) -> tuple[Array, Array]:
    return m.variance**-0.5, -m.mean


def _tat_output(m: Moments) -> tuple[Array, Array]:
    return (m.variance + m.excess) ** -0.5, (m.excess - m.imbalance) / m.tilt - m.mean


def _tat_angle(m: Moments) -> Array:
    # D = m + δ must satisfy both D² = G and D T = G - P; the angle of (√G |T|, G - P) is then ±45°.
    return np.arctan2(m.excess - m.imbalance, np.sqrt(np.maximum(m.excess, 0.0)) * np.abs(m.tilt))


def _log(x: Array) -> Array:
    return np.log(np.maximum(x, 1e-300))


DKS_CONDITIONS = Conditions(
    "DKS",
    balance=lambda m: m.imbalance / m.excess,
    reading=lambda m: _log(m.excess / m.variance),
    output=_dks_output,
)
# As α goes to 0, Q″(1) goes to (3/2 - √2) C″(1) on the first family and to (3/2 + √2) C″(1), 34
# times more, on the second. The first is taken wherever it has a solution.
TAT_CONDITIONS = tuple(
    Conditions(
        name,
        balance=lambda m, angle=angle: _tat_angle(m) - angle,
        reading=lambda m: _log(m.bending / (m.variance + m.excess)),
        output=_tat_output,
    )
    for name, angle in (("TAT", math.pi / 4), ("TAT, steep Q", -math.pi / 4))
)
