"""Second routes to the numbers of `core`: definitions in mpmath, and Gaussian integrals.

Nothing here shares a node with `skipless.core.gaussian`. One-dimensional integrals are taken in 60
digits; two-dimensional ones in polar coordinates, where a kink at zero is a ray, and nothing
narrows as c goes to ±1.
"""

# mpmath makes its functions at run time.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false

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
