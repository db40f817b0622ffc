"""solve(graph, method, activation) -> Solution: the activation that shapes a network's kernel."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import assert_never

from scipy.optimize import brentq

from .activations import Activation
from .activations import activation as look_up
from .edge import eoc
from .graph import Activation as ActivationNode
from .graph import Graph
from .methods import DKS, EOC, TAT, Method
from .network import max_slope, propagate
from .rectifier import dks_leaky_relu, dks_relu, tat_leaky_relu
from .smooth import dks_smooth, tat_smooth
from .solution import Solution


def solve(
    graph: Graph,
    method: Method = TAT(),  # noqa: B008 - frozen, so that sharing it is safe
    activation: str | Activation = "leaky_relu",
    *,
    clamp: bool = False,
) -> Solution:
    r"""The activation and the initial variances with which `graph` meets the targets of `method`.

    Of several solutions it takes the one with the most stable Q map (`curves.points` says how).
    Its conditions are checked by a second quadrature, to 1e-10, before it is returned. If no
    solution exists, `UnreachableTargetError` says what can be reached; with `clamp=True` the
    nearest target within reach is taken instead, with a `ClampedTargetWarning`.

    A TReLU network of 100 layers:

    >>> solution = solve(Graph.chain(100), TAT(eta=0.9))
    >>> solution.targets["mu0"], solution.largest_residual < 1e-10
    (0.9, True)
    """
    _demand_kinds(graph, method)
    phi = look_up(activation)
    if graph.depth == 0:
        raise ValueError(
            f"{type(method).__name__} was asked to shape a network, but no activation node of this "
            "graph leads to its output. Give a graph with at least one."
        )
    if not (phi.degree == 1.0 and isinstance(method, TAT | EOC)):
        _demand_unit_q(graph, phi)
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
        case EOC(sigma_b=sigma_b):
            return eoc(sigma_b, phi, clamp)
        case _:
            assert_never(method)


def _demand_kinds(graph: object, method: object) -> None:
    """Refuse what is no graph or no method, with the words that were probably meant."""
    if not isinstance(graph, Graph):
        raise TypeError(
            f"solve was asked to shape {graph!r}, but it takes a Graph first. Use Graph.chain(100),"
            " Graph.residual(...) or a GraphBuilder."
        )
    if not isinstance(method, TAT | DKS | EOC):
        raise TypeError(
            f"solve was given {method!r} for a method, but it takes TAT(...), DKS(...) or EOC(...) "
            "second. For instance: solve(graph, TAT(eta=0.9), 'leaky_relu')."
        )


@lru_cache(maxsize=64)
def _slope_for(graph: Graph, zeta: float) -> float:
    """The local C'(1) for which the maximal slope over all subnetworks is `zeta`."""

    def gap(log_slope: float) -> float:
        return math.log(max_slope(graph, math.exp(log_slope))) - math.log(zeta)

    # No path has more than `depth` activations: below this, the slope is too small.
    low = max(0.0, math.log(zeta) / graph.depth * (1.0 - 1e-6) - 1e-15)
    high = 1.5 * math.log(zeta) / graph.depth
    while gap(high) < 0.0:  # from below, for steep slopes overflow in deep networks
        high *= 2.0
    return math.exp(float(brentq(gap, low, high, xtol=1e-300, rtol=1e-15)))


def _demand_unit_q(graph: Graph, phi: Activation) -> None:
    """Refuse a graph whose sums change q: only a homogeneous φ has the same C map at every q."""
    if (found := _first_other_q(graph)) is not None:
        node, q = found
        where = f" ({node.origin})" if node.origin else ""
        raise ValueError(
            f"{phi.name} was to be shaped at q = 1, but an activation of this graph{where} "
            f"receives q = {q:.6g} from sums that are not normalised. Scale the weights of every "
            "sum so that their squares add up to 1, or use TAT with leaky_relu, which holds at "
            "every q."
        )


@lru_cache(maxsize=64)
def _first_other_q(graph: Graph) -> tuple[ActivationNode, float] | None:
    """The first activation that does not receive q = 1, and what it receives."""
    at = propagate(graph, q_map=lambda q: q, c_map=lambda c, _: c)
    for node in graph.nodes:
        if isinstance(node, ActivationNode) and abs((q := at[node.input].q) - 1.0) > 1e-9:
            return node, q
    return None
