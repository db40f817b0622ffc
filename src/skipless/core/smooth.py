"""TAT and DKS by φ̂(x) = γ(φ(αx + β) + δ), for any φ that is not of the ReLU family."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from .activations import Activation
from .conditions import DKS_CONDITIONS, TAT_CONDITIONS, Conditions
from .curves import Point, nearest, points, reachable
from .graph import Graph
from .moments import confirmed_moments
from .network import max_curvature, max_slope
from .solution import Solution, UnreachableTargetError, give_way


def tat_smooth(graph: Graph, tau: float, phi: Activation, clamp: bool) -> Solution:
    r"""$Q(1) = Q'(1) = C'(1) = 1$ and $\mu^2_f = \tau$ (equations 14 to 16, algorithm 2)."""
    if phi.has_slope_jump:
        raise UnreachableTargetError(
            f"TAT by tau was asked for {phi.name}, but its slope jumps, so that C''(1) is infinite "
            "at any scale and shift. Use activation='leaky_relu', which TAT shapes by eta, or a "
            "smooth activation."
        )
    multiple = max_curvature(graph, 1.0)
    point = _best(phi, TAT_CONDITIONS, tau / multiple)
    if point is None:
        span = _span(phi, TAT_CONDITIONS, "TAT")
        point = _nearest(phi, TAT_CONDITIONS, tau / multiple)
        why = _why(phi, "C''(1)", tau / multiple, span, lambda r: multiple * r)
        tau = give_way(clamp, "C_f''(1)", tau, multiple * point.reading, why)
    local = _conditions(phi, point)
    local["mu2"] = max_curvature(graph, local["C''(1)"])
    targets = {"Q(1)": 1.0, "Q'(1)": 1.0, "C'(1)": 1.0, "C''(1)": tau / multiple, "mu2": tau}
    return _solution(phi, point).checked(targets, local)


def dks_smooth(graph: Graph, zeta: float, slope: float, phi: Activation, clamp: bool) -> Solution:
    r"""$Q(1) = Q'(1) = 1$, $C(0) = 0$ and $\mu^1_f = \zeta$."""
    families = (DKS_CONDITIONS,)
    point = _best(phi, families, slope - 1.0)
    if point is None:
        span = _span(phi, families, "DKS")
        point = _nearest(phi, families, slope - 1.0)
        globally: Callable[[float], float] = lambda r: max_slope(graph, 1.0 + r)
        why = _why(phi, "C'(1) - 1", slope - 1.0, span, globally)
        zeta = give_way(clamp, "C_f'(1)", zeta, globally(point.reading), why)
        slope = 1.0 + point.reading
    local = _conditions(phi, point)
    local["mu1"] = max_slope(graph, local["C'(1)"])
    targets = {"Q(1)": 1.0, "Q'(1)": 1.0, "C(0)": 0.0, "C'(1)": slope, "mu1": zeta}
    return _solution(phi, point).checked(targets, local)


def _best(phi: Activation, families: tuple[Conditions, ...], target: float) -> Point | None:
    if phi.degree is not None:
        return None
    candidates = (point for c in families for point in points(phi, c, target))
    return next(candidates, None)


def _span(phi: Activation, families: tuple[Conditions, ...], method: str) -> tuple[float, float]:
    if phi.degree is not None:
        raise UnreachableTargetError(
            f"{method} was asked for {phi.name}, but it is homogeneous, φ(sx) = s^{phi.degree:g} "
            "φ(x): an input scale only acts like an output scale, and one condition more is left "
            "than free parameters. Use leaky_relu, which is shaped by its negative slope, or "
            "another activation."
        )
    spans = [span for conditions in families if (span := reachable(phi, conditions))]
    if not spans:
        raise UnreachableTargetError(
            f"{method} was asked for {phi.name}, but no input scale and shift give it Q(1) = 1 and "
            "Q'(1) = 1 together with the C map conditions, for any target. Use another activation."
        )
    return min(low for low, _ in spans), max(high for _, high in spans)


def _nearest(phi: Activation, families: tuple[Conditions, ...], target: float) -> Point:
    """The solution whose reading is nearest to a `target` that has none."""
    ends = [point for c in families if (point := nearest(phi, c, target))]
    return min(ends, key=lambda point: abs(math.log(point.reading / target)))


def _why(
    phi: Activation,
    reading: str,
    needed: float,
    span: tuple[float, float],
    globally: Callable[[float], float],
) -> str:
    low, high = span
    return (
        f"it needs {reading} = {needed:.4g} in every layer, and scale and shift give {phi.name} "
        f"from {low:.3g} to {high:.4g}, which is {globally(low):.4g} to {globally(high):.4g} in "
        "this network. Change the target, the depth or the activation"
    )


def _conditions(phi: Activation, point: Point) -> dict[str, float]:
    """Every local condition at `point`, by the second quadrature."""
    m = confirmed_moments(phi, point.alpha, point.beta)
    return m.conditions(point.gamma, point.delta)


def _solution(phi: Activation, point: Point) -> Solution:
    return replace(
        Solution.of(phi),
        input_scale=point.alpha,
        input_shift=point.beta,
        output_scale=point.gamma,
        output_shift=point.delta,
    )
