"""solve(graph, method, activation) -> Solution: the activation that shapes a network's kernel.

The maps of the ReLU family have closed forms; any other φ is shaped by φ̂(x) = γ(φ(αx + β) + δ),
whose solutions `curves` finds.
"""

# pyright: reportUnnecessaryIsInstance=false

import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import assert_never

import numpy as np
from scipy.optimize import brentq

from .activations import Activation, leaky_relu
from .activations import activation as look_up
from .arguments import require_flag
from .curves import (
    DKS_CONDITIONS,
    TAT_CONDITIONS,
    Conditions,
    Transformation,
    nearest_transformation,
    reachable_range,
    transformations,
)
from .edge import eoc, isometric_eoc
from .gaussian import moments, tanh_sinh_moments
from .graph import Fixed, Graph, Measured, Nonlinearity, Product
from .maps import arc_gap
from .network import max_c_value, max_curvature, max_slope, propagate
from .solution import DKS, EOC, TAT, Method, Solution, UnreachableTargetError, clamp_or_raise

# How far q may be from 1 where a smooth φ reads it: factors of deep networks may be of float32.
_UNIT_Q = 1e-5

# What eta is if it is left out: the paper's value, or this share of what plain ReLU reaches, with
# which shallow networks train best (benchmarks/default_eta.py).
_USUAL_ETA, _SHARE = 0.9, 0.8


def tat_leaky_relu(graph: Graph, eta: float | None, clamp: bool) -> Solution:
    r"""TReLU: the negative slope α ≥ 0 with $\mu^0_f = \eta$ (algorithm 1 of the paper)."""

    def c_at_zero(kappa: float) -> float:
        k = kappa / math.pi
        return max_c_value(graph, lambda c: min(1.0, c + k * arc_gap(c)))

    least, most = c_at_zero(0.0), c_at_zero(1.0)  # parts that stay leave the least above zero
    usual = most >= _USUAL_ETA and least <= _USUAL_ETA / 2.0
    default = _USUAL_ETA if usual else least + _SHARE * (most - least)
    target = default if eta is None else eta

    def gap(kappa: float) -> float:
        return _straighten(c_at_zero(kappa)) - _straighten(target)

    note = ""
    if eta is None:
        why = f", {_SHARE:g} of what plain ReLU reaches, as {_USUAL_ETA:g} is out of reach"
        if least > 0.0:
            why = f", {_SHARE:g} of the way from {least:.3g}, which parts that stay alone reach"
        note = f"eta = {target:.3g} by default{'' if usual else why}"
    if most < target:
        note = f"clamped to plain ReLU, as eta = {target:g} is out of reach"
        why = (
            f"plain ReLU, the most that this network can do, has {most:.3f}. Use TAT() (no --eta), "
            f"which takes {default:.3g} here, another eta below {most:.3f}, weaker shortcuts"
        )
        target, kappa = clamp_or_raise(clamp, "C_f(0)", target, most, why, "plain ReLU"), 1.0
    elif target < least:
        note = f"clamped to linear activations, as eta = {target:g} is out of reach"
        why = (
            f"parts of the network that stay as they are alone reach {least:.3f}. Use TAT() (no "
            f"--eta), which takes {default:.3g} here, another eta above that, weaker branches (a "
            "larger shortcut_weight)"
        )
        target, kappa = clamp_or_raise(clamp, "C_f(0)", target, least, why, "linear"), 0.0
    else:
        # c_at_zero rises from zero at kappa = 0, a linear network, to `most` at kappa = 1, ReLU.
        kappa = float(brentq(gap, 0.0, 1.0, xtol=1e-300, rtol=1e-15))
    alpha = negative_slope(kappa)
    gamma = math.sqrt(2.0 / (1.0 + alpha * alpha))
    m = tanh_sinh_moments(leaky_relu(alpha), 1.0, 0.0)
    local = m.conditions(gamma, 0.0)
    # C(0) = κ/π by quadrature, so that μ⁰ does not rest on the closed form alone.
    local["mu0"] = c_at_zero(math.pi * local["C(0)"])
    found = Solution("leaky_relu", negative_slope=alpha, output_scale=gamma, note=note)
    return found.with_residuals({"Q(1)": 1.0, "C'(1)": 1.0, "mu0": target}, local)


def dks_leaky_relu(graph: Graph, zeta: float, slope: float, clamp: bool) -> Solution:
    r"""DKS by the negative slope: with β = 0, $Q'(1) = 1$ always holds.

    With $\kappa = (1-\alpha)^2/(1+\alpha^2)$, $C'(1) = 1/(1-\kappa/\pi)$ then gives α directly.
    The solutions with β ≠ 0 that the paper's footnote allows have a negative slope below zero and
    a more distorted Q map; they meet this curve where both end, at |x|.
    """
    steepest = 1.0 / (1.0 - 2.0 / math.pi)
    if slope > steepest:
        why = (
            f"it needs C'(1) = {slope:.4g} in every layer, but leaky ReLU has at most "
            f"{steepest:.4g}, at negative slope -1. Lower zeta, deepen the network"
        )
        zeta = clamp_or_raise(clamp, "C_f'(1)", zeta, max_slope(graph, steepest), why)
        slope = steepest
    alpha = negative_slope(min(2.0, math.pi * (1.0 - 1.0 / slope)))
    targets = {"Q(1)": 1.0, "Q'(1)": 1.0, "C(0)": 0.0, "C'(1)": slope, "mu1": zeta}
    return _checked(graph, leaky_relu(alpha), targets, 0.0)


def dks_relu(graph: Graph, zeta: float, slope: float, clamp: bool) -> Solution:
    """DKS for ReLU by β, γ and δ; as ReLU is homogeneous, nothing is free for Q'(1) = 1."""
    warnings.warn(
        "DKS cannot give ReLU Q'(1) = 1, since ReLU is homogeneous; the condition is dropped. "
        "Use activation='leaky_relu' to keep it.",
        stacklevel=3,
    )
    relu = look_up("relu")

    def gap(beta: float) -> float:
        m = moments(relu, np.ones(1), np.array([beta]))
        return math.log(float(m.excess[0] / m.variance[0])) - math.log(slope - 1.0)

    # Towards +∞ no input meets the kink and C'(1) falls to 1; towards -∞ the kink is all there is.
    low, high = -5.0, 6.0
    if gap(low) < 0.0 or gap(high) > 0.0:
        beta = low if gap(low) < 0.0 else high
        reached = 1.0 + (slope - 1.0) * math.exp(gap(beta))
        why = (
            f"it needs C'(1) = {slope:.6g} in every layer, but shifted ReLU only reaches "
            f"{reached:.6g}. Change the target or the depth"
        )
        zeta = clamp_or_raise(clamp, "C_f'(1)", zeta, max_slope(graph, reached), why)
        slope = reached
    else:
        beta = float(brentq(gap, low, high, xtol=1e-14, rtol=1e-15))
    targets = {"Q(1)": 1.0, "C(0)": 0.0, "C'(1)": slope, "mu1": zeta}
    return _checked(graph, relu, targets, beta)


def negative_slope(kappa: float) -> float:
    """The α in [-1, 1] with (1 - α)² / (1 + α²) = `kappa`, from 1 at 0 to -1 at 2."""
    return (1.0 - kappa) / (1.0 + math.sqrt(kappa * (2.0 - kappa)))


def _straighten(c: float) -> float:
    """1/√(1 - c): nearly linear in κ, as in the proof of proposition 3, so roots converge fast."""
    return 1.0 / math.sqrt(max(1.0 - c, 1e-18))


def tat_smooth(graph: Graph, tau: float, phi: Activation, clamp: bool) -> Solution:
    r"""$Q(1) = Q'(1) = C'(1) = 1$ and $\mu^2_f = \tau$ (equations 14 to 16, algorithm 2)."""
    if phi.has_slope_jump:
        raise UnreachableTargetError(
            f"TAT cannot shape {phi.name} by tau: its slope jumps, so C''(1) is infinite at any "
            "scale and shift. Use activation='leaky_relu', which TAT shapes by eta, or a smooth "
            "activation."
        )
    curvature = _curvature_for(graph, tau)
    globally: Callable[[float], float] = lambda r: max_curvature(graph, r)
    point, why = _best(phi, TAT_CONDITIONS, curvature, "C''(1)", globally)
    if why:
        tau = clamp_or_raise(clamp, "C_f''(1)", tau, globally(point.reading), why)
        curvature = _curvature_for(graph, tau)
    targets = {"Q(1)": 1.0, "Q'(1)": 1.0, "C'(1)": 1.0, "C''(1)": curvature, "mu2": tau}
    return _checked(graph, phi, targets, point.beta, point.alpha, (point.gamma, point.delta))


def _curvature_for(graph: Graph, tau: float) -> float:
    """The local C''(1) for which the maximal curvature over all subnetworks is `tau`."""
    if (least := max_curvature(graph, 0.0)) == 0.0:
        return tau / max_curvature(graph, 1.0)
    _require_room("C_f''(1)", tau, least, "tau")
    gap: Callable[[float], float] = lambda k: max_curvature(graph, k) - tau
    return float(brentq(gap, 0.0, tau / max_curvature(graph, 1.0) + tau, xtol=1e-15, rtol=1e-15))


def _require_room(name: str, target: float, least: float, parameter: str) -> None:
    """Raise if products and parts that stay as they are alone exceed the target."""
    if target <= least:
        raise UnreachableTargetError(
            f"{name} = {target:g} is out of reach: the products of this network, and parts that "
            f"stay as they are, alone have {least:.4g}. Use {parameter} above that, TAT() with "
            "leaky_relu, or weaker branches (a larger shortcut_weight)."
        )


def dks_smooth(graph: Graph, zeta: float, slope: float, phi: Activation, clamp: bool) -> Solution:
    r"""$Q(1) = Q'(1) = 1$, $C(0) = 0$ and $\mu^1_f = \zeta$."""
    globally: Callable[[float], float] = lambda r: max_slope(graph, 1.0 + r)
    point, why = _best(phi, (DKS_CONDITIONS,), slope - 1.0, "C'(1) - 1", globally)
    if why:
        zeta = clamp_or_raise(clamp, "C_f'(1)", zeta, globally(point.reading), why)
        slope = 1.0 + point.reading
    targets = {"Q(1)": 1.0, "Q'(1)": 1.0, "C(0)": 0.0, "C'(1)": slope, "mu1": zeta}
    return _checked(graph, phi, targets, point.beta, point.alpha, (point.gamma, point.delta))


def _best(
    phi: Activation,
    families: tuple[Conditions, ...],
    target: float,
    reading: str,
    globally: Callable[[float], float],
) -> tuple[Transformation, str]:
    """The best solution with reading `target`; or the nearest to it, and why there is none."""
    target = max(target, sys.float_info.min)  # which may have been rounded to 0
    method = families[0].name
    if phi.degree is not None:
        raise UnreachableTargetError(
            f"{method} cannot shape {phi.name}: it is homogeneous, φ(sx) = s^{phi.degree:g} φ(x), "
            "so the input scale acts like the output scale, and there are fewer parameters than "
            "conditions. Use leaky_relu, which is shaped by its negative slope, or another "
            "activation."
        )
    for point in (point for c in families for point in transformations(phi, c, target)):
        return point, ""
    spans = [span for conditions in families if (span := reachable_range(phi, conditions))]
    if not spans:
        raise UnreachableTargetError(
            f"{method} cannot shape {phi.name}: no input scale and shift satisfy Q(1) = 1, "
            "Q'(1) = 1 and the C map conditions, for any target. Use another activation."
        )
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    ends = [point for c in families if (point := nearest_transformation(phi, c, target))]
    why = (
        f"it needs {reading} = {target:.4g} in every layer, but {phi.name} reaches {low:.3g} to "
        f"{high:.4g}, which is {globally(low):.4g} to {globally(high):.4g} in this network. "
        "Change the target, the depth or the activation"
    )
    return min(ends, key=lambda point: abs(math.log(point.reading / target))), why


def _checked(
    graph: Graph,
    phi: Activation,
    targets: Mapping[str, float],
    beta: float,
    alpha: float | None = None,
    output: tuple[float, float] | None = None,
) -> Solution:
    """φ̂ with these constants, if a second quadrature confirms all `targets`.

    Without `output`, γ and δ are those with which Q(1) = 1 and C(0) = 0.
    """
    m = tanh_sinh_moments(phi, 1.0 if alpha is None else alpha, beta)
    gamma, delta = output or (float(m.variance) ** -0.5, -float(m.mean))
    attained = m.conditions(gamma, delta)
    if "mu1" in targets:
        attained["mu1"] = max_slope(graph, attained["C'(1)"])
    if "mu2" in targets:
        attained["mu2"] = max_curvature(graph, attained["C''(1)"])
    found = replace(
        Solution.of(phi),
        input_scale=alpha,
        input_shift=beta,
        output_scale=gamma,
        output_shift=delta,
    )
    return found.with_residuals(targets, attained)


def solve(
    graph: Graph,
    method: Method = TAT(),  # noqa: B008 - frozen, so that sharing it is safe
    activation: str | Activation = "leaky_relu",
    *,
    clamp: bool = False,
) -> Solution:
    r"""The activation and the initial variances with which `graph` meets the targets of `method`.

    Of several solutions it takes the one with the most stable Q map (`core.curves` says how).
    A second quadrature checks its conditions, to 1e-10, before it is returned.

    Args:
        graph: the network, from `trace`, `Graph.chain(100)`, `Graph.residual(...)` or a
            `GraphBuilder`.
        method: `TAT(eta=0.9, tau=0.3)`, `DKS(zeta=1.5)` or `EOC(sigma_b=0.0)`.
        activation: φ, by name or as an `Activation`. TAT shapes leaky ReLU by eta, smooth φ by tau.
        clamp: use the nearest reachable target, with a `ClampedTargetWarning`, if the target is
            out of reach.

    Raises:
        UnreachableTargetError: no solution exists; the message says what is reachable.

    A TReLU network of 100 layers:

    >>> solution = solve(Graph.chain(100), TAT(eta=0.9))
    >>> solution.targets["mu0"], solution.largest_residual < 1e-10
    (0.9, True)
    """
    if not isinstance(graph, Graph):
        found = type(graph).__name__ if "\n" in repr(graph) else repr(graph)  # such as a model
        raise TypeError(
            f"solve expects a Graph first, got {found}. Use Graph.chain(100), "
            "Graph.residual(...), a GraphBuilder, or trace(model, example)."
        )
    if not isinstance(method, TAT | DKS | EOC):
        raise TypeError(
            f"The method must be TAT(...), DKS(...) or EOC(...), got {method!r} "
            "(for example TAT(eta=0.9))"
        )
    require_flag("clamp", clamp)
    phi = look_up(activation)
    if graph.depth == 0:
        parts = [node.origin for node in graph.nodes if isinstance(node, Measured)]
        why = f" What is in {', '.join(parts)} is measured as a whole; strict=True says why."
        raise ValueError(
            f"{type(method).__name__} needs a graph with an activation on a path to its output, "
            f"got {graph!r}.{why if parts else ''}"
        )
    # Only a homogeneous φ has the same C map at every q, and only DKS shifts it.
    q_free = phi.degree == 1.0 and isinstance(method, TAT | EOC)
    if not q_free and (found := _first_off_unit_q(graph)):
        node, q = found
        where = f" ({node.origin})" if node.origin else ""
        raise ValueError(
            f"{phi.name} needs q = 1, but an activation{where} gets q = {q:.6g} from sums that are "
            "not normalised. Scale the weights of every sum so that their squares add up to 1, or "
            "use TAT with leaky_relu, which works at every q."
        )
    if isinstance(method, EOC) and phi.degree != 1.0 and not _is_plain(graph):
        raise UnreachableTargetError(
            f"EOC gives the layers of {phi.name} a q value of their own, which products and gates "
            "do not keep. Use EOC with relu or leaky_relu, TAT or DKS."
        )
    match method:
        case TAT(eta=eta, tau=tau):
            if phi.negative_slope is not None:
                return tat_leaky_relu(graph, eta, clamp)
            return tat_smooth(graph, tau, phi, clamp)
        case DKS(zeta=zeta):
            slope = _slope_for(graph, zeta)
            if phi.negative_slope is not None:
                return dks_leaky_relu(graph, zeta, slope, clamp)
            if phi is look_up("relu"):
                return dks_relu(graph, zeta, slope, clamp)
            return dks_smooth(graph, zeta, slope, phi, clamp)
        case EOC(sigma_b=sigma_b, spread=spread):
            if spread is not None:
                return isometric_eoc(graph, spread, phi)
            return eoc(sigma_b, phi, clamp)
        case _:
            assert_never(method)


@lru_cache(maxsize=64)
def _slope_for(graph: Graph, zeta: float) -> float:
    """The local C'(1) for which the maximal slope over all subnetworks is `zeta`."""

    def gap(log_slope: float) -> float:
        return math.log(max_slope(graph, math.exp(log_slope))) - math.log(zeta)

    own = any(isinstance(node, Measured | Product | Fixed) for node in graph.nodes)
    if own:
        _require_room("C_f'(1)", zeta, max_slope(graph, 1.0), "zeta")
    # No path has more than `depth` activations: a smaller slope is too small.
    low = 0.0 if own else max(0.0, math.log(zeta) / graph.depth * (1.0 - 1e-6) - 1e-15)
    high = 1.5 * math.log(zeta) / graph.depth
    while gap(high) < 0.0:  # from below, since steep slopes overflow in deep networks
        high *= 2.0
    return math.exp(float(brentq(gap, low, high, xtol=1e-300, rtol=1e-15)))


def _is_plain(graph: Graph) -> bool:
    """Whether nothing in `graph` is a product or a fixed function."""
    return not any(isinstance(node, Product | Fixed) for node in graph.nodes)


@lru_cache(maxsize=64)
def _first_off_unit_q(graph: Graph) -> tuple[Nonlinearity, float] | None:
    """The first activation whose input does not have q = 1, and that q."""
    at = propagate(graph, q_map=lambda q: q, c_map=lambda c, _: c)
    for node in graph.nodes:
        if isinstance(node, Nonlinearity) and abs((q := at[node.input].q) - 1.0) > _UNIT_Q:
            return node, q
    return None
