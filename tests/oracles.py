"""Second routes to the numbers of `core`: definitions in mpmath, and Gaussian integrals.

Nothing here shares a node with `skipless.core.gaussian`. One-dimensional integrals are taken in 60
digits; two-dimensional ones in polar coordinates, where a kink at zero is a ray, and nothing
narrows as c goes to ±1.
"""

# mpmath makes its functions at run time.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportReturnType=false
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

import numpy as np
from mpmath import mp, mpf
from mpmath.calculus.quadrature import GaussLegendre

from skipless.core.activations import Activation, Array, activation

Oracle = Callable[[mpf], mpf]


def clamp(x: mpf, low: float, high: float) -> mpf:
    return max(mpf(low), min(mpf(high), x))


def exponential_linear(alpha: float, width: float = 1.0) -> Oracle:
    return lambda x: x if x > 0 else alpha * mp.expm1(x / mpf(width))


# The textbook definitions, for arithmetic that has digits to waste.
ORACLES: dict[str, Oracle] = {
    "abs": abs,
    "asinh": lambda x: mp.sign(x) * mp.log(abs(x) + mp.sqrt(x * x + 1)),
    "atan": lambda x: mp.asin(x / mp.sqrt(1 + x * x)),
    "bent_identity": lambda x: (mp.sqrt(x * x + 1) - 1) / 2 + x,
    "celu": exponential_linear(1.0),
    "cos": mp.cos,
    "elu": exponential_linear(1.0),
    "erf": mp.erf,
    "gaussian": lambda x: mp.exp(-x * x / 2),
    "gelu": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mpf("0.044715") * x**3))),
    "hard_sigmoid": lambda x: clamp(x / 6 + mpf(1) / 2, 0, 1),
    "hard_swish": lambda x: x * clamp(x + 3, 0, 6) / 6,
    "hard_tanh": lambda x: clamp(x, -1, 1),
    "identity": lambda x: x,
    "leaky_relu": lambda x: x if x > 0 else x / 100,
    "log_sigmoid": lambda x: -mp.log(1 + mp.exp(-x)),
    "mish": lambda x: x * mp.tanh(mp.log(1 + mp.exp(x))),
    "quick_gelu": lambda x: x / (1 + mp.exp(-mpf("1.702") * x)),
    "relu": lambda x: max(x, 0),
    "relu6": lambda x: clamp(x, 0, 6),
    "relu_squared": lambda x: max(x, 0) ** 2,
    "selu": lambda x: (
        mpf("1.0507009873554804934193349852946")
        * exponential_linear(mpf("1.6732632423543772848170429916717"))(x)
    ),
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "silu": lambda x: x / (1 + mp.exp(-x)),
    "sin": mp.sin,
    "soft_shrink": lambda x: max(x - 0.5, 0) + min(x + 0.5, 0),
    "softplus": lambda x: mp.log(1 + mp.exp(x)),
    "softsign": lambda x: x / (1 + abs(x)),
    "square": lambda x: x * x,
    "squareplus": lambda x: (x + mp.sqrt(x * x + 4)) / 2,
    "tanh": mp.tanh,
    "tanh_shrink": lambda x: x - mp.tanh(x),
}

DIGITS = 60
# φ′ and φ″ are central differences: STEP² = 1e-30 of error, and as much rounding in 60 digits.
STEP = mpf("1e-15")
REACH = 13  # the weight beyond is 1e-38
# Panels of 24 Gauss-Legendre nodes end at these z, and at these x in the argument of φ, so that
# its poles stay away from them.
Z_ENDS = (-13, -8, -4, 0, 4, 8, 13)
X_ENDS = (0.0, *(sign * 0.8 * 6.0**k for k in range(8) for sign in (-1.0, 1.0)))


@cache
def legendre() -> list[tuple[mpf, mpf]]:
    with mp.workdps(DIGITS):
        return GaussLegendre(mp).calc_nodes(4, mp.prec)


def derivatives(f: Oracle, x: mpf) -> tuple[mpf, mpf, mpf]:
    """f, f′ and f″ at x, off the kinks."""
    low, here, high = f(x - STEP), f(x), f(x + STEP)
    return here, (high - low) / (2 * STEP), (high - 2 * here + low) / STEP**2


def x_marks(name: str, scale: mpf, shift: mpf) -> list[mpf]:
    """Where panels end for φ(scale · z + shift)."""
    return [(mpf(x) - shift) / scale for x in (*X_ENDS, *activation(name).kinks)]


def gaussian_means(f: Callable[[mpf], Sequence[mpf]], marks: Iterable[mpf]) -> list[mpf]:
    """E of every component of f(z); panels end at the marks."""
    with mp.workdps(DIGITS):
        ends = sorted({*map(mpf, Z_ENDS), *(z for z in marks if abs(z) < REACH)})
        rows: list[Sequence[mpf]] = []
        weights: list[mpf] = []
        for low, high in pairwise(ends):
            half, middle = (high - low) / 2, (high + low) / 2
            for x, weight in legendre():
                z = middle + half * x
                rows.append(f(z))
                weights.append(half * weight * mp.npdf(z))
        return [mp.fdot(weights, column) for column in zip(*rows, strict=True)]


@dataclass(frozen=True)
class Means:
    """Expectations over ψ(z) = φ(αz + β)."""

    value: mpf
    value_squared: mpf
    slope_squared: mpf
    value_slope_z: mpf
    slope_z: mpf
    curvature_squared: mpf


@cache
def means(name: str, alpha: float, beta: float = 0.0) -> Means:
    with mp.workdps(DIGITS):
        a, b = mpf(alpha), mpf(beta)

        def integrand(z: mpf) -> tuple[mpf, ...]:
            psi, slope, curvature = derivatives(ORACLES[name], a * z + b)
            slope, curvature = a * slope, a * a * curvature
            return psi, psi**2, slope**2, psi * slope * z, slope * z, curvature**2

        return Means(*gaussian_means(integrand, x_marks(name, a, b)))


def norm(name: str, q1: float, q2: float) -> mpf:
    """√(Q(q₁) Q(q₂))."""
    with mp.workdps(DIGITS):
        return mp.sqrt(
            means(name, math.sqrt(q1)).value_squared * means(name, math.sqrt(q2)).value_squared
        )


def extreme_c_map(name: str, c: int, q1: float, q2: float) -> tuple[float, float, float]:
    """C, C′ and C″ at c = ±1, where z₂ = c z₁; φ′ must not jump."""
    with mp.workdps(DIGITS):
        s1, s2 = mp.sqrt(q1), c * mp.sqrt(q2)

        def integrand(z: mpf) -> list[mpf]:
            first = derivatives(ORACLES[name], s1 * z)
            second = derivatives(ORACLES[name], s2 * z)
            return [f * g for f, g in zip(first, second, strict=True)]

        marks = x_marks(name, s1, mpf(0)) + x_marks(name, s2, mpf(0))
        value, slope, curvature = gaussian_means(integrand, marks)
        scale = norm(name, q1, q2)
        root = mp.sqrt(q1) * mp.sqrt(q2)
        return float(value / scale), float(root * slope / scale), float(root**2 * curvature / scale)


def relu_pair(c: mpf, q1: mpf, q2: mpf) -> mpf:
    return mp.sqrt(q1 * q2) / (2 * mp.pi) * (mp.sqrt(1 - c * c) + c * (mp.pi - mp.acos(c)))


# E[φ(√q₁ z₁) φ(√q₂ z₂)] in closed form.
PAIR_MEANS: dict[str, Callable[[mpf, mpf, mpf], mpf]] = {
    "abs": lambda c, a, b: 2 / mp.pi * mp.sqrt(a * b) * (mp.sqrt(1 - c * c) + c * mp.asin(c)),
    "cos": lambda c, a, b: mp.exp(-(a + b) / 2) * mp.cosh(c * mp.sqrt(a * b)),
    "erf": lambda c, a, b: (
        2 / mp.pi * mp.asin(2 * c * mp.sqrt(a * b) / mp.sqrt((1 + 2 * a) * (1 + 2 * b)))
    ),
    "gaussian": lambda c, a, b: 1 / mp.sqrt((1 + a) * (1 + b) - c * c * a * b),
    "identity": lambda c, a, b: c * mp.sqrt(a * b),
    "leaky_relu": lambda c, a, b: (
        c * mp.sqrt(a * b) / 100 + (mpf(99) / 100) ** 2 * relu_pair(c, a, b)
    ),
    "relu": relu_pair,
    "relu_squared": lambda c, a, b: (
        a * b / (2 * mp.pi) * (3 * c * mp.sqrt(1 - c * c) + (mp.pi - mp.acos(c)) * (1 + 2 * c * c))
    ),
    "sin": lambda c, a, b: mp.exp(-(a + b) / 2) * mp.sinh(c * mp.sqrt(a * b)),
    "square": lambda c, a, b: a * b * (1 + 2 * c * c),
}


def closed_c_map(name: str, c: float, q1: float, q2: float, order: int = 0) -> float:
    """C from its closed form, or its derivative of the given order for |c| < 1."""
    with mp.workdps(DIGITS):
        a, b, pair = mpf(q1), mpf(q2), PAIR_MEANS[name]
        scale = mp.sqrt(pair(mpf(1), a, a) * pair(mpf(1), b, b))
        if order == 0:
            return float(pair(mpf(c), a, b) / scale)
        return float(mp.re(mp.diff(lambda t: pair(t, a, b), mpf(c), order)) / scale)


GAUSS_X, GAUSS_W = np.polynomial.legendre.leggauss(20)
RADIUS = 12.0
RADII = np.array([-12.0, -9.0, -6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 9.0, 12.0])
POLAR_MARKS = np.concatenate([[0.0], 0.8 * 3.0 ** np.arange(12), -0.8 * 3.0 ** np.arange(12)])


@dataclass(frozen=True)
class PairMeans:
    """E[f(√q₁ z₁) f(√q₂ z₂)] for f = φ, φ′ and φ″, and derivatives in c of the first two.

    The derivatives are taken of the density p of (z₁, z₂), with ∂p/∂c = ∂²p/∂z₁∂z₂: they need no
    derivative of φ, so no delta where φ′ jumps. Their rounding errors grow as 1/(1 - c²).
    """

    value: float
    slope: float
    curvature: float
    value_in_c: float
    slope_in_c: float


def polar_pair(phi: Activation, c: float, q1: float, q2: float) -> PairMeans:
    """The means for |c| < 1, by z₁ = r cos θ and z₂ = r cos(θ - arccos c)."""
    s1, s2, angle = math.sqrt(q1), math.sqrt(q2), math.acos(c)
    theta, d_theta = _panels(_angles(phi.kinks, c, s1, s2))
    theta = theta[:, None]
    cosines = s1 * np.cos(theta), s2 * np.cos(theta - angle)
    x = np.concatenate([POLAR_MARKS[np.abs(POLAR_MARKS) < 14 * max(s1, s2)], phi.kinks])
    ends = [np.clip(x / cosine, -RADIUS, RADIUS) for cosine in cosines]
    fixed = np.broadcast_to(RADII, (theta.size, RADII.size))
    r, d_r = _panels(np.sort(np.concatenate([*ends, fixed], axis=1), axis=1))
    weight = d_theta[:, None] * d_r * np.abs(r) * np.exp(-0.5 * r * r) / (2 * math.pi)
    x1, x2 = cosines[0] * r, cosines[1] * r
    in_c = (c - r * r * np.sin(theta) * np.sin(theta - angle)) / ((1 - c) * (1 + c))
    value, slope, curvature = (
        weight * f(x1) * f(x2) for f in (phi.value, phi.slope, phi.curvature)
    )
    parts = value, slope, curvature, value * in_c, slope * in_c
    return PairMeans(*(float(np.sum(part)) for part in parts))


def _angles(kinks: Sequence[float], c: float, s1: float, s2: float) -> Array:
    """Panels in θ end where z₁ or z₂ is 0, crowd there, and end where lines of kinks cross."""
    ends = [0.0, math.pi]
    for centre, scale in ((0.5 * math.pi, s1), (0.5 * math.pi + math.acos(c), s2)):
        levels = math.ceil(math.log(40 * max(scale, 1.0), 3.0)) + 1
        ends += [centre, *(centre + sign * 1.6 / 3.0**k for k in range(levels) for sign in (1, -1))]
    for k, m in product(kinks, kinks):
        if k or m:
            ends.append(math.atan2(m * s1 - k * s2 * c, k * s2 * math.sqrt((1 - c) * (1 + c))))
    return np.sort([end if end in (0.0, math.pi) else end % math.pi for end in ends])


def _panels(ends: Array) -> tuple[Array, Array]:
    half, middle = 0.5 * np.diff(ends), 0.5 * (ends[..., 1:] + ends[..., :-1])
    nodes = middle[..., None] + half[..., None] * GAUSS_X
    weights = np.broadcast_to(half[..., None], nodes.shape) * GAUSS_W
    return nodes.reshape(*ends.shape[:-1], -1), weights.reshape(*ends.shape[:-1], -1)
