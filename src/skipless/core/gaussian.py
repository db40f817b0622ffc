r"""Expectations under z ~ N(0, 1) and under correlated pairs, exact to rounding error.

Every integral is a sum of 12-point Gauss-Legendre panels. Panels end wherever the integrand has a
kink, and crowd around the origin of φ, where its curvature lives; so each panel sees an analytic
function whose nearest singularity is at least a panel away, and converges geometrically.

The moments of ψ(z) = φ(αz + β) that decide every condition of DKS and TAT.

For a deep network ψ is nearly linear, and the conditions compare numbers that differ by a part in a
million. So ψ is split as $\psi(z) = m + a z + u(z)$ and $\psi'(z) = a + v(z)$, with
$E[u] = E[uz] = E[v] = 0$, and each small difference is computed from the small parts $u$ and $v$,
where nothing cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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
    halvings = max(halvings_needed(f, f_ends), halvings_needed(g, g_ends))
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


def uniform_phase_scale(period: float) -> float:
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


def halvings_needed(f: Function, ends: Array) -> int:
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


# Nodes beyond |z| = 9 weigh less than rounding error for any φ that grows like a polynomial.
_MOMENT_EDGES = np.arange(-9.0, 9.1, 1.5)
_MOMENT_OUTWARD = 0.75 * 2.5 ** np.arange(20)
_MOMENT_ORIGIN = np.concatenate([-_MOMENT_OUTWARD[::-1], [0.0], _MOMENT_OUTWARD])


@dataclass(frozen=True)
class Moments:
    r"""Moments of ψ, and what they say of γ(ψ + δ); arrays over the pairs (α, β) asked for.

    | field       | moment                       | condition                           |
    |-------------|------------------------------|-------------------------------------|
    | `mean`      | $m = E[\psi]$                | $C(0) = 0$ where $\delta = -m$      |
    | `variance`  | $V = E[\psi^2] - m^2$        | $Q(1) = \gamma^2 (V+(m+\delta)^2)$  |
    | `excess`    | $G = E[\psi'^2] - V \ge 0$   | $C'(1) = \gamma^2 (V+G)$            |
    | `imbalance` | $P = E[(\psi-m)\psi'z] - V$  | $Q'(1) = \gamma^2 (V+P+(m+\delta)T)$ |
    | `tilt`      | $T = E[\psi' z]$             |                                     |
    | `bending`   | $B = E[\psi''^2]$            | $C''(1) = \gamma^2 B$               |
    """

    mean: Array
    variance: Array
    excess: Array
    imbalance: Array
    tilt: Array
    bending: Array

    def conditions(self, gamma: float, delta: float) -> dict[str, float]:
        """What γ(ψ + δ) makes of every condition, for moments of a single pair (α, β).

        C maps are normalised by Q(1), which keeps C'(1) - 1 accurate: a deep network raises C'(1)
        to the power of its depth.
        """
        mean = float(self.mean) + delta
        square = float(self.variance) + mean**2
        return {
            "Q(1)": gamma**2 * square,
            "Q'(1)": gamma**2 * float(self.variance + self.imbalance + mean * self.tilt),
            "C(0)": mean**2 / square,
            "C'(1)": 1.0 + (float(self.excess) - mean**2) / square,
            "C''(1)": float(self.bending) / square,
        }


def moments(activation: Activation, alpha: Array, beta: Array) -> Moments:
    """The moments of φ(αz + β), for α > 0 and β of one shape."""
    z, w = shifted_rule(activation, alpha, beta)
    return _from_nodes(activation, alpha, beta, z, w)


def tanh_sinh_moments(activation: Activation, alpha: float, beta: float) -> Moments:
    """The same moments by tanh-sinh quadrature, which shares no node with `moments`."""
    ends = np.sort((np.asarray([0.0, *activation.kinks]) - beta) / alpha)
    bounds = np.concatenate([[-12.0], ends[np.abs(ends) < 12.0], [12.0]])
    t = np.arange(-3.2, 3.2, 2.0**-6)
    inner = 0.5 * math.pi * np.sinh(t)
    x, weight = np.tanh(inner), 2.0**-6 * 0.5 * math.pi * np.cosh(t) / np.cosh(inner) ** 2
    half, middle = 0.5 * np.diff(bounds), 0.5 * (bounds[1:] + bounds[:-1])
    z = (middle[:, None] + half[:, None] * x).ravel()
    w = (half[:, None] * weight).ravel() * density(z)
    return _from_nodes(activation, np.asarray(alpha), np.asarray(beta), z, w)


def shifted_rule(activation: Activation, alpha: Array, beta: Array) -> tuple[Array, Array]:
    """Quadrature nodes and weights for φ(αz + β), a row for each pair (α, β)."""
    marks = np.concatenate([_MOMENT_ORIGIN, np.asarray(activation.kinks, float)])
    if activation.period is not None:
        step = 0.5 * activation.period
        span = 9.0 * min(float(np.max(alpha)), uniform_phase_scale(activation.period))
        count = math.ceil((span + float(np.max(np.abs(beta)))) / step)
        marks = np.concatenate([marks, step * np.arange(-count, count + 1)])
    ends = (marks - beta[..., None]) / alpha[..., None]
    near = np.any(np.abs(ends) < 9.0, axis=tuple(range(ends.ndim - 1)))
    return rule(ends[..., near], _MOMENT_EDGES)


def _from_nodes(activation: Activation, alpha: Array, beta: Array, z: Array, w: Array) -> Moments:
    alpha, beta = alpha[..., None], beta[..., None]
    x = alpha * z + beta
    with np.errstate(all="ignore"):  # far from the origin φ″ may underflow, or a user's φ overflow
        psi, slope = activation.value(x), alpha * activation.slope(x)
        curvature = alpha * alpha * activation.curvature(x)
    mean, a = _dot(w, psi), _dot(w, slope)
    psi = psi - mean[..., None]
    along = _dot(w * z, psi)
    u = psi - along[..., None] * z
    v = slope - a[..., None]
    uu, wvz = _dot(w, u * u), w * v * z
    return Moments(
        mean=mean,
        variance=along * along + uu,
        # E[ψ′²] - V: by Stein's lemma E[ψ′] = E[ψz], so the large parts a² are the same number.
        excess=_dot(w * v, v) - uu,
        # E[v] = 0, so E[v z²] may be taken as E[v (z² - 1)].
        imbalance=a * _dot(w * v, z * z - 1.0) + _dot(wvz, u) - uu,
        tilt=np.sum(wvz, axis=-1),
        bending=_dot(w, curvature * curvature),
    )


def _dot(a: Array, b: Array) -> Array:
    return np.einsum("...i,...i->...", a, b)


def shaped_q_map(
    activation: Activation, parameters: tuple[float, float, float, float]
) -> Callable[[Array], Array]:
    """Q map of φ̂(x) = γ(φ(αx + β) + δ), vectorised over q > 0; parameters are (α, β, γ, δ)."""
    alpha, beta, gamma, delta = parameters

    def q_map(q: Array) -> Array:
        scale = alpha * np.sqrt(q)
        if activation.period is not None:
            scale = np.minimum(scale, uniform_phase_scale(activation.period))
        z, w = shifted_rule(activation, scale, np.full_like(scale, beta))
        shaped = gamma * (activation.value(scale[:, None] * z + beta) + delta)
        return _dot(w, shaped * shaped)

    return q_map


def distortion(activation: Activation, parameters: tuple[float, float, float, float]) -> float:
    r"""How far the Q map of φ̂ bends away from the identity above q = 1.

    $$\int_1^\infty \left|\log\frac{Q(q)}{q}\right| q^{-3/2}\, dq$$

    $Q(1) = Q'(1) = 1$ holds for all solutions, and those with α going to 0 in deep networks even
    share $Q''(1)$ there; what sets them apart is how far q may grow before Q stops following it.
    The weight $q^{-3/2}$ is one for which that shows at every depth.
    """
    u = np.arange(0.0, 30.0, 0.5)
    q = np.exp(u)
    bend = np.abs(np.log(np.maximum(shaped_q_map(activation, parameters)(q), 1e-300)) - u)
    return float(np.sum(bend * np.exp(-0.5 * u)) * 0.5)
