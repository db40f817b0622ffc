"""The q and c values that a shaped network has, node by node; exact up to `approximations`."""

from __future__ import annotations

from typing import overload

from .bands import Distribution, FiniteWidth, Prediction, Widths
from .graph import Affine, Graph, Nonlinearity, Sum, inputs_of
from .network import ORTHOGONAL, Point, propagate
from .rescale import ancestors
from .rules import CachedMaps, find_rules
from .solution import Solution, require_solution


@overload
def predict(graph: Graph, solution: Solution, start: Point = ORTHOGONAL) -> tuple[Point, ...]: ...
@overload
def predict(
    graph: Graph,
    solution: Solution,
    start: Point = ORTHOGONAL,
    *,
    widths: Widths,
    distribution: Distribution = "orthogonal",
) -> tuple[Prediction, ...]: ...
def predict(
    graph: Graph,
    solution: Solution,
    start: Point = ORTHOGONAL,
    *,
    widths: Widths | None = None,
    distribution: Distribution = "orthogonal",
) -> tuple[Point, ...]:
    """The q and c value at every node of `graph`, with the activations of `solution`.

    Where the maps of an activation are not exact, as right behind depthwise convolutions, the maps
    of compositions are used instead; `approximations` lists the nodes for which that fails too.

    Args:
        graph: the network.
        solution: what `solve` returns, for this graph or another one.
        start: q value of either input and c value of the pair, by default q = 1 and c = 0.
        widths: the number of channels, or the `Size` of every node. Points are then predictions
            with a `q_band` and a `c_band`: the median over draws of the weights, and the ends
            between which 95 % of them lie. Nodes that lead nowhere keep plain points.
        distribution: "orthogonal" or "gaussian" weights, for the bands.

    >>> from .solve import solve
    >>> chain = Graph.chain(50)
    >>> round(predict(chain, solve(chain))[-1].c, 9)
    0.9
    >>> print(predict(chain, solve(chain), widths=64)[-1].c_band)
    0.908 [0.658, 0.978]
    """
    require_solution(solution)
    rules = find_rules(graph, solution)
    maps = CachedMaps(solution.shaped)
    sigmas = solution.sigma_w, solution.sigma_b
    points = propagate(graph, maps.q_map, maps.c_map, start, *sigmas, rules)
    if widths is None:
        return points
    bands = FiniteWidth(graph, solution, widths, distribution).predict(points)
    return tuple(bands.get(index, point) for index, point in enumerate(points))


def without_mixing(graph: Graph) -> list[int]:
    """The activations that read the input or another activation without weights that mix between.

    Their maps, and so the targets of `solve`, are approximations.

    >>> without_mixing(Graph.chain(3))
    []
    """
    raw = {0}
    found: list[int] = []
    for index, node in enumerate(graph.nodes):
        read_raw = not raw.isdisjoint(inputs_of(node))
        if isinstance(node, Nonlinearity):
            raw.add(index)
            if read_raw and index in graph.live:
                found.append(index)
        elif read_raw and not (isinstance(node, Affine) and node.mixes):
            raw.add(index)
    return found


def dependent_sums(graph: Graph) -> list[int]:
    """The sums of terms that are not independent, so that their points are approximations.

    Of independent terms, one ends in weights that the other does not contain. Parts that they have
    in common are treated exactly, and do not count.
    """
    before = ancestors(graph)

    def independent(a: int, b: int) -> bool:
        return any(
            isinstance(graph.nodes[one], Affine) and not before[other] >> one & 1
            for one, other in ((a, b), (b, a))
        )

    sources: list[set[int]] = []
    found: set[int] = set()
    for index, node in enumerate(graph.nodes):
        own = set[int]() if isinstance(node, Sum) else {index}
        for i in node.inputs if isinstance(node, Sum) else ():
            new, old = sources[i] - own, own - sources[i]
            if not all(independent(a, b) for a in new for b in old):
                found.add(index)
            own |= sources[i]
        sources.append(own)
    return sorted(found & graph.live)


def approximations(graph: Graph) -> list[str]:
    """Where the predicted points are approximations, in words."""
    activations, sums = without_mixing(graph), dependent_sums(graph)
    return [
        *(f"activation of unweighted input at {graph.nodes[i].origin}" for i in activations),
        *(f"sum of dependent terms at {graph.nodes[i].origin}" for i in sums),
    ]
