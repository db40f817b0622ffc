"""φ, φ′ and φ″ of every activation, as functions of a float64 array; `TABLE` is at the end.

Nothing here subtracts nearly equal numbers, and every exponential is of a number that is not
positive: the tails keep their relative accuracy down to the smallest numbers, and nothing warns.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfcx, expit

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]
Formulas = tuple[Function, Function, Function]

_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)


def bell(x: Array, rate: float) -> Array:
    """Return exp(−rate x²), x² split in two because exp would amplify its rounding error."""
    x = np.clip(x, -64.0, 64.0)  # beyond, it is zero in float64
    h = np.rint(16.0 * x) / 16.0
    return np.exp(-rate * h * h) * np.exp(rate * (h - x) * (h + x))


def sigmoid_slope(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return e / (1.0 + e) ** 2


def sigmoid_curvature(x: Array) -> Array:
    return -np.tanh(0.5 * x) * sigmoid_slope(x)


def log_one_plus_exp(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def tanh_slope(x: Array) -> Array:
    return 4.0 * sigmoid_slope(2.0 * x)


def tanh_curvature(x: Array) -> Array:
    return 8.0 * sigmoid_curvature(2.0 * x)


def tanh_shrink(x: Array) -> Array:
    """Return x − tanh x, near zero by Lambert's tanh x = x / (1 + x²/(3 + x²/(5 + …)))."""
    small = np.minimum(x * x, 1.0)
    fraction = np.full_like(x, 17.0)
    for odd in (15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0):
        fraction = odd + small / fraction
    return np.where(np.abs(x) < 1.0, x * small / (small + fraction), x - np.tanh(x))


def silu(z: Array) -> Array:
    return z * expit(z)


def silu_slope(z: Array) -> Array:
    return expit(z) * (1.0 + z * expit(-z))


def silu_curvature(z: Array) -> Array:
    return sigmoid_slope(z) * (2.0 - z * np.tanh(0.5 * z))


def _normal(x: Array) -> tuple[Array, Array]:
    """Return the density of N(0, 1) at x and its tail Φ(−|x|)."""
    e = bell(x, 0.5)
    return e / _ROOT_TWO_PI, 0.5 * e * erfcx(math.sqrt(0.5) * np.abs(x))


def gelu(x: Array) -> Array:
    return np.maximum(x, 0.0) - np.abs(x) * _normal(x)[1]


def gelu_slope(x: Array) -> Array:
    density, tail = _normal(x)
    return np.where(x > 0.0, 1.0 - tail, tail) + x * density


def gelu_curvature(x: Array) -> Array:
    return (2.0 - x * x) * bell(x, 0.5) / _ROOT_TWO_PI


def _gelu_gate(x: Array) -> tuple[Array, Array, Array]:
    """Return v, v′ and v″ of gelu_tanh(x) = x (1 + tanh(v/2)) / 2 = x σ(v)."""
    a, b = 2.0 * math.sqrt(2.0 / math.pi), 0.044715
    square = b * x * x
    return a * x * (1.0 + square), a * (1.0 + 3.0 * square), 6.0 * a * b * x


def gelu_tanh(x: Array) -> Array:
    return x * expit(_gelu_gate(x)[0])


def gelu_tanh_slope(x: Array) -> Array:
    v, dv, _ = _gelu_gate(x)
    return expit(v) * (1.0 + x * dv * expit(-v))


def gelu_tanh_curvature(x: Array) -> Array:
    v, dv, ddv = _gelu_gate(x)
    return sigmoid_slope(v) * (2.0 * dv + x * (ddv - dv * dv * np.tanh(0.5 * v)))


def _exp_fraction(x: Array) -> tuple[Array, Array, Array]:
    """Return p, q ≤ 1 with eˣ = p/q, and d: tanh(log(1 + eˣ)) = p (p + 2q) / d."""
    e = np.exp(-np.abs(x))
    p, q = np.where(x > 0.0, 1.0, e), np.where(x > 0.0, e, 1.0)
    return p, q, p * p + 2.0 * q * (p + q)


def mish(x: Array) -> Array:
    p, q, d = _exp_fraction(x)
    return x * p * (p + 2.0 * q) / d


def mish_slope(x: Array) -> Array:
    p, q, d = _exp_fraction(x)
    return p * (p + 2.0 * q + 4.0 * x * q * q * (p + q) / d) / d


def mish_curvature(x: Array) -> Array:
    p, q, d = _exp_fraction(x)
    cubic = 2.0 * q * q * (p + q) - p * p * (2.0 * p + 3.0 * q)
    return 4.0 * p * q * q * (2.0 * (p + q) + x * cubic / d) / (d * d)


def inverse_cubed_root(x: Array) -> Array:
    """Return (1 + x²)^(−3/2)."""
    square = 1.0 + x * x
    return 1.0 / (square * np.sqrt(square))


def squareplus(x: Array) -> Array:
    """Return (x + √(x² + 4)) / 2, on the negative side as 2 / (√(x² + 4) + |x|)."""
    s = np.sqrt(x * x + 4.0) + np.abs(x)
    return np.where(x > 0.0, 0.5 * s, 2.0 / s)


def squareplus_slope(x: Array) -> Array:
    return squareplus(x) / np.sqrt(x * x + 4.0)


def squareplus_curvature(x: Array) -> Array:
    square = x * x + 4.0
    return 2.0 / (square * np.sqrt(square))


def leaky_relu(alpha: float) -> Formulas:
    return (
        lambda x: np.where(x > 0.0, x, alpha * x),
        lambda x: np.where(x > 0.0, 1.0, alpha),
        np.zeros_like,
    )


def elu(alpha: float, scale: float = 1.0, width: float = 1.0) -> Formulas:
    """Return those of scale · (x where x > 0, α (exp(x / width) − 1) elsewhere)."""
    slope, curvature = scale * alpha / width, scale * alpha / width**2
    negative: Function = lambda x: np.minimum(x, 0.0) / width
    return (
        lambda x: scale * (np.maximum(x, 0.0) + alpha * np.expm1(negative(x))),
        lambda x: np.where(x > 0.0, scale, slope * np.exp(negative(x))),
        lambda x: np.where(x > 0.0, 0.0, curvature * np.exp(negative(x))),
    )


def celu(alpha: float) -> Formulas:
    return elu(alpha, width=alpha)


def softplus(beta: float) -> Formulas:
    return (
        lambda x: log_one_plus_exp(beta * x) / beta,
        lambda x: expit(beta * x),
        lambda x: beta * sigmoid_slope(beta * x),
    )


def soft_shrink(lambd: float) -> Formulas:
    return (
        lambda x: x - np.clip(x, -lambd, lambd),
        lambda x: np.where(np.abs(x) > lambd, 1.0, 0.0),
        np.zeros_like,
    )


def clip(low: float, high: float) -> Formulas:
    return (
        lambda x: np.clip(x, low, high),
        lambda x: np.where((low < x) & (x < high), 1.0, 0.0),
        np.zeros_like,
    )


_GATE_RATE = 1.702  # of quick_gelu
_ERF_SLOPE = 2.0 / math.sqrt(math.pi)  # at zero

TABLE: dict[str, Formulas] = {
    "abs": (np.abs, np.sign, np.zeros_like),
    "asinh": (
        np.arcsinh,
        lambda x: 1.0 / np.sqrt(1.0 + x * x),
        lambda x: -x * inverse_cubed_root(x),
    ),
    "atan": (np.arctan, lambda x: 1.0 / (1.0 + x * x), lambda x: -2.0 * x / (1.0 + x * x) ** 2),
    "bent_identity": (
        lambda x: x * (1.0 + 0.5 * x / (1.0 + np.sqrt(1.0 + x * x))),
        lambda x: 1.0 + 0.5 * x / np.sqrt(1.0 + x * x),
        lambda x: 0.5 * inverse_cubed_root(x),
    ),
    "cos": (np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)),
    "erf": (
        erf,
        lambda x: _ERF_SLOPE * bell(x, 1.0),
        lambda x: -2.0 * _ERF_SLOPE * x * bell(x, 1.0),
    ),
    "gaussian": (
        lambda x: bell(x, 0.5),
        lambda x: -x * bell(x, 0.5),
        lambda x: (x - 1.0) * (x + 1.0) * bell(x, 0.5),
    ),
    "gelu": (gelu, gelu_slope, gelu_curvature),
    "gelu_tanh": (gelu_tanh, gelu_tanh_slope, gelu_tanh_curvature),
    "hard_sigmoid": (
        lambda x: np.clip(x + 3.0, 0.0, 6.0) / 6.0,
        lambda x: np.where(np.abs(x) < 3.0, 1.0 / 6.0, 0.0),
        np.zeros_like,
    ),
    "hard_swish": (
        lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0,
        lambda x: np.where(np.abs(x) < 3.0, (2.0 * x + 3.0) / 6.0, np.where(x > 0.0, 1.0, 0.0)),
        lambda x: np.where(np.abs(x) < 3.0, 1.0 / 3.0, 0.0),
    ),
    "hard_tanh": clip(-1.0, 1.0),
    "identity": (np.positive, np.ones_like, np.zeros_like),
    "log_sigmoid": (
        lambda x: -log_one_plus_exp(-x),
        lambda x: expit(-x),
        lambda x: -sigmoid_slope(x),
    ),
    "mish": (mish, mish_slope, mish_curvature),
    "quick_gelu": (
        lambda x: x * expit(_GATE_RATE * x),
        lambda x: silu_slope(_GATE_RATE * x),
        lambda x: _GATE_RATE * silu_curvature(_GATE_RATE * x),
    ),
    "relu": clip(0.0, math.inf),
    "relu6": clip(0.0, 6.0),
    "relu_squared": (
        lambda x: np.maximum(x, 0.0) ** 2,
        lambda x: 2.0 * np.maximum(x, 0.0),
        lambda x: np.where(x > 0.0, 2.0, 0.0),
    ),
    # Klambauer et al. 2017, eq. 14: the pair that keeps mean 0 and variance 1 fixed.
    "selu": elu(1.6732632423543772848, scale=1.0507009873554804934),
    "sigmoid": (expit, sigmoid_slope, sigmoid_curvature),
    "silu": (silu, silu_slope, silu_curvature),
    "sin": (np.sin, np.cos, lambda x: -np.sin(x)),
    "softsign": (
        lambda x: x / (1.0 + np.abs(x)),
        lambda x: 1.0 / (1.0 + np.abs(x)) ** 2,
        lambda x: np.copysign(2.0, -x) / (1.0 + np.abs(x)) ** 3,
    ),
    "square": (np.square, lambda x: 2.0 * x, lambda x: np.full_like(x, 2.0)),
    "squareplus": (squareplus, squareplus_slope, squareplus_curvature),
    "tanh": (np.tanh, tanh_slope, tanh_curvature),
    "tanh_shrink": (tanh_shrink, lambda x: np.tanh(x) ** 2, lambda x: -tanh_curvature(x)),
}

# Where φ′ or φ″ jumps, and after what φ repeats itself.
KINKS = {
    "abs": (0.0,),
    "hard_sigmoid": (-3.0, 3.0),
    "hard_swish": (-3.0, 3.0),
    "hard_tanh": (-1.0, 1.0),
    "relu": (0.0,),
    "relu6": (0.0, 6.0),
    "relu_squared": (0.0,),
    "selu": (0.0,),
    "softsign": (0.0,),
}
PERIODS = {"cos": 2.0 * math.pi, "sin": 2.0 * math.pi}
