r"""The C map of a part that no formula covers: a curve, measured on pairs of inputs, with errors.

Pairs x, y of q value 1 and cosine c go through the part. With sums over channels and pairs, and a
mean over locations,

$$\hat C(c) = \frac{\sum \langle f(x), f(y) \rangle}
                   {\sqrt{\sum \|f(x)\|^2 \sum \|f(y)\|^2}}.$$

The theory's C maps do not decrease, so the nearest non-decreasing values are kept, with a monotone
cubic between them. Errors are those of the jackknife over pairs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar, cast

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression

from .activations import Array

Cosines = TypeVar("Cosines", float, Array)

# Where C is measured; 1 is not, as C(1) = 1. The last two give slope and curvature at 1.
GRID = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.7, 0.9, 0.98)
_MOST_PLACES = 64  # of locations, more are taken together
_LONGER = 1.1  # how much longer inputs are that show how q depends on that of the input
_FEW_CHANNELS = 8  # of which vectors of exactly q = 1 are far from normal
_NO_SIGNAL = 1e-12  # a gain below means that the part returns zeros


class NoSignalError(ValueError):
    """A part returns nothing that has a q value, so that no curve describes it."""


@dataclass(frozen=True)
class PartMap:
    """A C map by its `values` at `cosines`, which rise from -1 to 1, with their standard errors.

    For inputs of q value 1, outputs have the q value `gain`; it changes with that of the inputs
    like its power `degree`. `slope` and `curvature` are those at 1. `spread` is the variance of a
    sample's q value, relative to its square: what finite width does. Errors are zero for a map that
    was computed, as of a function that adds a constant, which has this share of the gain.

    >>> line = PartMap.line(2.0, 1.0)  # f(x) = 2x + 1
    >>> round(line(0.0), 9), line.gain, line.slope
    (0.2, 5.0, 0.8)
    >>> print(line)
    C(0) = 0.200, q x 5
    """

    cosines: tuple[float, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    slope: float
    slope_error: float = 0.0
    curvature: float = 0.0
    curvature_error: float = 0.0
    gain: float = 1.0
    gain_error: float = 0.0
    degree: float = 1.0
    spread: float = 0.0
    constant: float | None = None

    @classmethod
    def line(cls, factor: float, shift: float) -> Self:
        """The curve of f(x) = factor · x + shift."""
        gain = factor**2 + shift**2
        bias = shift**2 / gain
        return cls(
            (-1.0, 1.0),
            (2.0 * bias - 1.0, 1.0),
            (0.0, 0.0),
            slope=1.0 - bias,
            gain=gain,
            degree=1.0 - bias,
            constant=bias,
        )

    def __str__(self) -> str:
        error = f" ± {self.error_at(0.0):.1g}" if self.is_measured else ""
        return f"C(0) = {self(0.0):.3f}{error}, q x {self.gain:.3g}"

    @property
    def is_measured(self) -> bool:
        return any(self.errors)

    def __call__(self, c: Cosines) -> Cosines:
        """C(c); of single numbers in microseconds."""
        if isinstance(c, np.ndarray):
            clipped = np.clip(c, -1.0, 1.0)
            return cast(Array, np.clip(self._interpolator(clipped), -1.0, 1.0))
        knots, pieces = self._pieces
        at = min(max(float(c), -1.0), 1.0)
        place = min(bisect_right(knots, at), len(pieces)) - 1
        x, (a3, a2, a1, a0) = at - knots[place], pieces[place]
        return min(max(((a3 * x + a2) * x + a1) * x + a0, -1.0), 1.0)

    def slope_at(self, c: float) -> float:
        """C'(c)."""
        if abs(c) >= 1.0 - 1e-9 and c > 0.0:
            return self.slope
        return max(float(self._interpolator(min(max(c, -1.0), 1.0), 1)), 0.0)

    def error_at(self, c: float) -> float:
        """The standard error of C(c)."""
        return float(np.interp(c, self.cosines, self.errors))

    def kernel(self, q: Any, c: Any) -> tuple[Any, Any]:
        """The q and c value behind the part; where nothing else is known, c does not change with q.

        >>> q, c = PartMap.line(1.0, 2.0).kernel(4.0, 0.5)  # 4 + 4, and (4 · 0.5 + 4) / 8
        >>> round(q, 9), round(c, 9)
        (8.0, 0.75)
        """
        if (k := self.constant) is None:
            return self.gain * q**self.degree, self(c)
        total = (1.0 - k) * q + k
        return self.gain * total, ((1.0 - k) * q * c + k) / total

    def shifted(self, errors: float) -> PartMap:
        """The curve that lies higher by so many of its standard errors."""
        values = np.array(self.values) + errors * np.array(self.errors)
        rising = np.maximum.accumulate(np.clip(values, -1.0, 1.0))
        return replace(
            self,
            values=(*rising[:-1].tolist(), 1.0),
            slope=max(0.0, self.slope + errors * self.slope_error),
            curvature=max(0.0, self.curvature + errors * self.curvature_error),
        )

    @cached_property
    def _interpolator(self) -> Callable[..., Array]:
        return PchipInterpolator(np.array(self.cosines), np.array(self.values))

    @cached_property
    def _pieces(self) -> tuple[list[float], list[tuple[float, ...]]]:
        """The knots, and behind each one the cubic in the distance from it."""
        coefficients = np.asarray(getattr(self._interpolator, "c"))  # noqa: B009 - not in the stubs
        return list(self.cosines), [tuple(map(float, column)) for column in coefficients.T]

    def __getstate__(self) -> dict[str, object]:  # interpolators are rebuilt on first use
        return {k: v for k, v in vars(self).items() if not k.startswith("_")}


@dataclass(frozen=True)
class PairSums:
    """What a part makes of pairs x, y, for every pair, and for y at each cosine of `GRID`.

    All are means of products over channels: `xx` and `scaled` of shape (pairs, locations), `yy` and
    `xy` of shape (pairs, cosines, locations). `scaled` is |f(s x)|² for inputs that are longer by
    `factor`.
    """

    xx: Array
    yy: Array
    xy: Array
    scaled: Array
    factor: float


def curve_of(sums: PairSums) -> PartMap:
    """The curve through what was measured, with the errors of the jackknife over pairs."""
    count = len(sums.xx)
    if count < 2:
        raise ValueError(f"A curve needs at least 2 pairs for its errors, got {count}")
    if not np.all(np.isfinite(sums.xy)) or float(np.mean(sums.xx)) < _NO_SIGNAL:
        raise NoSignalError("returns zeros, or what is not finite")
    estimate = _statistics(sums, np.ones(count))
    left_out = np.stack([_statistics(sums, 1.0 - row) for row in np.eye(count)])
    spread = np.sum((left_out - left_out.mean(axis=0)) ** 2, axis=0)
    errors = np.sqrt((count - 1) / count * spread)
    slope, curvature, gain, degree, *raw = estimate.tolist()
    weights = 1.0 / (errors[4:] ** 2 + 1e-8)
    kept = np.clip(isotonic_regression(raw, weights=weights).x, -1.0, 1.0)
    off = np.sqrt(errors[4:] ** 2 + (kept - raw) ** 2)
    return PartMap(
        (*GRID, 1.0),
        (*kept.tolist(), 1.0),
        # An exact map leaves rounding errors: it is still a measured one.
        (*np.maximum(off, 1e-9).tolist(), 0.0),
        slope=max(slope, 0.0),
        slope_error=float(errors[0]),
        curvature=max(curvature, 0.0),
        curvature_error=float(errors[1]),
        gain=gain,
        gain_error=float(errors[2]),
        degree=degree,
        spread=float(np.var(np.mean(sums.xx, axis=1), ddof=1)) / gain**2,
    )


def measure_curve(
    run: Callable[[Array], Array],
    draw: Callable[[], tuple[Array, Array]],
    repeats: int,
) -> PartMap:
    """The maps of a part that `run` applies to batches.

    Args:
        run: The part; it returns an array of shape (samples, locations, channels). If a batch has
            another number of samples there, all of it counts as one.
        draw: Two batches x and z of orthogonal samples of q value 1, freshly drawn.
        repeats: How many batches to draw.
    """
    parts = [_sums(run, *draw()) for _ in range(repeats)]
    xx, yy, xy, scaled = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return curve_of(PairSums(xx, yy, xy, scaled, _LONGER))


def _sums(run: Callable[[Array], Array], x: Array, z: Array) -> tuple[Array, Array, Array, Array]:
    at_x = np.asarray(run(x), np.float64)
    at_y = np.stack([np.asarray(run(c * x + math.sqrt(1.0 - c * c) * z), np.float64) for c in GRID])
    longer = np.asarray(run(_LONGER * x), np.float64)
    locations = at_x.shape[1]
    places = min(_MOST_PLACES, locations)
    starts = [place * locations // places for place in range(places)]
    sizes = np.diff([*starts, locations])
    together = len(at_x) != len(x)

    def product(a: Array, b: Array) -> Array:
        """Of shape (…, pairs, places), from arrays of shape (…, pairs, locations, channels)."""
        means: Array = np.einsum("...c,...c->...", a, b) / a.shape[-1]
        means = np.mean(means, axis=-2, keepdims=True) if together else means
        return np.add.reduceat(means, starts, axis=-1) / sizes

    yy, xy = (np.moveaxis(product(a, at_y), 0, 1) for a in (at_y, at_x))
    return product(at_x, at_x), yy, xy, product(longer, longer)


def orthogonal_samples(
    rng: np.random.Generator, count: int, channels: int, locations: int
) -> tuple[Array, Array]:
    """Two batches of shape (count, channels, locations), of q value 1 at every location.

    Samples at the same place are orthogonal, up to fluctuations where there are few channels. With
    one location, its numbers stand for all of them.
    """
    x, z = rng.standard_normal((2, count, channels, locations))
    if channels < _FEW_CHANNELS:
        return x, z
    x /= np.sqrt(np.mean(x * x, axis=1, keepdims=True))
    z -= np.mean(x * z, axis=1, keepdims=True) * x
    z /= np.sqrt(np.mean(z * z, axis=1, keepdims=True))
    return x, z


def _statistics(sums: PairSums, weights: Array) -> Array:
    """Slope and curvature at 1, gain, degree, and C on the grid, from pairs with these weights."""
    xx_l, xy_cl, yy_cl = (np.tensordot(weights, a, axes=1) for a in (sums.xx, sums.xy, sums.yy))
    heard = xx_l > _NO_SIGNAL * np.max(xx_l)
    c = np.mean(xy_cl[:, heard] / np.sqrt(xx_l[heard] * yy_cl[:, heard]), axis=1)
    far, near = (1.0 - c[-2:]) / (1.0 - np.array(GRID[-2:]))  # falls short of C' by C'' (1 - c) / 2
    curvature = 2.0 * (near - far) / (GRID[-1] - GRID[-2])
    slope = near + 0.5 * curvature * (1.0 - GRID[-1])
    xx, longer = float(np.mean(xx_l)), float(np.mean(weights @ sums.scaled))
    degree = math.log(longer / xx) / (2.0 * math.log(sums.factor)) if longer > 0.0 else 0.0
    return np.array([slope, curvature, xx / float(np.sum(weights)), degree, *c])
