r"""Local Q and C maps of an activation function: values, slopes, curvatures, closed forms.

For pre-activations with second moments $q_1, q_2$ and correlation $c$ (equations 4 and 5),

$$Q(q) = E[\phi(\sqrt q z)^2], \qquad
  C(c, q_1, q_2) = \frac{E[\phi(\sqrt{q_1} z_1)\,\phi(\sqrt{q_2} z_2)]}{\sqrt{Q(q_1) Q(q_2)}}.$$
"""

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev, polynomial

from .activations import Activation, Array, Function
from .gaussian import (
    density,
    expectation,
    halvings_needed,
    pair_expectation,
    panel_ends,
    rule,
    uniform_phase_scale,
    wave_pair_expectation,
)

Numbers = float | Array


def q_map(activation: Activation, q: float) -> float:
    r"""Local Q map, $Q(q) = E[\phi(\sqrt q z)^2]$ (equation 4).

    >>> from skipless.core.activations import activation
    >>> round(q_map(activation("relu"), 3.0), 12)  # q / 2
    1.5
    """
    s = _effective_scale(activation, q)
    return expectation(lambda z: activation.value(s * z) ** 2, panel_ends(activation, s))


def q_map_slope(activation: Activation, q: float) -> float:
    r"""Slope of the local Q map, $Q'(q) = E[\phi(\sqrt q z)\,\phi'(\sqrt q z)\,z] / \sqrt q$."""
    s = _effective_scale(activation, q)
    growth: Function = lambda z: activation.value(s * z) * activation.slope(s * z) * z
    return expectation(growth, panel_ends(activation, s)) / math.sqrt(q)


def c_map(activation: Activation, c: Numbers, q1: float = 1.0, q2: float | None = None) -> Array:
    r"""Local C map $C(c, q_1, q_2)$ (equation 5) at every `c` in [-1, 1]; `q2` defaults to `q1`.

    >>> from skipless.core.activations import activation
    >>> round(float(c_map(activation("relu"), 0.0)), 12) == round(1 / math.pi, 12)
    True
    """
    return _cosine(_correlation(activation, activation.value, c, q1, q2))


def c_map_slope(
    activation: Activation, c: Numbers, q1: float = 1.0, q2: float | None = None
) -> Array:
    r"""First derivative of the local C map in `c` (appendix A.3).

    $$C'(c, q_1, q_2) = \sqrt{\frac{q_1 q_2}{Q(q_1) Q(q_2)}}\;
      E[\phi'(\sqrt{q_1} z_1)\,\phi'(\sqrt{q_2} z_2)]$$
    """
    q2 = q1 if q2 is None else q2
    values = _correlation(activation, activation.slope, c, q1, q2)
    return math.sqrt(q1 * q2) * values


def c_map_curvature(
    activation: Activation, c: Numbers, q1: float = 1.0, q2: float | None = None
) -> Array:
    r"""Second derivative of the local C map in `c` (appendix A.3); infinite at 1 if φ′ jumps.

    Where φ′ jumps by $J_k$ at $k$, φ″ is its regular part plus $\sum_k J_k\,\delta_k$; the deltas
    contribute conditional expectations and, among themselves, the bivariate density.

    >>> from skipless.core.activations import activation
    >>> float(c_map_curvature(activation("relu"), 1.0))
    inf
    """
    q2 = q1 if q2 is None else q2
    regular = _correlation(activation, activation.curvature, c, q1, q2)
    jumps = [(k, j) for k, j in zip(activation.kinks, activation.slope_jumps, strict=True) if j]
    if jumps:
        norm = math.sqrt(q_map(activation, q1) * q_map(activation, q2))
        singular = [_jump_terms(activation, jumps, t, q1, q2) for t in np.ravel(np.asarray(c))]
        regular = regular + np.reshape(np.asarray(singular), np.shape(c)) / norm
    return q1 * q2 * regular


def taylor_coefficients(activation: Activation, count: int, q: float = 1.0) -> Array:
    r"""The first `count` coefficients $b_n \ge 0$ of $C(c) = \sum_n b_n c^n$ (appendix A.4).

    $b_n = E[\phi(\sqrt q z)\,h_n(z)]^2 / Q(q)$ with the orthonormal Hermite polynomials $h_n$,
    which needs no derivative of φ. They sum to one.

    >>> from skipless.core.activations import activation
    >>> [round(float(b), 6) for b in taylor_coefficients(activation("square"), 4)]  # (1 + 2c²)/3
    [0.333333, 0.0, 0.666667, 0.0]
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    _require_positive(q)
    s = math.sqrt(q)
    # h_n oscillates with a wave length of about 2π / √n: half a wave per panel.
    edges = np.linspace(-18.0, 18.0, 2 + math.ceil(36.0 * max(1.0, math.sqrt(count)) / math.pi))
    ends = panel_ends(activation, s)
    z, w = rule(ends, edges, halvings_needed(lambda z: activation.value(s * z), ends))
    weighted = w * activation.value(s * z)
    previous, current, a = np.zeros_like(z), np.ones_like(z), np.empty(count)
    for n in range(count):
        a[n] = weighted @ current
        following = (z * current - math.sqrt(n) * previous) / math.sqrt(n + 1)
        previous, current = current, following
    return a * a / q_map(activation, q)


def leaky_relu_c_map(c: float, alpha: float) -> float:
    r"""C map of leaky ReLU with negative slope `alpha`, scaled so that Q(q) = q (equation 9).

    $$C_\alpha(c) = c + \frac{(1-\alpha)^2}{\pi\,(1+\alpha^2)}
      \left(\sqrt{1-c^2} - c\,\arccos c\right)$$

    `alpha = 1` is linear, `alpha = 0` is ReLU:

    >>> leaky_relu_c_map(0.0, alpha=1.0)
    0.0
    >>> round(leaky_relu_c_map(0.0, alpha=0.0), 6)  # 1 / pi
    0.31831
    """
    require_cosines(c)
    kappa = _kappa(alpha)
    # c + g(c)/π = g(-c)/π: for c < 0 this form does not cancel.
    linear = (1.0 - kappa) * c if c < 0.0 else c
    # Rounding may exceed 1, also at c = -1 if alpha is near -1.
    return min(1.0, linear + kappa * arc_gap(abs(c)) / math.pi)


def leaky_relu_c_map_slope(c: float, alpha: float) -> float:
    r"""Slope of `leaky_relu_c_map`: $1 - \frac{(1-\alpha)^2}{\pi(1+\alpha^2)} \arccos c$."""
    require_cosines(c)
    return 1.0 - _kappa(alpha) * math.acos(c) / math.pi


def leaky_relu_c_map_curvature(c: float, alpha: float) -> float:
    r"""Curvature of `leaky_relu_c_map`: $\frac{(1-\alpha)^2}{\pi(1+\alpha^2)\sqrt{1-c^2}}$."""
    require_cosines(c)
    if (kappa := _kappa(alpha)) == 0.0:
        return 0.0
    return math.inf if abs(c) == 1.0 else kappa / (math.pi * math.sqrt((1.0 - c) * (1.0 + c)))


def erf_c_map(c: float, q1: float = 1.0, q2: float | None = None) -> float:
    r"""C map of erf (Williams, 1997), with $\rho(q) = \frac{2q}{1+2q}$.

    $$C = \arcsin(c\sqrt{\rho_1\rho_2}) / \sqrt{\arcsin\rho_1\,\arcsin\rho_2}$$

    >>> erf_c_map(1.0, q1=2.0)
    1.0
    """
    require_cosines(c)
    qs = (q1, q1 if q2 is None else q2)
    for q in qs:
        _require_positive(q)
    r1, r2 = (2.0 * q / (1.0 + 2.0 * q) for q in qs)
    return math.asin(c * math.sqrt(r1 * r2)) / math.sqrt(math.asin(r1) * math.asin(r2))


def arc_gap(c: float) -> float:
    r"""$g(c) = \sqrt{1-c^2} - c\,\arccos c$, which is $\sin\theta - \theta\cos\theta$.

    Here $c = \cos\theta$. It is positive on (-1, 1), falls to zero at 1 as $\theta^3/3$, and drives
    every ReLU-like map.
    """
    return sine_gap(math.acos(c))


def sine_gap(theta: float) -> float:
    r"""$\sin\theta - \theta\cos\theta$, with relative accuracy down to $\theta = 0$."""
    if theta > 0.25:
        return math.sin(theta) - theta * math.cos(theta)
    t = theta * theta  # near 1 the difference cancels; its series does not
    return theta * t * (1 / 3 - t * (1 / 30 - t * (1 / 840 - t * (1 / 45360 - t / 3991680))))


def tabulated_c_map(activation: Activation, q: float = 1.0) -> Callable[[npt.ArrayLike], Array]:
    """The local C map at q₁ = q₂ = `q` as a function that takes microseconds per call.

    For the ReLU family it is the closed form; for a smooth φ the Taylor polynomial, if the omitted
    coefficients sum to rounding error. Else it is a Chebyshev series in θ = arccos c, in which C is
    smooth even where φ has kinks, with twice the terms until the last quarter is rounding error.
    """
    _require_positive(q)
    if activation.degree == 1.0:
        kappa = _kappa(*activation.slope(np.array([-1.0, 1.0])).tolist())

        def rectified(c: npt.ArrayLike) -> Array:
            cosines = _cosine(c)
            theta = np.arccos(cosines)
            return _cosine(cosines + kappa / math.pi * (np.sin(theta) - theta * cosines))

        return rectified
    taylor = taylor_coefficients(activation, 300, q)
    if abs(1.0 - np.sum(taylor)) < 1e-13:
        taylor = np.trim_zeros(np.where(taylor < 1e-18, 0.0, taylor), "b")
        return lambda c: _cosine(polynomial.polyval(np.asarray(c, float), taylor))

    def at_angle(t: Array) -> Array:
        return c_map(activation, np.cos(0.5 * math.pi * (t + 1.0)), q)

    series: Array = taylor
    for degree in (16, 32, 64, 128, 256):
        # numpy's stub lets the function return single numbers only
        series = np.asarray(chebyshev.chebinterpolate(at_angle, degree - 1), float)  # pyright: ignore
        if np.max(np.abs(series[-degree // 4 :])) < 1e-13:
            break

    def mapped(c: npt.ArrayLike) -> Array:
        t = 2.0 / math.pi * np.arccos(np.clip(np.asarray(c, float), -1.0, 1.0)) - 1.0
        return _cosine(chebyshev.chebval(t, series))

    return mapped


def _effective_scale(activation: Activation, q: float) -> float:
    """√q; for a periodic φ, no more than changes its expectations."""
    _require_positive(q)
    period = activation.period
    return math.sqrt(q) if period is None else min(math.sqrt(q), uniform_phase_scale(period))


def _cosine(values: npt.ArrayLike) -> Array:
    """The values clipped to [-1, 1], which rounding exceeds."""
    return np.clip(np.asarray(values, np.float64), -1.0, 1.0)


def _correlation(
    activation: Activation, f: Function, c: Numbers, q1: float, q2: float | None
) -> Array:
    """E[f(√q₁ z₁) f(√q₂ z₂)] / √(Q(q₁) Q(q₂)) at every `c`."""
    q2 = q1 if q2 is None else q2
    for q in (q1, q2):
        _require_positive(q)
    each = np.asarray(c, float)
    require_cosines(each)
    s1, s2 = math.sqrt(q1), math.sqrt(q2)
    ends1, ends2 = panel_ends(activation, s1), panel_ends(activation, s2)
    norm = math.sqrt(q_map(activation, q1) * q_map(activation, q2))
    if norm == 0.0:
        raise ValueError(
            f"{activation.name} vanishes at q = ({q1:g}, {q2:g}), and a zero vector has no cosine: "
            "use a larger q."
        )
    cosines: list[float] = each.ravel().tolist()
    if (period := activation.period) is not None and max(s1, s2) > 0.5 * period:
        values = [wave_pair_expectation(f, period, t, (s1, s2)) for t in cosines]
    else:
        first: Function = lambda z: f(s1 * z)
        second: Function = lambda z: f(s2 * z)
        halvings = halvings_needed(first, ends1)
        if s2 != s1:
            halvings = max(halvings, halvings_needed(second, ends2))
        values = [pair_expectation(first, second, t, ends1, ends2, halvings) for t in cosines]
    return np.reshape(np.asarray(values), each.shape) / norm


def _jump_terms(
    activation: Activation, jumps: list[tuple[float, float]], c: float, q1: float, q2: float
) -> float:
    """The part of E[φ″(√q₁ z₁) φ″(√q₂ z₂)] that comes from the deltas of φ″."""
    s1, s2, s = math.sqrt(q1), math.sqrt(q2), math.sqrt((1.0 - c) * (1.0 + c))
    total = 0.0
    for (sx, sy), (k, jump) in product(((s1, s2), (s2, s1)), jumps):  # given x = k, y is random
        mean, spread = c * k / sx * sy, s * sy
        if spread > 0.0:
            around: Function = lambda z, m=mean, w=spread: activation.curvature(m + w * z)
            smooth = expectation(around, panel_ends(activation, spread, mean))
        else:
            smooth = float(activation.curvature(np.array([mean]))[0])
        total += jump * smooth * float(density(np.array(k / sx))) / sx
    for (k, jump_k), (m, jump_m) in product(jumps, jumps):
        total += jump_k * jump_m * _pair_density(k / s1, m / s2, c) / (s1 * s2)
    return total


def _pair_density(a: float, b: float, c: float) -> float:
    """Density at (a, b) of standard normals with correlation `c`; degenerate for |c| = 1."""
    if abs(c) == 1.0:
        return math.inf if a == c * b else 0.0
    s2 = (1.0 - c) * (1.0 + c)
    apart = (a - b) + (1.0 - c) * b if c > 0.0 else (a + b) - (1.0 + c) * b  # a - c b
    return math.exp(-0.5 * (apart * apart / s2 + b * b)) / (2.0 * math.pi * math.sqrt(s2))


def require_cosines(c: Numbers) -> None:
    if isinstance(c, float) and -1.0 <= c <= 1.0:  # scalars are checked in hot loops
        return
    for bad in np.extract(~(np.abs(c) <= 1.0), c).tolist():
        raise ValueError(f"c must be in [-1, 1], got {bad:g}")


def _kappa(low: float, high: float = 1.0) -> float:
    """How far a leaky ReLU with these slopes is from linear: 0 for x, 1 for ReLU, 2 for |x|."""
    return (high - low) ** 2 / (high * high + low * low)


def _require_positive(q: float) -> None:
    if isinstance(q, str):
        raise TypeError(f"q must be a number, got {q!r}")
    if not (q > 0.0 and math.isfinite(q)):
        raise ValueError(f"q must be positive and finite, got {q:g}")
