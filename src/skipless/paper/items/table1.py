"""Table 1: the conditions that each method sets, and that its solutions meet.

    skipless reproduce table1 --scale cpu

The conditions are computed from the shaped activations, by quadrature, and carried through a chain
of layers; the solver's own residuals are not used.
"""

import math

import numpy as np

from skipless.core.graph import Graph
from skipless.core.maps import c_map_curvature, c_map_slope, q_map, q_map_slope
from skipless.core.network import fold
from skipless.core.solution import DKS, EOC, TAT, Method, Solution
from skipless.core.solve import solve
from skipless.paper.item import Claim, Computed, Item, Judgement, Results, Value
from skipless.paper.scales import ScaleName

DEPTH = 100
ZETA, TAU, ETA = 1.5, 0.3, 0.9
METHODS: dict[str, tuple[Method, str]] = {
    "EOC (smooth)": (EOC(sigma_b=0.2), "tanh"),
    "EOC (LReLU)": (EOC(), "relu"),
    "DKS": (DKS(zeta=ZETA), "softplus"),
    "TAT (smooth)": (TAT(tau=TAU), "tanh"),
    "TAT (LReLU)": (TAT(eta=ETA), "leaky_relu"),
}
# Of an EOC network with biases, q is the fixed point of its Q map.
WANTED: dict[str, dict[str, float]] = {
    "EOC (smooth)": {"Q(q∞) / q∞": 1.0, "C'(1)": 1.0},
    "EOC (LReLU)": {"Q(1)": 1.0, "Q(4) / 4": 1.0, "C'(1)": 1.0},
    "DKS": {"Q(1)": 1.0, "Q'(1)": 1.0, "C_f(0)": 0.0, "C_f'(1)": ZETA},
    "TAT (smooth)": {"Q(1)": 1.0, "Q'(1)": 1.0, "C_f'(1)": 1.0, "C_f''(1)": TAU},
    "TAT (LReLU)": {"Q(1)": 1.0, "Q(4) / 4": 1.0, "C_f'(1)": 1.0, "C_f(0)": ETA},
}
TOLERANCE = 1e-8  # of each condition


def compute(scale: ScaleName) -> Computed:
    """Every condition of every method, beside what it should be, and C_f(0) of all of them."""
    values = []
    graph = Graph.chain(20 if scale == "smoke" else DEPTH)
    for name, (method, activation) in METHODS.items():
        solution = solve(graph, method, activation)
        wanted = WANTED[name]
        for condition in dict.fromkeys((*wanted, "C_f(0)")):
            value = _condition(condition, graph, solution)
            values.append(Value(name, condition, float(f"{value:.12g}"), wanted.get(condition)))
    return Computed(tuple(values))


def _condition(name: str, graph: Graph, solution: Solution) -> float:
    # c_map_slope is that of the activation alone; weights and biases change it by this factor.
    mixed = solution.sigma_w**2 * q_map(solution.shaped, solution.q) / solution.q
    slope = mixed * float(c_map_slope(solution.shaped, 1.0, solution.q))
    match name:
        case "Q(1)":
            return solution.q_map(1.0)
        case "Q(q∞) / q∞":
            return solution.q_map(solution.q) / solution.q
        case "Q(4) / 4":
            return solution.q_map(4.0) / 4.0
        case "Q'(1)":
            return solution.sigma_w**2 * q_map_slope(solution.shaped, 1.0)
        case "C_f(0)":
            return float(fold(graph, solution.c_map, np.zeros(1))[0])
        case "C'(1)":
            return slope
        case "C_f'(1)":
            return fold(graph, lambda s: slope * s, 1.0)
        case "C_f''(1)":
            curvature = float(c_map_curvature(solution.shaped, 1.0, solution.q))
            return fold(graph, lambda k: curvature + k, 0.0)
        case _:
            raise KeyError(name)


def _met(results: Results) -> Judgement:
    misses = {
        f"{v.row}, {v.column}": abs(v.value - v.wanted)
        for v in results.values
        if v.wanted is not None
    }
    if not misses:
        return None, ""
    worst = max(misses, key=lambda name: misses[name])
    evidence = f"{len(misses)} conditions, the largest miss is {misses[worst]:.1g} ({worst})"
    return misses[worst] <= TOLERANCE, evidence


def _degenerate(results: Results) -> Judgement:
    ends = {name: results.value(name, "C_f(0)") for name in METHODS}
    told = ", ".join(f"{name} {value:.3f}" for name, value in ends.items())
    if any(math.isnan(end) for end in ends.values()):
        return None, ""
    return [name for name, end in ends.items() if end > 0.99] == ["EOC (LReLU)"], told


ITEM = Item(
    name="table1",
    title="Table 1: the conditions of each method",
    label="table:comparison",
    minutes={"cpu": 1},
    introduction=f"What each method asks of a network, here a chain of {DEPTH} layers, and what "
    "its solution has, computed by quadrature from the shaped activation. C_f(0), which says how "
    "alike two unrelated inputs become, is added where it is no condition.",
    claims=(
        Claim("Every solution meets the conditions of its method", _met),
        Claim(
            "Only EOC with ReLU takes unrelated inputs to almost the same output, C_f(0) > 0.99",
            _degenerate,
        ),
    ),
    compute=compute,
)
