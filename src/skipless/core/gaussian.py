"""Expectations under z ~ N(0, 1) and under correlated pairs, exact to rounding error.

Every integral is a sum of 12-point Gauss-Legendre panels. Panels end wherever the integrand has a
kink, and crowd around the origin of φ, where its curvature lives; so each panel sees an analytic
function whose nearest singularity is at least a panel away, and converges geometrically.
"""

from __future__ import annotations

import math

import numpy as np

from .activations import Activation, Array, Function

_GAUSS_X, _GAUSS_W = (np.asarray(a, float) for a in np.polynomial.legendre.leggauss(12))

# Beyond |z| = 38 the density underflows; up to 12 the panels are as wide as 12 nodes can follow it.
_CENTRE = np.arange(-12.0, 12.1, 1.5)
_EDGES = np.concatenate([[-38.0, -28.0, -20.0, -15.0], _CENTRE, [15.0, 20.0, 28.0, 38.0]])
_REACH = 12.0
# The same panels moved, for the second opinion: a kink that no node of the one sees, because it is
# just beside the end of a panel, lies in the middle of a panel of the other.
_MOVED = np.concatenate([[_EDGES[0]], _EDGES[1:-1] + 0.6, [_EDGES[-1]]])

# Panel ends in units of φ's own argument, in a geometric progression away from the origin.
_OUTWARD = 0.75 * 2.5 ** np.arange(14)
_ORIGIN = np.concatenate([-_OUTWARD[::-1], [0.0], _OUTWARD])
_MOST_PERIODS = 2000

_CONVERGED = 1e-14
_MOST_HALVINGS = 9


class QuadratureError(ArithmeticError):
    """An expectation that does not converge: the integrand is rougher than it was declared."""


def density(z: Array) -> Array:
    """Density of N(0, 1)."""
    return np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


def cuts(activation: Activation, scale: float, shift: float = 0.0) -> Array:
    """Points z at which panels for φ(scale · z + shift) should end."""
    centre, width = activation.bend
    origin = centre + width * _ORIGIN
    near = np.abs(origin - shift) < _EDGES[-1] * abs(scale)
    x = np.concatenate([origin[near], np.asarray(activation.kinks, float)])
    if activation.period is not None:
        step = 0.5 * activation.period
        n = min(math.ceil((_REACH * abs(scale) + abs(shift)) / step), _MOST_PERIODS)
        x = np.concatenate([x, step * np.arange(-n, n + 1.0)])
    return (x - shift) / scale


def rule(ends: Array, edges: Array = _CENTRE, halvings: int = 0) -> tuple[Array, Array]:
    """Nodes and Gaussian weights of the composite rule with panels cut at `edges` and `ends`.

    `ends` may carry leading axes: each row of its last axis gives a rule of its own.

    >>> z, w = rule(np.array([0.3]))
    >>> bool(abs(w.sum() - 1) < 1e-14 and abs(w @ z**4 - 3) < 1e-13)
    True
    """
    fixed = np.broadcast_to(edges, (*ends.shape[:-1], edges.size))
    bounds = np.concatenate([fixed, np.clip(ends, edges[0], edges[-1])], axis=-1)
    bounds.sort(axis=-1)
    if halvings:
        parts = 2**halvings
        left, width = bounds[..., :-1, None], np.diff(bounds)[..., None]
        inner = (left + width * np.linspace(0.0, 1.0, parts, endpoint=False)).reshape(
            *bounds.shape[:-1], -1
        )
        bounds = np.concatenate([inner, bounds[..., -1:]], axis=-1)
    half = 0.5 * np.diff(bounds)
    middle = 0.5 * (bounds[..., 1:] + bounds[..., :-1])
    z = (middle[..., None] + half[..., None] * _GAUSS_X).reshape(*bounds.shape[:-1], -1)
    w = (half[..., None] * _GAUSS_W).reshape(z.shape) * density(z)
    return z, w


def _converge(f: Function, ends: Array) -> tuple[float, int]:
    """E[f(z)], and how often the panels had to be halved until it stood still."""
    previous = math.nan
    for halvings in range(_MOST_HALVINGS):
        z, w = rule(ends, _MOVED if halvings % 2 else _EDGES, halvings)
        terms = w * f(z)
        # A node rounded at z perturbs the density by about z² times as much.
        total, size = float(np.sum(terms)), float(np.sum(np.abs(terms) * (1.0 + 0.1 * z * z)))
        if abs(total - previous) <= _CONVERGED * size:
            return total, halvings - 1
        previous = total
    raise QuadratureError(
        f"E[f(z)] was asked to rounding error, but still moves after {_MOST_HALVINGS} halvings of "
        "the panels. Declare every kink of the activation (Activation(..., kinks=...)), and its "
        "period if it oscillates."
    )


def expectation(f: Function, ends: Array | None = None) -> float:
    """E[f(z)] for z ~ N(0, 1), where f is smooth except at `ends`.

    >>> abs(expectation(np.abs, np.array([0.0])) - math.sqrt(2 / math.pi)) < 1e-14
    True
    """
    return _converge(f, np.zeros(0) if ends is None else ends)[0]


def pair_expectation(f: Function, g: Function, c: float, f_ends: Array, g_ends: Array) -> float:
    """E[f(z₁) g(z₂)] for standard normal z₁, z₂ with correlation `c`.

    For |c| < 1, z₂ = c z₁ + √(1 - c²) z with z independent of z₁: the inner integral over z is a
    smooth function of z₁ that bends within √(1 - c²) of each end of g, and the outer panels crowd
    there.

    >>> square = lambda z: z * z
    >>> round(pair_expectation(square, square, 0.5, np.zeros(0), np.zeros(0)), 12)  # 1 + 2 c²
    1.5
    """
    if abs(c) == 1.0:
        return expectation(lambda z: f(z) * g(c * z), np.concatenate([f_ends, c * g_ends]))
    halvings = max(halvings_for(f, f_ends), halvings_for(g, g_ends))
    s = math.sqrt((1.0 - c) * (1.0 + c))
    outer_ends = np.concatenate([f_ends, _smoothed(g_ends, s) / c]) if abs(c) > 0.05 else f_ends
    z1, w1 = rule(outer_ends[np.abs(outer_ends) < _REACH], _CENTRE, halvings)
    total = 0.0
    for some in np.array_split(np.arange(z1.size), 1 + z1.size * 2**halvings // 8192):
        ends = (g_ends - c * z1[some, None]) / s
        z, w = rule(ends[:, np.any(np.abs(ends) < _REACH, axis=0)], _CENTRE, halvings)
        inner = np.sum(w * g(c * z1[some, None] + s * z), axis=-1)
        total += float(np.sum(w1[some] * f(z1[some]) * inner))
    return total


def blurred(period: float) -> float:
    """The scale s beyond which s z modulo the period is uniform to rounding error."""
    return 9.0 * period / (2.0 * math.pi)


def wave_pair_expectation(
    f: Function, period: float, c: float, scales: tuple[float, float]
) -> float:
    r"""E[f(s₁ z₁) f(s₂ z₂)] for a periodic f, by its Fourier series.

    $E[e^{i(u z_1 + v z_2)}] = e^{-(u^2 + v^2 + 2cuv)/2}$; for scales beyond the period this needs a
    few terms, where panels would have to follow every wave.
    """
    count = 2048
    waves = np.fft.fft(f(np.linspace(0.0, period, count, endpoint=False))) / count
    number = np.fft.fftfreq(count, 1.0 / count)
    heard = np.abs(waves) > 1e-17 * np.max(np.abs(waves))
    u, v = (2.0 * math.pi / period * s * number[heard] for s in scales)
    # u² + v² + 2cuv, written so that it does not cancel for c near -1 or 1
    exponent = -0.5 * ((u[:, None] + c * v) ** 2 + (1.0 - c) * (1.0 + c) * v**2)
    return float(np.real(waves[heard] @ np.exp(exponent) @ waves[heard]))


def halvings_for(f: Function, ends: Array) -> int:
    """How often the panels must be halved to resolve f."""
    # Neither a square nor the parity of f hides a kink from this.
    return _converge(lambda z: f(z) * (1.0 + 0.5 * z + f(z)), ends)[1]


def _smoothed(ends: Array, s: float) -> Array:
    """Panel ends for a function with the given `ends` after smoothing over a width `s`."""
    if s > 0.75:  # as smooth as the density itself
        return ends
    layer = np.array([-8.0, -3.0, -1.0, 0.0, 1.0, 3.0, 8.0])
    centres = np.unique(np.round(ends[np.abs(ends) < 2.0 * _REACH] / s))
    return s * (centres[:, None] + layer).ravel()
