"""predict(graph, solution): the q and c values that a shaped network has, layer by layer."""

from __future__ import annotations

from functools import cache, partial

from .graph import Graph
from .maps import c_map, q_map, tabulated_c_map
from .network import ORTHOGONAL, Point, propagate
from .solution import Solution


def predict(graph: Graph, solution: Solution, start: Point = ORTHOGONAL) -> tuple[Point, ...]:
    """The q and c value at every node of `graph`, its activations those of `solution`.

    The pair of inputs has q value 1 and is orthogonal, if nothing else is said.

    >>> from .solve import solve
    >>> chain = Graph.chain(50)
    >>> round(predict(chain, solve(chain))[-1].c, 9)
    0.9
    """
    phi = solution.shaped
    quick = cache(lambda: tabulated_c_map(phi, solution.q))  # rectifiers do not care for q

    def local_c_map(c: float, q: float) -> float:
        if phi.degree == 1.0 or abs(q - solution.q) <= 1e-9 * solution.q:
            return float(quick()(c))
        return float(c_map(phi, c, q))

    local_q_map = cache(partial(q_map, phi))
    return propagate(graph, local_q_map, local_c_map, start, solution.sigma_w, solution.sigma_b)
