r"""The edge of chaos of an activation function: where $C'(1) = 1$ at a q value that layers hold.

Between pre-activations of q value $q$ and weights and biases of variance $\sigma_w^2$ and
$\sigma_b^2$, a layer maps $q$ to $\sigma_w^2 E[\phi(\sqrt q z)^2] + \sigma_b^2$ and has
$C'(1) = \sigma_w^2 E[\phi'(\sqrt q z)^2]$. Given $q$, the second gives $\sigma_w$; what remains is
one equation in $q$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from .activations import Activation, Array
from .gaussian import Moments, moments, tanh_sinh_moments
from .maps import q_map
from .solution import Solution, UnreachableTargetError, clamp_or_raise

_Q_VALUES = np.geomspace(1e-8, 1e6, 141)


@dataclass(frozen=True)
class EdgePoint:
    """A q value that the layers hold, and the weight scale that makes them hold it."""

    q: float
    sigma_w: float


def eoc(sigma_b: float, phi: Activation, clamp: bool) -> Solution:
    """φ as it is, with the weights that put it on the edge of chaos."""
    point = edge_of_chaos(phi, sigma_b)
    if point is None:
        nearest = nearest_bias(phi, sigma_b)
        if nearest is None:
            raise UnreachableTargetError(
                f"An edge of chaos was asked for {phi.name}, but at no sigma_b do its layers have "
                "C'(1) = 1 at a q value that attracts: from layer to layer q runs away from it. "
                "Use TAT or DKS, which transform the activation, or another activation."
            )
        why = (
            f"no sigma_w gives {phi.name} C'(1) = 1 at a q value that attracts. "
            "Change sigma_b, use TAT or DKS"
        )
        sigma_b = clamp_or_raise(clamp, "sigma_b", sigma_b, nearest, why)
        point = edge_of_chaos(phi, sigma_b)
        assert point is not None
    found = replace(Solution.of(phi), sigma_w=point.sigma_w, sigma_b=sigma_b, q=point.q)
    targets = {"Q(q)/q": 1.0, "C'(1)": 1.0}
    return found.with_residuals(targets, tanh_sinh_conditions(phi, point, sigma_b))


def edge_of_chaos(activation: Activation, sigma_b: float) -> EdgePoint | None:
    r"""The edge of chaos at `sigma_b` whose q value the layers are drawn to, or None.

    Of several, the one that attracts q most strongly is taken. A φ with φ(0) = 0 and σ_b = 0 may
    be drawn to q = 0, where σ_w = 1/|φ′(0)|.

    >>> from skipless.core.activations import activation
    >>> edge_of_chaos(activation("tanh"), 0.0)
    EdgePoint(q=0.0, sigma_w=1.0)
    """
    if activation.degree == 1.0:
        if sigma_b != 0.0:
            return None  # q would grow by σ_b² in every layer
        return EdgePoint(1.0, q_map(activation, 1.0) ** -0.5)
    surplus = _bias_variance(activation) - sigma_b**2
    stable = _attraction(activation) <= 1.0
    found: list[tuple[float, EdgePoint]] = []
    # Where φ is linear around zero, the surplus there is rounding error.
    clear = np.abs(surplus) > 1e-12 * _Q_VALUES
    crossing = (surplus[:-1] * surplus[1:] <= 0.0) & (clear[:-1] | clear[1:])
    for i in np.flatnonzero(crossing & (stable[:-1] | stable[1:])):
        q = _root(activation, sigma_b, *np.log(_Q_VALUES[i : i + 2]))
        if q is None:
            continue
        m = _at(activation, np.asarray([q]))
        point = EdgePoint(q, float((q / (m.variance + m.excess)[0]) ** 0.5))
        pull = abs(float(_pull_from(m)[0]))
        if pull < 1.0 - 1e-10 and _is_confirmed(activation, point, sigma_b):
            found.append((pull, point))
    if found:
        return min(found, key=lambda pair: pair[0])[1]
    return _at_zero(activation) if sigma_b == 0.0 else None


def nearest_bias(activation: Activation, sigma_b: float) -> float | None:
    """The σ_b nearest to `sigma_b` at which the activation has an edge of chaos, or None."""
    if activation.degree == 1.0 or _at_zero(activation) is not None:
        return 0.0
    q, best = _Q_VALUES, None
    for _ in range(3):  # the grid, and then twice a finer one around the nearest
        m = _at(activation, q)
        variance = _bias_from(q, m)
        good = np.flatnonzero((variance >= 0.0) & (np.abs(_pull_from(m)) < 1.0))
        order = np.argsort(np.abs(np.sqrt(variance[good]) - sigma_b))
        for i in good[order]:
            candidate = float(np.sqrt(variance[i]))
            if edge_of_chaos(activation, candidate) is not None:
                best = candidate
                q = np.geomspace(q[max(i - 1, 0)], q[min(i + 1, q.size - 1)], 41)
                break
        else:
            break
    return best


def _is_confirmed(activation: Activation, point: EdgePoint, sigma_b: float) -> bool:
    """Whether the second quadrature agrees; where all of φ(√q z) is far out, it may not."""
    attained = tanh_sinh_conditions(activation, point, sigma_b)
    return all(abs(value - 1.0) < 1e-11 for value in attained.values())


def tanh_sinh_conditions(
    activation: Activation, point: EdgePoint, sigma_b: float
) -> dict[str, float]:
    """Q(q)/q and C'(1) at `point`, by the second quadrature; their limits where q = 0."""
    if point.q == 0.0:
        limit = point.sigma_w**2 * _energy_at_zero(activation)
        return {"Q(q)/q": limit, "C'(1)": limit}
    m = tanh_sinh_moments(activation, math.sqrt(point.q), 0.0)
    held = point.sigma_w**2 * float(m.variance + m.mean**2) + sigma_b**2
    return {
        "Q(q)/q": held / point.q,
        "C'(1)": point.sigma_w**2 * float(m.variance + m.excess) / point.q,
    }


def _at_zero(activation: Activation) -> EdgePoint | None:
    if float(activation(0.0)) != 0.0 or (energy := _energy_at_zero(activation)) == 0.0:
        return None
    # q = 0 attracts if Q(q) < q; a φ that is linear around zero shows it only farther out.
    drawn = all(q_map(activation, q) <= q * energy * (1.0 + 1e-14) for q in (1e-4, 1e-2, 1.0))
    return EdgePoint(0.0, energy**-0.5) if drawn else None


def _energy_at_zero(activation: Activation) -> float:
    """The limit of E[φ′(√q z)²] at q = 0: half of it from either side of the origin."""
    return float(np.mean(activation.slope(np.array([-1e-150, 1e-150])) ** 2))


def _root(activation: Activation, sigma_b: float, low: float, high: float) -> float | None:
    def gap(log_q: float) -> float:
        q = np.exp(np.asarray([log_q]))
        return float(_bias_from(q, _at(activation, q))[0]) - sigma_b**2

    if gap(low) * gap(high) > 0.0:  # where φ is linear, the signs on the grid are noise
        return None
    return math.exp(float(brentq(gap, low, high, xtol=1e-15, rtol=1e-15)))


def _at(activation: Activation, q: Array) -> Moments:
    """Moments of φ(√q z)."""
    return moments(activation, np.sqrt(q), np.zeros_like(q))


@lru_cache(maxsize=64)
def _grid(activation: Activation) -> Moments:
    return _at(activation, _Q_VALUES)


def _bias_variance(activation: Activation) -> Array:
    """The σ_b² that puts each q of the grid on the edge of chaos."""
    return _bias_from(_Q_VALUES, _grid(activation))


def _attraction(activation: Activation) -> Array:
    """Slope of the layer's Q map at each q of the grid; below 1 in size it attracts."""
    return _pull_from(_grid(activation))


def _pull_from(m: Moments) -> Array:
    with np.errstate(invalid="ignore"):
        return (m.variance + m.imbalance + m.mean * m.tilt) / (m.variance + m.excess)


def _bias_from(q: Array, m: Moments) -> Array:
    """The σ_b² that makes q hold: q - E[φ²] / E[φ′²], without subtracting large numbers."""
    with np.errstate(invalid="ignore"):  # where φ(√q z) underflows to zero
        return q * (m.excess - m.mean**2) / (m.variance + m.excess)
