"""C maps of one network under several methods: what `skipless plot` and `make demo` show."""

from __future__ import annotations

import numpy as np

from skipless.core.activations import Array
from skipless.core.graph import Activation, Graph
from skipless.core.methods import DKS, EOC, TAT, Method
from skipless.core.network import fold, propagate
from skipless.core.solution import Solution
from skipless.core.solve import solve
from skipless.report.c_maps import CMapCurve

_SYMBOLS = {"eta": "η", "tau": "τ", "zeta": "ζ", "sigma_b": "σ_b"}


def usual_activation(method: Method) -> str:
    """The activation that the paper mostly pairs with a method."""
    match method:
        case TAT():
            return "leaky_relu"
        case DKS():
            return "softplus"
        case EOC():
            return "relu"


def label(method: Method, activation: str) -> str:
    """How a figure or a table calls a method with its activation and target.

    >>> label(TAT(eta=0.9), "leaky_relu"), label(DKS(zeta=1.5), "tanh")
    ('TAT leaky_relu η=0.9', 'DKS tanh ζ=1.5')
    """
    match method:
        case TAT(eta=eta, tau=tau):
            target = f"η={eta:g}" if activation == "leaky_relu" else f"τ={tau:g}"
        case DKS(zeta=zeta):
            target = f"ζ={zeta:g}"
        case EOC(sigma_b=sigma_b):
            target = f"σ_b={sigma_b:g}"
    return f"{type(method).__name__} {activation} {target}"


def c_map_curve(
    graph: Graph, method: Method, activation: str | None = None, *, clamp: bool = False
) -> tuple[Solution, CMapCurve]:
    """The solution and its local C map, global C map, and c value behind every activation."""
    name = activation or usual_activation(method)
    solution = solve(graph, method, name, clamp=clamp)
    c = np.linspace(-1.0, 1.0, 401)
    along = propagate(
        graph, q_map=lambda q: q, c_map=lambda c, _: float(solution.c_map(np.asarray(c)))
    )
    layers = [
        point.c
        for node, point in zip(graph.nodes, along, strict=True)
        if isinstance(node, Activation)
    ]
    curve = CMapCurve(
        label=label(method, name),
        c=c,
        local_map=solution.c_map(c),
        global_map=_global(graph, solution, c),
        layers=np.array([0.0, *layers]),
    )
    return solution, curve


def _global(graph: Graph, solution: Solution, c: Array) -> Array:
    return fold(graph, solution.c_map, c)
