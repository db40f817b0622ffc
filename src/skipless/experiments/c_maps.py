"""C maps of one network under several methods: what `skipless plot` and `make demo` show."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from skipless.core.graph import Activation, Graph
from skipless.core.methods import DKS, EOC, TAT, Method
from skipless.core.network import fold, propagate
from skipless.core.solution import Solution
from skipless.core.solve import solve
from skipless.report.c_maps import CMapCurve


def usual_activation(method: Method) -> str:
    """The activation that the paper mostly pairs with a method."""
    match method:
        case TAT():
            return "leaky_relu"
        case DKS():
            return "softplus"
        case EOC():
            return "relu"
        case _:
            assert_never(method)


def label(method: Method, solution: Solution) -> str:
    """How a figure or a table calls a method with its activation and the target that it met.

    >>> label(TAT(eta=0.95), solve(Graph.chain(50), TAT(eta=0.95)))
    'TAT leaky_relu η=0.95'
    """
    symbols = {"mu0": "η", "mu1": "ζ", "mu2": "τ"}
    met = [f"{symbols[k]}={v:.4g}" for k, v in solution.targets.items() if k in symbols]
    target = met[0] if met else f"σ_b={solution.sigma_b:g}"
    return f"{type(method).__name__} {solution.activation} {target}"


def c_map_curve(
    graph: Graph, method: Method, activation: str | None = None, *, clamp: bool = False
) -> tuple[Solution, CMapCurve]:
    """The solution and its local C map, global C map, and c value behind every activation."""
    solution = solve(graph, method, activation or usual_activation(method), clamp=clamp)
    return solution, solved_curve(graph, method, solution)


def solved_curve(graph: Graph, method: Method, solution: Solution) -> CMapCurve:
    """The maps of a network whose activation was solved for."""
    c = np.linspace(-1.0, 1.0, 401)
    along = propagate(
        graph, q_map=lambda q: q, c_map=lambda c, _: float(solution.c_map(np.asarray(c)))
    )
    layers = [
        point.c
        for node, point in zip(graph.nodes, along, strict=True)
        if isinstance(node, Activation)
    ]
    return CMapCurve(
        label=label(method, solution),
        c=c,
        local_map=solution.c_map(c),
        global_map=fold(graph, solution.c_map, c),
        layers=np.array([0.0, *layers]),
    )
