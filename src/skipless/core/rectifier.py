"""TAT and DKS for the ReLU family, whose maps have closed forms."""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy.optimize import brentq

from .activations import activation
from .graph import Graph
from .maps import arc_gap
from .moments import Moments, confirmed_moments, moments
from .network import max_c_value, max_slope
from .solution import Solution, give_way


def tat_leaky_relu(graph: Graph, eta: float, clamp: bool) -> Solution:
    r"""TReLU: the negative slope α ≥ 0 with $\mu^0_f = \eta$ (algorithm 1 of the paper)."""

    def c_at_zero(kappa: float) -> float:
        k = kappa / math.pi
        return max_c_value(graph, lambda c: min(1.0, c + k * arc_gap(c)))

    def gap(kappa: float) -> float:
        return _straightened(c_at_zero(kappa)) - _straightened(eta)

    if (most := c_at_zero(1.0)) < eta:
        why = (
            f"{graph.depth} activation{'s' * (graph.depth > 1)} on the longest path give"
            f"{'s' * (graph.depth == 1)} at most {most:.3f} (plain ReLU). "
            f"Lower eta below that, deepen the network (a chain needs {_relu_depth(eta)} "
            "activations), lower its shortcut weights"
        )
        eta, kappa = give_way(clamp, "C_f(0)", eta, most, why), 1.0
    else:
        # c_at_zero rises from zero at kappa = 0, a linear network, to `most` at kappa = 1, ReLU.
        kappa = float(brentq(gap, 0.0, 1.0, xtol=1e-300, rtol=1e-15))
    alpha = negative_slope(kappa)
    gamma = math.sqrt(2.0 / (1.0 + alpha * alpha))
    m = confirmed_moments(activation("leaky_relu", alpha), 1.0, 0.0)
    local = m.conditions(gamma, 0.0)
    # C(0) = κ/π by quadrature, so that μ⁰ does not rest on the closed form alone.
    local["mu0"] = c_at_zero(math.pi * local["C(0)"])
    found = Solution("leaky_relu", negative_slope=alpha, output_scale=gamma)
    return found.checked({"Q(1)": 1.0, "C'(1)": 1.0, "mu0": eta}, local)


def dks_leaky_relu(graph: Graph, zeta: float, slope: float, clamp: bool) -> Solution:
    r"""DKS by the negative slope: with β = 0, $Q'(1) = 1$ holds of itself.

    With $\kappa = (1-\alpha)^2/(1+\alpha^2)$, $C'(1) = 1/(1-\kappa/\pi)$ then gives α at once.
    The solutions with β ≠ 0 that the paper's footnote allows have a negative slope below zero and
    a more distorted Q map; they meet this curve where both end, at |x|.
    """
    steepest = 1.0 / (1.0 - 2.0 / math.pi)
    if slope > steepest:
        why = (
            f"it needs C'(1) = {slope:.4g} in every layer, and the steepest map that a leaky ReLU "
            f"has, at negative slope -1, is {steepest:.4g}. Lower zeta, deepen the network"
        )
        zeta = give_way(clamp, "C_f'(1)", zeta, max_slope(graph, steepest), why)
        slope = steepest
    alpha = negative_slope(min(2.0, math.pi * (1.0 - 1.0 / slope)))
    m = confirmed_moments(activation("leaky_relu", alpha), 1.0, 0.0)
    found = Solution(
        "leaky_relu",
        negative_slope=alpha,
        input_shift=0.0,
        output_scale=float(m.variance) ** -0.5,
        output_shift=-float(m.mean),
    )
    targets = {"Q(1)": 1.0, "Q'(1)": 1.0, "C(0)": 0.0, "C'(1)": slope, "mu1": zeta}
    return found.checked(targets, _dks_attained(graph, found, m))


def dks_relu(graph: Graph, zeta: float, slope: float, clamp: bool) -> Solution:
    """DKS for ReLU by β, γ and δ; its homogeneity leaves no freedom for Q'(1) = 1."""
    warnings.warn(
        "DKS cannot give ReLU Q'(1) = 1, for ReLU is homogeneous; the condition is dropped. "
        "Use activation='leaky_relu' to keep it.",
        stacklevel=3,
    )
    relu = activation("relu")

    def gap(beta: float) -> float:
        m = moments(relu, np.ones(1), np.array([beta]))
        return math.log(float(m.excess[0] / m.variance[0])) - math.log(slope - 1.0)

    # Towards +∞ the kink is never met and C'(1) falls to 1; towards -∞ it is all there is.
    low, high = -5.0, 6.0
    if gap(low) < 0.0 or gap(high) > 0.0:
        beta = low if gap(low) < 0.0 else high
        reached = 1.0 + (slope - 1.0) * math.exp(gap(beta))
        why = (
            f"it needs C'(1) = {slope:.6g} in every layer, and a shift of ReLU that meets its kink "
            f"at all gives no more than {reached:.6g}. Change the target or the depth"
        )
        zeta, slope = give_way(clamp, "C_f'(1)", zeta, max_slope(graph, reached), why), reached
    else:
        beta = float(brentq(gap, low, high, xtol=1e-14, rtol=1e-15))
    m = confirmed_moments(relu, 1.0, beta)
    found = Solution(
        "relu",
        input_shift=beta,
        output_scale=float(m.variance) ** -0.5,
        output_shift=-float(m.mean),
    )
    targets = {"Q(1)": 1.0, "C(0)": 0.0, "C'(1)": slope, "mu1": zeta}
    return found.checked(targets, _dks_attained(graph, found, m))


def negative_slope(kappa: float) -> float:
    """The α in [-1, 1] with (1 - α)² / (1 + α²) = `kappa`, from 1 at 0 to -1 at 2."""
    return (1.0 - kappa) / (1.0 + math.sqrt(kappa * (2.0 - kappa)))


def _straightened(c: float) -> float:
    """1/√(1 - c): nearly linear in κ, as in the proof of proposition 3, so that roots come fast."""
    return 1.0 / math.sqrt(max(1.0 - c, 1e-18))


def _relu_depth(eta: float) -> str:
    """How many ReLU layers in a row reach C_f(0) = `eta`, in words."""
    c = 0.0
    for depth in range(1, 100_001):
        c += arc_gap(c) / math.pi
        if c >= eta:
            return str(depth)
    return "more than 100,000"


def _dks_attained(graph: Graph, found: Solution, m: Moments) -> dict[str, float]:
    assert found.output_scale is not None
    assert found.output_shift is not None
    local = m.conditions(found.output_scale, found.output_shift)
    return local | {"mu1": max_slope(graph, local["C'(1)"])}
