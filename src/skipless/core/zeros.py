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
    # The zero is between a, where f was called last, and b; c is what a took the place of.
    b, a = brackets[:, 0], brackets[:, 1]
    fb, fa = f(rows, b), f(rows, a)
    share, found = np.full_like(a, 0.5), a.copy()
    for _ in range(steps):
        x = a + share * (b - a)
        fx = f(rows, x)
        found[rows] = x
        same_side = np.where(np.isnan(fa), ~(fx * fb > 0.0), fx * fa > 0.0)
        c, fc = np.where(same_side, a, b), np.where(same_side, fa, fb)
        b, fb = np.where(same_side, b, a), np.where(same_side, fb, fa)
        unfinished = ~(np.abs(fx) <= within)
        if not np.any(unfinished):
            break
        rows = rows[unfinished]
        a, b, c, fa, fb, fc = (values[unfinished] for values in (x, b, c, fx, fb, fc))
        with np.errstate(all="ignore"):
            place, height = (a - b) / (c - b), (fa - fb) / (fc - fb)
            is_safe = (height**2 < place) & ((1.0 - height) ** 2 < 1.0 - place)
            curved = fa / (fb - fa) * fc / (fb - fc)
            curved += (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        share = np.where(is_safe, np.clip(curved, 1e-9, 1.0 - 1e-9), 0.5)
    return found
