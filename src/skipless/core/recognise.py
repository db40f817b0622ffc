"""Recognises activations by their values.

Whatever is computed pointwise from one tensor, by one operation or by ten, is a function of one
variable. Its values on `PROBE` are compared with those of the known activations, so
`x * sigmoid(x)` is SiLU however it is written.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np

from .activations import (
    Activation,
    Array,
    activation,
    activation_names,
    celu,
    elu,
    leaky_relu,
    soft_shrink,
    softplus,
)

# Both signs, both sides of every kink in the table, and far enough out to distinguish tails. The
# ends are powers of two: a factor of 0.9 is found there as 0.9, and not as 9.7 * 0.9 / 9.7.
PROBE = np.array([-8.0, -6.3, -3.3, -2.4, -1.3, -0.7, -0.3, 0.0, 0.2, 0.6, 1.1, 1.9, 2.8, 3.3, 8.0])
CLOSE = 1e-9  # relative to the largest value, in float64


@dataclass(frozen=True)
class ScaledActivation:
    """`scale` · φ, where φ is an activation, or the identity if it is None."""

    phi: Activation | None
    scale: float


def recognise(values: Array, close: float = CLOSE) -> ScaledActivation | None:
    """The multiple of a known activation, or of the identity, that has these `values` on `PROBE`.

    >>> found = recognise(3.0 * PROBE / (1.0 + np.exp(-PROBE)))
    >>> found.phi.name, round(found.scale, 9)
    ('silu', 3.0)
    """
    if values.shape != PROBE.shape or not np.all(np.isfinite(values)):
        return None
    members = ((phi, phi(PROBE)) for phi in _families(values))
    for phi, expected in chain(_table(), members):
        if (scale := _multiple(values, expected, close)) is not None:
            return ScaledActivation(phi, scale)
    return None


@cache
def _table() -> list[tuple[Activation | None, Array]]:
    names = [name for name in activation_names() if name not in ("identity", "celu")]  # celu = elu
    return [(None, PROBE), *((activation(name), activation(name)(PROBE)) for name in names)]


def _families(values: Array) -> Iterator[Activation]:
    """The members of the one-parameter families that fit `values` at single points."""
    at = dict(zip(PROBE.tolist(), values.tolist(), strict=True))
    if at[8.0] == 0.0:
        return
    slope = at[8.0] / 8.0  # of the families that are linear above zero
    yield leaky_relu(at[-8.0] / -8.0 / slope)
    if (alpha := at[-0.3] / slope / math.expm1(-0.3)) > 0.0:
        yield elu(alpha)
    if (alpha := -at[-8.0] / slope) > 0.0:
        for _ in range(30):  # α (e^(x/α) - 1), by iteration from its limit -α
            alpha = at[-8.0] / slope / math.expm1(-8.0 / alpha)
        yield celu(alpha)
    # The difference of softplus at x and -x is x; at zero it is log 2 / β.
    slope = (at[3.3] - at[-3.3]) / 3.3
    if at[0.0] * slope > 0.0:
        yield softplus(slope * math.log(2.0) / at[0.0])
    slope = (at[8.0] - at[3.3]) / 4.7
    if slope != 0.0 and 0.0 < (lambd := 8.0 - at[8.0] / slope) < 8.0:
        yield soft_shrink(lambd)


def _multiple(values: Array, expected: Array, close: float) -> float | None:
    """The s with `values` = s · `expected`, if there is one."""
    anchor = int(np.argmax(np.abs(expected)))
    if expected[anchor] == 0.0:
        return None
    scale = float(values[anchor] / expected[anchor])
    size = np.max(np.abs(values))
    if size == 0.0 or np.max(np.abs(values - scale * expected)) > close * size:
        return None
    return 1.0 if abs(scale - 1.0) < close else scale
