"""predict(graph, solution): the q and c values that a shaped network has, layer by layer."""

from __future__ import annotations

from functools import cache, partial

from .graph import Graph
from .maps import q_map, tabulated_c_map
from .network import ORTHOGONAL, Point, propagate
from .solution import Solution, demand_solution
from .unmixed import rules


def predict(graph: Graph, solution: Solution, start: Point = ORTHOGONAL) -> tuple[Point, ...]:
    """The q and c value at every node of `graph`, its activations those of `solution`.

    The pair of inputs has q value 1 and is orthogonal, if nothing else is said. Where the
    usual maps are not exact, as right behind depthwise convolutions, `unmixed` knows others.

    >>> from .solve import solve
    >>> chain = Graph.chain(50)
    >>> round(predict(chain, solve(chain))[-1].c, 9)
    0.9
    """
    demand_solution(solution)
    phi = solution.shaped
    table, local_q_map = cache(partial(tabulated_c_map, phi)), cache(partial(q_map, phi))

    def local_c_map(c: float, q: float) -> float:
        # Rectifiers do not care for q; other layers mostly hold one, but for rounding.
        return float(table(1.0 if phi.degree == 1.0 else float(f"{q:.11g}"))(c))

    return propagate(
        graph,
        local_q_map,
        local_c_map,
        start,
        solution.sigma_w,
        solution.sigma_b,
        rules(graph, phi, solution.sigma_w),
    )
