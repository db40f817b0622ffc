r"""Expectations under z ~ N(0, 1) and under correlated pairs, exact to rounding error.

Every integral is a sum of 12-point Gauss-Legendre panels. Panels end wherever the integrand has a
kink, and are narrow around the origin of φ, where it bends most. So each panel sees an analytic
function whose nearest singularity is at least a panel away, and converges geometrically.

`Moments` are those of ψ(z) = φ(αz + β) that decide every condition of DKS and TAT. In a deep
network ψ is nearly linear, and the conditions compare numbers that differ by a part in a million.
So ψ is split as $\psi(z) = m + a z + u(z)$ and $\psi'(z) = a + v(z)$ with
$E[u] = E[uz] = E[v] = 0$, and small differences are computed from the small parts $u$ and $v$,
where nothing cancels.
"""

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np

from .activations import Activation, Array, Function

_GAUSS_X, _GAUSS_W = (np.asarray(a, float) for a in np.polynomial.legendre.leggauss(12))

# Beyond |z| = 38 the density underflows; up to 12 the panels are as wide as 12 nodes can follow it.
_REACH = 12.0
_CENTRE = np.arange(-_REACH, _REACH + 0.1, 1.5)
_EDGES = np.concatenate([[-38.0, -28.0, -20.0, -15.0], _CENTRE, [15.0, 20.0, 28.0, 38.0]])
# Moments are taken at thousands of pairs (α, β), of functions that grow like polynomials: for those
# nodes beyond |z| = 9 weigh less than rounding error.
_MOMENT_REACH = 9.0
_MOMENT_EDGES = _CENTRE[np.abs(_CENTRE) <= _MOMENT_REACH]
_BLOCK = 40  # rows at a time, so that their arrays fit into the cache
# The same panels moved, to check convergence: a kink just beside the end of a panel, which no node
# sees, lies in the middle of a moved panel.
_MOVED_EDGES = np.concatenate([[_EDGES[0]], _EDGES[1:-1] + 0.6, [_EDGES[-1]]])

# Panel ends in units of φ's own argument, in a geometric progression away from the origin.
_OUTWARD = 0.75 * 2.5 ** np.arange(20)
_ORIGIN = np.concatenate([-_OUTWARD[::-1], [0.0], _OUTWARD])
_MOST_HALF_WAVES = 2000

_CONVERGED = 1e-14
_MOST_HALVINGS = 9


class QuadratureError(ArithmeticError):
    """An expectation does not converge: the integrand has undeclared kinks or waves."""


def density(z: Array) -> Array:
    """Density of N(0, 1)."""
    p = np.multiply(z, z)
    p *= -0.5
    p = np.exp(p)
    p *= 1.0 / math.sqrt(2.0 * math.pi)
    return p


def uniform_phase_scale(period: float) -> float:
    """The scale s beyond which s z modulo the period is uniform to rounding error."""
    return 9.0 * period / (2.0 * math.pi)


def panel_ends(
    activation: Activation,
    scale: float | Array,
    shift: float | Array = 0.0,
    *,
    reach: float = float(_EDGES[-1]),
    most_scale: float = math.inf,
) -> Array:
    """Points |z| < `reach` at which panels for φ(scale · z + shift) should end.

    For arrays, the last axis of the result holds the ends for each pair (scale, shift). Panels
    follow the waves of a periodic φ up to a scale of `most_scale`.
    """
    centre, width = activation.bend
    marks = np.concatenate([centre + width * _ORIGIN, np.asarray(activation.kinks, float)])
    if activation.period is not None:
        step = 0.5 * activation.period
        widest = min(float(np.max(np.abs(scale))), most_scale)
        span = min(reach, _REACH) * widest + float(np.max(np.abs(shift)))
        count = min(math.ceil(span / step), _MOST_HALF_WAVES)
        marks = np.concatenate([marks, step * np.arange(-count, count + 1.0)])
    ends = (marks - np.asarray(shift)[..., None]) / np.asarray(scale)[..., None]
    near = (np.abs(ends) < reach).any(axis=tuple(range(ends.ndim - 1)))
    return ends[..., near]


def rule(ends: Array, edges: Array = _CENTRE, halvings: int = 0) -> tuple[Array, Array]:
    """Nodes and Gaussian weights of the composite rule with panels that end at `edges` and `ends`.

    `ends` may have leading axes: each row of its last axis gives its own rule.

    >>> z, w = rule(np.array([0.3]))
    >>> bool(abs(w.sum() - 1) < 1e-14 and abs(w @ z**4 - 3) < 1e-13)
    True
    """
    fixed = np.broadcast_to(edges, (*ends.shape[:-1], edges.size))
    inside = (edges[0] < ends) & (ends < edges[-1])
    # Ends outside make panels of no width: all of them at the right, where most can be dropped.
    bounds = np.concatenate([fixed, np.where(inside, ends, edges[-1])], axis=-1)
    bounds.sort(axis=-1)
    bounds = bounds[..., : edges.size + int(inside.sum(axis=-1).max(initial=0))]
    if halvings:
        parts = np.linspace(0.0, 1.0, 2**halvings, endpoint=False)
        inner = bounds[..., :-1, None] + np.diff(bounds)[..., None] * parts
        inner = inner.reshape(*bounds.shape[:-1], -1)
        bounds = np.concatenate([inner, bounds[..., -1:]], axis=-1)
    half = 0.5 * np.diff(bounds)
    middle = 0.5 * (bounds[..., 1:] + bounds[..., :-1])
    z = half[..., None] * _GAUSS_X
    z += middle[..., None]
    w = density(z)
    w *= half[..., None]
    w *= _GAUSS_W
    return z.reshape(*half.shape[:-1], -1), w.reshape(*half.shape[:-1], -1)


def _converge(f: Function, ends: Array) -> tuple[float, int]:
    """E[f(z)], and how often the panels must be halved until it converges."""
    previous = math.nan
    for halvings in range(_MOST_HALVINGS):
        z, w = rule(ends, _MOVED_EDGES if halvings % 2 else _EDGES, halvings)
        terms = w * f(z)
        # A node rounded at z perturbs the density by about z² times as much.
        total, size = float(np.sum(terms)), float(np.sum(np.abs(terms) * (1.0 + 0.1 * z * z)))
        if abs(total - previous) <= _CONVERGED * size:
            return total, halvings - 1
        previous = total
    raise QuadratureError(
        f"E[f(z)] did not converge after {_MOST_HALVINGS} refinements. List all kinks of the "
        "activation, Activation(..., kinks=...), and its period if it oscillates."
    )


def expectation(f: Function, ends: Array | None = None) -> float:
    """E[f(z)] for z ~ N(0, 1), where f is smooth except at `ends`.

    >>> abs(expectation(np.abs, np.array([0.0])) - math.sqrt(2 / math.pi)) < 1e-14
    True
    """
    return _converge(f, np.zeros(0) if ends is None else ends)[0]


def pair_expectation(
    f: Function, g: Function, c: float, f_ends: Array, g_ends: Array, halvings: int | None = None
) -> float:
    """E[f(z₁) g(z₂)] for standard normal z₁, z₂ with correlation `c`.

    For |c| < 1, z₂ = c z₁ + √(1 - c²) z with z independent of z₁: the inner integral over z is a
    smooth function of z₁ that bends within √(1 - c²) of each end of g, where the outer panels are
    narrow. `halvings` is the larger of `halvings_needed` for f and g, if it is known.

    >>> square = lambda z: z * z
    >>> round(pair_expectation(square, square, 0.5, np.zeros(0), np.zeros(0)), 12)  # 1 + 2 c²
    1.5
    """
    if abs(c) == 1.0:
        return expectation(lambda z: f(z) * g(c * z), np.concatenate([f_ends, c * g_ends]))
    if halvings is None:
        halvings = max(halvings_needed(f, f_ends), halvings_needed(g, g_ends))
    s = math.sqrt((1.0 - c) * (1.0 + c))
    outer_ends = f_ends
    if abs(c) > 0.05:
        outer_ends = np.concatenate([f_ends, _ends_after_smoothing(g_ends, s) / c])
    z1, w1 = rule(outer_ends[np.abs(outer_ends) < _REACH], _CENTRE, halvings)
    total = 0.0
    for some in np.array_split(np.arange(z1.size), 1 + z1.size * 2**halvings // _BLOCK):
        ends = (g_ends - c * z1[some, None]) / s
        z, w = rule(ends[:, np.any(np.abs(ends) < _REACH, axis=0)], _CENTRE, halvings)
        inner = np.sum(w * g(c * z1[some, None] + s * z), axis=-1)
        total += float(np.sum(w1[some] * f(z1[some]) * inner))
    return total


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
    significant = np.abs(waves) > 1e-17 * np.max(np.abs(waves))
    u, v = (2.0 * math.pi / period * s * number[significant] for s in scales)
    # u² + v² + 2cuv, written so that it does not cancel for c near -1 or 1
    exponent = -0.5 * ((u[:, None] + c * v) ** 2 + (1.0 - c) * (1.0 + c) * v**2)
    return float(np.real(waves[significant] @ np.exp(exponent) @ waves[significant]))


def halvings_needed(f: Function, ends: Array) -> int:
    """How often the panels must be halved to resolve f."""
    # Neither squaring nor the parity of f hides a kink from this function.
    return _converge(lambda z: f(z) * (1.0 + 0.5 * z + f(z)), ends)[1]


def _ends_after_smoothing(ends: Array, s: float) -> Array:
    """Panel ends for a function with the given `ends` after smoothing over a width `s`."""
    if s > 0.75:  # as smooth as the density itself
        return ends
    layer = np.array([-8.0, -3.0, -1.0, 0.0, 1.0, 3.0, 8.0])
    centres = np.unique(np.round(ends[np.abs(ends) < 2.0 * _REACH] / s))
    return s * (centres[:, None] + layer).ravel()


@dataclass(frozen=True)
class Moments:
    r"""Moments of ψ, and what they say about γ(ψ + δ); arrays over pairs (α, β).

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
        """The value of every condition for γ(ψ + δ), from the moments of a single pair (α, β)."""
        # Dividing by Q(1) keeps C'(1) - 1 accurate, which deep networks raise to a high power.
        mean = float(self.mean) + delta
        square = float(self.variance) + mean**2
        return {
            "Q(1)": gamma**2 * square,
            "Q'(1)": gamma**2 * float(self.variance + self.imbalance + mean * self.tilt),
            "C(0)": mean**2 / square,
            "C'(1)": 1.0 + (float(self.excess) - mean**2) / square,
            "C''(1)": float(self.bending) / square,
        }


def moments(activation: Activation, alpha: Array, beta: Array, *, bending: bool = True) -> Moments:
    """The moments of φ(αz + β), for α > 0 and β of one shape; NaN for `bending` if left out."""
    if alpha.ndim == 1 and alpha.size > _BLOCK:
        count = math.ceil(alpha.size / _BLOCK)
        blocks = zip(np.array_split(alpha, count), np.array_split(beta, count), strict=True)
        parts = [moments(activation, a, b, bending=bending) for a, b in blocks]
        every = zip(*(astuple(part) for part in parts), strict=True)
        return Moments(*(np.concatenate(each) for each in every))
    z, w = _moment_rule(activation, alpha, beta)
    return _moments_at_nodes(activation, alpha, beta, z, w, bending=bending)


def far_share(activation: Activation, alpha: Array, beta: Array) -> Array:
    """The share of Var φ′(αz + β) that comes from |z| > 8, close to where `moments` ends."""
    z, w = _moment_rule(activation, alpha, beta)
    with np.errstate(all="ignore"):
        v = activation.slope(alpha[:, None] * z + beta[:, None])
        bend = w * (v - _dot(w, v)[:, None]) ** 2
        return np.where(np.abs(z) > 8.0, bend, 0.0).sum(axis=-1) / bend.sum(axis=-1)


def tanh_sinh_moments(activation: Activation, alpha: float, beta: float) -> Moments:
    """The same moments by tanh-sinh quadrature, which shares no nodes with `moments`."""
    ends = np.sort((np.asarray([0.0, *activation.kinks]) - beta) / alpha)
    bounds = np.concatenate([[-12.0], ends[np.abs(ends) < 12.0], [12.0]])
    t = np.arange(-3.2, 3.2, 2.0**-6)
    inner = 0.5 * math.pi * np.sinh(t)
    x, weight = np.tanh(inner), 2.0**-6 * 0.5 * math.pi * np.cosh(t) / np.cosh(inner) ** 2
    half, middle = 0.5 * np.diff(bounds), 0.5 * (bounds[1:] + bounds[:-1])
    z = (middle[:, None] + half[:, None] * x).ravel()
    w = (half[:, None] * weight).ravel() * density(z)
    return _moments_at_nodes(activation, np.asarray(alpha), np.asarray(beta), z, w)


def _moment_rule(activation: Activation, alpha: Array, beta: Array) -> tuple[Array, Array]:
    """Quadrature nodes and weights for φ(αz + β), a row for each pair (α, β)."""
    period = activation.period
    most_scale = math.inf if period is None else uniform_phase_scale(period)
    ends = panel_ends(activation, alpha, beta, reach=_MOMENT_REACH, most_scale=most_scale)
    return rule(ends, _MOMENT_EDGES)


def _moments_at_nodes(
    activation: Activation, alpha: Array, beta: Array, z: Array, w: Array, *, bending: bool = True
) -> Moments:
    alpha, beta = alpha[..., None], beta[..., None]
    x = alpha * z + beta
    with np.errstate(all="ignore"):  # far from the origin φ″ may underflow, or a user's φ overflow
        psi, slope = activation.value(x), alpha * activation.slope(x)
        curvature = alpha * alpha * activation.curvature(x) if bending else None
    mean, a = _dot(w, psi), _dot(w, slope)
    psi = psi - mean[..., None]
    along = _dot(w * z, psi)
    u = psi - along[..., None] * z
    v = slope - a[..., None]
    wv = w * v
    wvz = wv * z
    uu = _dot(w, u * u)
    return Moments(
        mean=mean,
        variance=along * along + uu,
        # E[ψ′²] - V: by Stein's lemma E[ψ′] = E[ψz], so the large parts a² are the same number.
        excess=_dot(wv, v) - uu,
        # E[v] = 0, so E[v z²] may be taken as E[v (z² - 1)].
        imbalance=a * _dot(wv, z * z - 1.0) + _dot(wvz, u) - uu,
        tilt=wvz.sum(axis=-1),
        bending=np.full_like(mean, np.nan) if curvature is None else _dot(w, curvature**2),
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
        z, w = _moment_rule(activation, scale, np.full_like(scale, beta))
        shaped = gamma * (activation.value(scale[:, None] * z + beta) + delta)
        return _dot(w, shaped * shaped)

    return q_map


def distortion(activation: Activation, parameters: tuple[float, float, float, float]) -> float:
    r"""How far the Q map of φ̂ bends away from the identity above q = 1.

    $$\int_1^\infty \left|\log\frac{Q(q)}{q}\right| q^{-3/2}\, dq$$

    All solutions have $Q(1) = Q'(1) = 1$, and those with α → 0 in deep networks even share
    $Q''(1)$; they differ in how far q can grow before Q stops following it. With the weight
    $q^{-3/2}$ the difference shows at every depth.
    """
    u = np.arange(0.0, 30.0, 0.5)
    q = np.exp(u)
    bend = np.abs(np.log(np.maximum(shaped_q_map(activation, parameters)(q), 1e-300)) - u)
    return float(np.sum(bend * np.exp(-0.5 * u)) * 0.5)
