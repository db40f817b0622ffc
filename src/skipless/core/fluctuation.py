r"""What the finite width of one layer does to the kernel of two samples.

The kernel is $K = (q_1, q_2, k)$ with $k = c \sqrt{q_1 q_2}$. In a layer of $n$ channels each entry
is a mean of $n$ numbers, so that it fluctuates by $1/\sqrt n$ and drifts by $1/n$. For normal
pre-activations let $g = (u^2, v^2, uv)$ and $f = (\phi(u)^2, \phi(v)^2, \phi(u) \phi(v))$, each
divided by its q value. For a given kernel before the node, $n$ times the covariance behind it is

| node                   | covariance                                                         |
|------------------------|--------------------------------------------------------------------|
| Affine, Gaussian       | $\mathrm{Cov}(g)$                                                  |
| Affine, orthogonal     | that times $(k - n) / (k + 2)$ for $k > n$ inputs, otherwise zero  |
| Nonlinearity           | $\mathrm{Cov}(f) - B\,\mathrm{Cov}(g)\,B^\top$                     |
| Sum                    | that of the inner products of its terms, which are zero on average |

with $B = \mathrm{Cov}(f, g)\,\mathrm{Cov}(g)^{-1}$, which is also the derivative of the kernel
behind φ by the one before it. The kernel before φ being known, its inputs have a random direction
rather than independent normal entries: that takes $B\,\mathrm{Cov}(g)\,B^\top$ away, and shifts the
mean of $f$ by $-\tfrac{1}{4n} E[f\,H]$ with the contracted fourth Hermite polynomial $H$.

A leaky ReLU and the Gaussian layer before it together give log q the variance $V / n$ with
$V = 6 (1+\alpha^4) / (1+\alpha^2)^2 - 1$; with an orthogonal layer it is $(V - 2) / n$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, polygamma

from .activations import Activation, Array
from .gaussian import panel_ends, rule
from .network import Point

_REACH = 9.0  # beyond, a normal number does not go
_EDGES = np.linspace(-_REACH, _REACH, 7)  # panels that resolve a fluctuation to four digits
_DEGREES = 20  # of Hermite polynomials, whose share of φ² falls quickly
_ALIKE = 1e-7  # 1 - |c| below which two samples are alike, or opposite


@dataclass(frozen=True)
class Response:
    """What a node makes of a kernel, relative to the q values before and behind it.

    `jacobian`, `covariance` and `shift` are in the entries (q₁, q₂, k); the last two are those of a
    layer of one channel.
    """

    q: float
    c: float
    jacobian: Array
    covariance: Array
    shift: Array
    second: Array  # E[f fᵀ] of one channel


def normal_covariance(c: float) -> Array:
    """Cov(g): of the products of two standard normal numbers with correlation `c`."""
    return np.array(
        [
            [2.0, 2.0 * c * c, 2.0 * c],
            [2.0 * c * c, 2.0, 2.0 * c],
            [2.0 * c, 2.0 * c, 1.0 + c * c],
        ]
    )


def activation_response(phi: Activation, at: Point) -> Response:
    """What φ makes of normal numbers with the kernel `at`.

    >>> from .activations import activation
    >>> relu = activation_response(activation("relu"), Point(1.0, 0.0))
    >>> round(float(relu.covariance[0, 0]) + 2.0, 6)  # 6 (1 + α⁴) / (1 + α²)² - 1 at α = 0
    5.0
    """
    z, w, y, v = _pair_nodes(phi, at)
    s, c = math.sqrt(at.q), at.c
    a, b = phi.value(s * z), phi.value(s * y)
    ab, ayb, bb = (np.sum(v * each, axis=-1) for each in (b, y * b, b * b))
    q = float(w @ a**2)
    fourth, mixed = w @ a**4 / q**2, w @ (a * a * bb) / q**2
    cube, cosine = w @ (a**3 * ab) / q**2, float(w @ (a * ab)) / q
    square = w @ (a * z) ** 2 / q - 1.0
    cross = w @ (a * z * z * ab) / q - cosine
    both = w @ (a * z * ayb) / q - c * cosine
    second = np.array([[fourth, mixed, cube], [mixed, fourth, cube], [cube, cube, mixed]])
    mean = np.array([1.0, 1.0, cosine])
    with_normal = np.array(
        [
            [square, c * c * square, c * square],
            [c * c * square, square, c * square],
            [cross, cross, both],
        ]
    )
    inverse = np.linalg.pinv(normal_covariance(c), rcond=1e-6, hermitian=True)
    jacobian = with_normal @ inverse
    covariance = second - np.outer(mean, mean) - jacobian @ with_normal.T
    own = -0.25 * w @ (a * a * (z**4 - 6.0 * z**2 + 3.0)) / q
    shift = np.array([own, own, _cross_shift(z, w, a, y, v, b, c) / q])
    return Response(q, float(np.clip(cosine, -1.0, 1.0)), jacobian, covariance, shift, second)


def persistence(phi: Activation, q: float) -> Array:
    r"""How alike the noise of φ is for two inputs with correlation ρ: the coefficients of ρ^k.

    Of $\phi^2 = \sum_k a_k h_k$, two inputs with correlation ρ share $a_k^2 \rho^k$. The parts
    for k = 0 and 2 are no noise: they are the q value itself.
    """
    s = math.sqrt(q)
    z, w = rule(panel_ends(phi, s, reach=_REACH), _EDGES)
    square = w * phi.value(s * z) ** 2
    previous, current, coefficients = np.zeros_like(z), np.ones_like(z), np.zeros(_DEGREES)
    for k in range(_DEGREES):
        coefficients[k] = float(square @ current) ** 2
        following = (z * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
        previous, current = current, following
    coefficients[[0, 2]] = 0.0
    return coefficients / max(float(np.sum(coefficients)), 1e-300)


def _pair_nodes(phi: Activation, at: Point) -> tuple[Array, Array, Array, Array]:
    """Nodes and weights for z, and in a row for each of them, for y given z."""
    s, rest = math.sqrt(at.q), math.sqrt(max((1.0 - at.c) * (1.0 + at.c), 0.0))
    ends = panel_ends(phi, s, reach=_REACH)
    z, w = rule(ends, _EDGES)
    if 1.0 - abs(at.c) < _ALIKE:
        return z, w, math.copysign(1.0, at.c) * z[:, None], np.ones((z.size, 1))
    x, v = rule((ends - at.c * z[:, None]) / rest, _EDGES)
    return z, w, at.c * z[:, None] + rest * x, v


def _cross_shift(z: Array, w: Array, a: Array, y: Array, v: Array, b: Array, c: float) -> float:
    if 1.0 - abs(c) < _ALIKE:  # one number, not two
        return -0.25 * float(w @ (a * b[:, 0] * (z**4 - 6.0 * z**2 + 3.0)))
    length = z[:, None] ** 2 + (y - c * z[:, None]) ** 2 / ((1.0 - c) * (1.0 + c))
    hermite = length**2 - 8.0 * length + 8.0
    return -0.25 * float(w @ (a * np.sum(v * b * hermite, axis=-1)))


@dataclass(frozen=True)
class Noise:
    """What finite width does at one node, for a given kernel before it, to log q and to artanh c.

    `covariance` is that of (log q₁, log q₂, c), and `single` the variance of log q of one sample.
    `asymmetry` is that of ½ log (q₁ / q₂), which changes c to second order.
    """

    covariance: Array
    q_shift: float
    c_shift: float
    c: float

    @classmethod
    def of(cls, covariance: Array, shift: Array, c: float) -> Noise:
        """From the covariance and the shift of the entries of a kernel with cosine `c`."""
        mean = 3.0 * (covariance[0, 0] + covariance[1, 1]) / 8.0 + covariance[0, 1] / 4.0
        c_shift = shift[2] - c * shift[0] + c * mean
        c_shift -= 0.5 * (covariance[0, 2] + covariance[1, 2])
        turn = to_logarithms(c)
        return cls(turn @ covariance @ turn.T, float(shift[0]), float(c_shift), c)

    @property
    def single(self) -> float:
        return float(self.covariance[0, 0])

    @property
    def asymmetry(self) -> float:
        return float(self.covariance[0, 0] - self.covariance[0, 1]) / 2.0

    @property
    def artanh_c(self) -> float:
        """The variance of artanh c; zero for samples that are alike or opposite."""
        rest = 1.0 - self.c**2
        return 0.0 if rest < _ALIKE else max(float(self.covariance[2, 2]), 0.0) / rest**2

    @property
    def artanh_c_shift(self) -> float:
        rest = 1.0 - self.c**2
        return 0.0 if rest < _ALIKE else self.c_shift / rest + self.c * self.artanh_c


def to_logarithms(c: float) -> Array:
    """From relative changes of (q₁, q₂, k) to changes of (log q₁, log q₂, c)."""
    return np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-0.5 * c, -0.5 * c, 1.0]])


def log_mean(variance: float) -> float:
    r"""E[log x] for a Gamma variable x of mean 1 and that variance, about -½ of it.

    The q value of a linear layer with Gaussian weights has this distribution, with variance 2 / n.
    """
    shape = 1.0 / variance if variance > 1e-12 else math.inf
    return 0.0 if math.isinf(shape) else float(digamma(shape)) - math.log(shape)


def log_variance(variance: float) -> float:
    """The variance of log x for the same x; about its variance."""
    return float(polygamma(1, 1.0 / variance)) if variance > 1e-12 else variance
