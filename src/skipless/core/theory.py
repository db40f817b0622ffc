"""The paper's theorems as functions: bounds, the infinite-depth limit, equivalences."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.integrate import quad, solve_ivp

from .activations import Array
from .maps import arc_gap, require_cosines, sine_gap


@dataclass(frozen=True)
class DeviationBound:
    """Bounds on how far a global C map and its slope are from those of the identity on [-1, 1]."""

    value: float
    slope: float


def leaky_relu_bound(c_at_zero: float) -> DeviationBound:
    r"""Theorem 1: bounds on a network of scaled leaky ReLUs (α ≥ 0) from $C_f(0)$ alone.

    $$\max|C_f(c) - c| \le \min\{4\,C_f(0),\,1 + C_f(0)\}, \qquad
      \max|C_f'(c) - 1| \le \min\{4\,C_f(0),\,1\}$$

    >>> leaky_relu_bound(0.0)
    DeviationBound(value=0.0, slope=0.0)
    """
    return DeviationBound(min(4.0 * c_at_zero, 1.0 + c_at_zero), min(4.0 * c_at_zero, 1.0))


def smooth_bound(curvature: float) -> DeviationBound:
    r"""Theorem 2: bounds on a smooth network with $C_f'(1) = 1$, both $2\,C_f''(1)$.

    >>> smooth_bound(0.3)
    DeviationBound(value=0.6, slope=0.6)
    """
    return DeviationBound(2.0 * curvature, 2.0 * curvature)


def limit_time(eta: float) -> float:
    r"""Proposition 3: the time $T$ that the limiting flow takes from 0 to `eta`.

    $$T = \int_0^\eta \frac{dx}{\sqrt{1-x^2} - x\arccos x}$$

    >>> limit_time(0.0)
    0.0
    """
    if not 0.0 <= eta < 1.0:
        raise ValueError(f"eta must be in [0, 1), got {eta:g}")
    # With x = cos θ the integrand is smooth up to the end: sin θ dθ / (sin θ - θ cos θ).
    rate: Callable[[float], float] = lambda t: math.sin(t) / sine_gap(t)
    ends = (math.acos(eta), 0.5 * math.pi)
    return float(quad(rate, *ends, epsabs=0.0, epsrel=1e-13, limit=200)[0])


def infinite_depth_c_map(c: float | Array, eta: float) -> Array:
    r"""Proposition 3: the global C map of a TReLU chain of infinite depth, $\psi(c, T)$.

    The local C map is a step of Euler's method for

    $$\dot x = \sqrt{1-x^2} - x \arccos x, \qquad x(0) = c,$$

    and the TReLU condition $C_f(0) = \eta$ fixes the time $T$ at which to stop.

    >>> round(float(infinite_depth_c_map(0.0, eta=0.9)), 10)
    0.9
    """
    start = np.asarray(c, float)
    require_cosines(start)

    def speed(_: float, x: Array) -> list[float]:
        return [arc_gap(t) for t in np.clip(x, -1.0, 1.0).tolist()]

    span = (0.0, limit_time(eta))
    flow = solve_ivp(speed, span, start.ravel(), method="DOP853", rtol=1e-13, atol=1e-14)
    return np.reshape(flow.y[:, -1], start.shape)


def equivalent_shortcut_weight(alpha: float) -> float:
    r"""Proposition 1: the shortcut weight of the ResNet that has the C map of leaky ReLUs.

    A rescaled ResNet with one normalised ReLU in each branch and this weight has the same global C
    map as a chain, equally deep, of leaky ReLUs with negative slope `alpha`:

    $$w = \sqrt{\frac{2\alpha}{1+\alpha^2}}$$

    as in the proof; the statement of the proposition lacks the factor 2.

    >>> equivalent_shortcut_weight(1.0)
    1.0
    """
    if alpha < 0.0:
        raise ValueError(f"alpha must be >= 0, got {alpha:g}")
    return math.sqrt(2.0 * alpha / (1.0 + alpha * alpha))


def relu_from_leaky_relus(alpha: float) -> tuple[float, float]:
    r"""Proposition 4: (a, b) with $\max(x, 0) = a\,\phi_\alpha(x) + b\,\phi_\alpha(-x)$.

    >>> relu_from_leaky_relus(0.0)
    (1.0, 0.0)
    """
    if abs(alpha) == 1.0:
        raise ValueError(f"alpha must not be 1 or -1, got {alpha:g}: x and |x| alone give no ReLU")
    return 1.0 / (1.0 - alpha * alpha), alpha / (1.0 - alpha * alpha)


def rescaled_resnet_curvature(activations: int, shortcut_weight: float) -> float:
    r"""Appendix B.5: $\mu^2_f / C''(1) = \max\{3, L(1-w^2)\}$ of a rescaled ResNet.

    `activations` is L, the number of activations, three in each block.

    >>> rescaled_resnet_curvature(48, shortcut_weight=0.0)
    48.0
    """
    return max(3.0, activations * (1.0 - shortcut_weight**2))


def imagenet_resnet_curvature(layers: int, shortcut_weight: float) -> float:
    r"""Appendix B.5: $\mu^2_f / C''(1) = (L-6)(1-w^2) + 5$ of the ResNets of the experiments.

    `layers` is the L of ResNet-L: three activations in each of (L - 2)/3 blocks, four of which have
    a shortcut with an activation of its own, and one activation after the last block.

    >>> imagenet_resnet_curvature(50, shortcut_weight=0.0)
    49.0
    """
    return (layers - 6) * (1.0 - shortcut_weight**2) + 5.0
