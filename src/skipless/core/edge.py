r"""The edge of chaos of an activation function: $C'(1) = 1$ at the q value of all layers.

Between pre-activations of q value $q$ and weights and biases of variance $\sigma_w^2$ and
$\sigma_b^2$, a layer maps $q$ to $\sigma_w^2 E[\phi(\sqrt q z)^2] + \sigma_b^2$ and has
$C'(1) = \sigma_w^2 E[\phi'(\sqrt q z)^2]$. For a given $q$, the second equation gives
$\sigma_w$, and the first is then one equation in $q$.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from .activations import Activation, Array
from .gaussian import Moments, moments, panel_ends, rule, tanh_sinh_moments
from .graph import Concat, Graph, Sum
from .maps import q_map
from .solution import Solution, UnreachableTargetError, clamp_or_raise

_Q_VALUES = np.geomspace(1e-8, 1e6, 141)


@dataclass(frozen=True)
class EdgePoint:
    """A q value that layers keep, and the weight scale for which they do."""

    q: float
    sigma_w: float


def isometric_eoc(graph: Graph, spread: float, phi: Activation) -> Solution:
    r"""The point of the edge of chaos at which the Jacobian is nearly an isometry.

    Of L layers with orthogonal weights, the squared singular values of the Jacobian have the
    variance $L\,(\mu_2 / \mu_1^2 - 1)$ with $\mu_k = E[\phi'(\sqrt q z)^{2k}]$ (Pennington et al.
    2017, equation 22). It is `spread` at a q value that falls with the depth; that gives σ_b.
    """
    if any(isinstance(graph.nodes[i], Sum | Concat) for i in graph.live):
        raise ValueError(
            "The spread of singular values is known for networks without shortcuts only, and this "
            "one adds or joins branches. Use EOC(sigma_b=...), or shortcut_weight=0."
        )

    def gap(log_q: float) -> float:
        return graph.depth * slope_variance(phi, math.exp(log_q)) - spread

    grid: list[float] = np.log(_Q_VALUES[::2]).tolist()
    first = next((i for i, log_q in enumerate(grid) if gap(log_q) > 0.0), 0)
    if first == 0:
        raise UnreachableTargetError(
            f"{graph.depth} layers of {phi.name} have no Jacobian whose squared singular values "
            f"have the variance {spread:g}, at any q value. Use tanh or erf, which are linear only "
            "around zero; for ReLU, weights of distribution='looks_linear' are an isometry."
        )
    log_q = float(brentq(gap, grid[first - 1], grid[first], xtol=1e-14, rtol=1e-15))
    q = np.exp(np.array([log_q]))
    variance = max(float(_bias_variance(q, _moments_of_q(phi, q))[0]), 0.0)
    if edge_of_chaos(phi, math.sqrt(variance)) is None:
        raise UnreachableTargetError(
            f"{phi.name} has no edge of chaos at q = {q[0]:.3g}, where its Jacobian has the spread "
            f"{spread:g}. Use tanh or erf, or EOC(sigma_b=...)."
        )
    found = eoc(math.sqrt(variance), phi, clamp=False)
    attained = tanh_sinh_conditions(phi, EdgePoint(found.q, found.sigma_w), found.sigma_b)
    attained["spread"] = graph.depth * slope_variance(phi, found.q, halvings=1)
    return found.with_residuals({**found.targets, "spread": spread}, attained)


def slope_variance(phi: Activation, q: float, halvings: int = 0) -> float:
    r"""The relative variance of $\phi'(\sqrt q z)^2$; for ReLU, which is on or off, 1.

    >>> from skipless.core.activations import activation
    >>> round(slope_variance(activation("relu"), 2.0), 12)
    1.0
    """
    s = math.sqrt(q)
    z, w = rule(panel_ends(phi, s), halvings=halvings)
    square = phi.slope(s * z) ** 2
    return float(w @ (square / (w @ square) - 1.0) ** 2)


def eoc(sigma_b: float, phi: Activation, clamp: bool) -> Solution:
    """φ as it is, with the weights that put it on the edge of chaos."""
    point = edge_of_chaos(phi, sigma_b)
    if point is None:
        if (nearest := nearest_bias(phi, sigma_b)) is None:
            raise UnreachableTargetError(
                f"{phi.name} has no edge of chaos: at no sigma_b do its layers have C'(1) = 1 at a "
                "stable q value. Use TAT or DKS, which transform the activation, or another "
                "activation."
            )
        why = (
            f"no sigma_w gives {phi.name} C'(1) = 1 at a stable q value. "
            "Change sigma_b, use TAT or DKS"
        )
        sigma_b = clamp_or_raise(clamp, "sigma_b", sigma_b, nearest, why)
        point = edge_of_chaos(phi, sigma_b)
        assert point is not None
    found = replace(Solution.of(phi), sigma_w=point.sigma_w, sigma_b=sigma_b, q=point.q)
    targets = {"Q(q)/q": 1.0, "C'(1)": 1.0}
    return found.with_residuals(targets, tanh_sinh_conditions(phi, point, sigma_b))


def edge_of_chaos(activation: Activation, sigma_b: float) -> EdgePoint | None:
    r"""The edge of chaos at `sigma_b` with a q value to which the layers converge, or None.

    Of several, it is the one to which q converges fastest. With φ(0) = 0 and σ_b = 0, q may tend to
    0, where σ_w = 1/|φ′(0)|.

    >>> from skipless.core.activations import activation
    >>> edge_of_chaos(activation("tanh"), 0.0)
    EdgePoint(q=0.0, sigma_w=1.0)
    """
    if activation.degree == 1.0:  # with a bias, q would grow by σ_b² in every layer
        return EdgePoint(1.0, q_map(activation, 1.0) ** -0.5) if sigma_b == 0.0 else None
    grid = _grid(activation)
    surplus = _bias_variance(_Q_VALUES, grid) - sigma_b * sigma_b  # inf where ** would raise
    stable = _q_slope(grid) <= 1.0
    found: list[tuple[float, EdgePoint]] = []
    # Where φ is linear around zero, the surplus there is rounding error.
    clear = np.abs(surplus) > 1e-12 * _Q_VALUES
    crossing = (surplus[:-1] * surplus[1:] <= 0.0) & (clear[:-1] | clear[1:])
    for i in np.flatnonzero(crossing & (stable[:-1] | stable[1:])):
        q = _root(activation, sigma_b, *np.log(_Q_VALUES[i : i + 2]))
        if q is None:
            continue
        m = _moments_of_q(activation, np.asarray([q]))
        point = EdgePoint(q, float((q / (m.variance + m.excess)[0]) ** 0.5))
        slope = abs(float(_q_slope(m)[0]))
        # They differ where all of φ(√q z) is far out in the tails.
        attained = tanh_sinh_conditions(activation, point, sigma_b).values()
        if slope < 1.0 - 1e-10 and all(abs(value - 1.0) < 1e-11 for value in attained):
            found.append((slope, point))
    if found:
        return min(found, key=lambda pair: pair[0])[1]
    return _at_zero(activation) if sigma_b == 0.0 else None


def nearest_bias(activation: Activation, sigma_b: float) -> float | None:
    """The σ_b nearest to `sigma_b` at which the activation has an edge of chaos, or None."""
    if activation.degree == 1.0 or _at_zero(activation) is not None:
        return 0.0
    q, best = _Q_VALUES, None
    for _ in range(3):  # the grid, and then twice a finer one around the nearest
        m = _moments_of_q(activation, q)
        variance = _bias_variance(q, m)
        good = np.flatnonzero((variance >= 0.0) & (np.abs(_q_slope(m)) < 1.0))
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


def tanh_sinh_conditions(
    activation: Activation, point: EdgePoint, sigma_b: float
) -> dict[str, float]:
    """Q(q)/q and C'(1) at `point`, by the second quadrature; their limits where q = 0."""
    if point.q == 0.0:
        limit = point.sigma_w**2 * _energy_at_zero(activation)
        return {"Q(q)/q": limit, "C'(1)": limit}
    m = tanh_sinh_moments(activation, math.sqrt(point.q), 0.0)
    kept = point.sigma_w**2 * float(m.variance + m.mean**2) + sigma_b**2
    slope = point.sigma_w**2 * float(m.variance + m.excess) / point.q
    return {"Q(q)/q": kept / point.q, "C'(1)": slope}


def _at_zero(activation: Activation) -> EdgePoint | None:
    if float(activation(0.0)) != 0.0 or (energy := _energy_at_zero(activation)) == 0.0:
        return None
    # q = 0 is stable if Q(q) < q; if φ is linear around zero, that shows only farther out.
    converges = all(q_map(activation, q) <= q * energy * (1.0 + 1e-14) for q in (1e-4, 1e-2, 1.0))
    return EdgePoint(0.0, energy**-0.5) if converges else None


def _energy_at_zero(activation: Activation) -> float:
    """The limit of E[φ′(√q z)²] at q = 0: half of it from either side of the origin."""
    return float(np.mean(activation.slope(np.array([-1e-150, 1e-150])) ** 2))


def _root(activation: Activation, sigma_b: float, low: float, high: float) -> float | None:
    def gap(log_q: float) -> float:
        q = np.exp(np.asarray([log_q]))
        return float(_bias_variance(q, _moments_of_q(activation, q))[0]) - sigma_b**2

    if gap(low) * gap(high) > 0.0:  # where φ is linear, the signs on the grid are noise
        return None
    return math.exp(float(brentq(gap, low, high, xtol=1e-15, rtol=1e-15)))


def _moments_of_q(activation: Activation, q: Array) -> Moments:
    """Moments of φ(√q z)."""
    return moments(activation, np.sqrt(q), np.zeros_like(q))


@lru_cache(maxsize=64)
def _grid(activation: Activation) -> Moments:
    return _moments_of_q(activation, _Q_VALUES)


def _q_slope(m: Moments) -> Array:
    """Slope of the layer's Q map; q is stable where its size is below 1."""
    with np.errstate(invalid="ignore"):
        return (m.variance + m.imbalance + m.mean * m.tilt) / (m.variance + m.excess)


def _bias_variance(q: Array, m: Moments) -> Array:
    """The σ_b² with which layers keep q: q - E[φ²] / E[φ′²], without subtracting large numbers."""
    with np.errstate(invalid="ignore"):  # where φ(√q z) underflows to zero
        return q * (m.excess - m.mean**2) / (m.variance + m.excess)
