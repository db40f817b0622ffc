"""Zeros of many functions of one variable at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .activations import Array

Rows = npt.NDArray[np.intp]


def zeros(
    f: Callable[[Rows, Array], Array], brackets: Array, *, within: float, steps: int
) -> Array:
    """A zero of each function between the ends that its row of `brackets` (n, 2) has.

    `f(rows, x)` gives the values of the functions `rows` at `x`, a number for each. Each one is
    called until its value is `within` that distance of 0, at most `steps` times after its ends.

    By the method of Chandrupatla (1997): inverse quadratic interpolation where it is safe, halving
    elsewhere. Where f jumps, it comes to the jump; where f is not a number, it keeps away.

    >>> powers = np.array([2.0, 3.0])
    >>> roots = zeros(
    ...     lambda rows, x: x ** powers[rows] - 2.0,
    ...     np.array([[0.0, 3.0], [0.0, 3.0]]),
    ...     within=1e-12,
    ...     steps=20,
    ... )
    >>> bool(np.allclose(roots, 2.0 ** (1.0 / powers), rtol=0.0, atol=1e-12))
    True
    """
    rows = np.arange(len(brackets))
    # Where f was called last, the other end of the bracket, and what the first took the place of.
    at: Array = brackets.T[[1, 0, 0]]
    values: Array = np.stack([f(rows, at[0]), *[f(rows, at[1])] * 2])
    share: Array = np.full(len(rows), 0.5)
    found = at[0].copy()
    for _ in range(steps):
        x: Array = at[0] + share * (at[1] - at[0])
        found[rows] = x
        at, values = _replaced(at, values, x, f(rows, x))
        unfinished = ~(np.abs(values[0]) <= within)
        if not np.any(unfinished):
            break
        rows, at, values = rows[unfinished], at[:, unfinished], values[:, unfinished]
        share = _share(at, values)
    return found


def _replaced(at: Array, values: Array, x: Array, fx: Array) -> tuple[Array, Array]:
    """The points and their values with `x` as the last one, between the ends that it leaves."""
    a, b, _ = values
    same_side = (fx * a > 0.0) | np.isnan(a) & ~(fx * b > 0.0)
    order = np.where(same_side, [[1], [0]], [[0], [1]])
    others, their_values = (np.take_along_axis(old, order, axis=0) for old in (at, values))
    return np.concatenate([x[None], others]), np.concatenate([fx[None], their_values])


def _share(at: Array, values: Array) -> Array:
    """How far from the last point towards the other end to look next."""
    (a, b, c), (fa, fb, fc) = at, values
    with np.errstate(all="ignore"):
        place, height = (a - b) / (c - b), (fa - fb) / (fc - fb)
        is_safe = (height**2 < place) & ((1.0 - height) ** 2 < 1.0 - place)
        curved = fa / (fb - fa) * fc / (fb - fc)
        curved += (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
    return np.where(is_safe, np.clip(curved, 1e-9, 1.0 - 1e-9), 0.5)
