"""The q and c values that a shaped network has, node by node; exact up to `approximations`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import overload

from .bands import Distribution, FiniteWidth, Prediction, Widths
from .graph import (
    Affine,
    Concat,
    Fixed,
    Graph,
    Measured,
    Nonlinearity,
    Product,
    Sum,
    inputs_of,
)
from .measured import PartMap
from .network import (
    ORTHOGONAL,
    Basis,
    Point,
    max_c_value,
    max_curvature,
    max_slope,
    propagate,
)
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
    of compositions are used instead; `approximations` lists the nodes for which that fails too. The
    `basis` of a point says whether its node is derived, approximate or measured.

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
    known = propagate(graph, maps.q_map, maps.c_map, start, *sigmas, rules)
    points = tuple(
        point if basis == "derived" else replace(point, basis=basis)
        for point, basis in zip(known, bases(graph), strict=True)
    )
    if widths is None:
        return points
    bands = FiniteWidth(graph, solution, widths, distribution).predict(points)
    return tuple(bands.get(index, point) for index, point in enumerate(points))


def without_mixing(graph: Graph) -> list[int]:
    """The activations that read no weighted sum, but the input, an activation or a product.

    Their maps, and so the targets of `solve`, are approximations.

    >>> without_mixing(Graph.chain(3))
    []
    """
    raw = {0}
    found: list[int] = []
    for index, node in enumerate(graph.nodes):
        read_raw = not raw.isdisjoint(inputs_of(node))
        is_activation = isinstance(node, Nonlinearity | Fixed)
        if is_activation and read_raw and index in graph.live:
            found.append(index)
        mixes = isinstance(node, Affine | Measured) and node.mixes
        if is_activation or isinstance(node, Product) or (read_raw and not mixes):
            raw.add(index)
    return found


def dependent_sums(graph: Graph) -> list[int]:
    """The sums of terms that are not independent, so that their points are approximations.

    Of independent terms, one ends in weights that the other does not contain; a product does if a
    factor does, as it changes its sign with these. Parts that they have in common are treated
    exactly, and do not count.
    """
    before = ancestors(graph)

    def ends(index: int) -> set[int]:
        """The nodes that end in weights of their own, of all that `index` multiplies."""
        match graph.nodes[index]:
            case Affine() | Measured(mixes=True):
                return {index}
            case Concat((i,)):  # some of its channels, which have weights of their own
                return {index} if i == 0 or ends(i) else set()
            case Product(inputs):
                return {end for i in inputs for end in ends(i)}
            case _:
                return set()

    def independent(a: int, b: int) -> bool:
        pairs = ((a, b), (b, a))
        return any(not before[other] >> end & 1 for one, other in pairs for end in ends(one))

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


def bases(graph: Graph) -> list[Basis]:
    """How the point of every node is known: "derived", "approximate" or "measured".

    It says what the node itself does; errors that come with its inputs add to that.

    >>> set(bases(Graph.chain(3)))
    {'derived'}
    """
    rough = {*without_mixing(graph), *dependent_sums(graph)}
    rough |= {i for i, node in enumerate(graph.nodes) if isinstance(node, Product) and node.rough}
    found: list[Basis] = [
        "approximate" if i in rough else "derived" for i in range(len(graph.nodes))
    ]
    for index, node in enumerate(graph.nodes):
        if isinstance(node, Measured) and node.curve.is_measured:
            found[index] = "measured"
    return found


def target_error(graph: Graph, solution: Solution) -> float:
    """The standard error of the target of `solution` that comes from measured parts.

    It is that of the maximal c value, slope or curvature, whichever the method aims for, from
    moving every curve by its error. Parts that share a curve move together.
    """
    curves = {node.curve for node in graph.nodes if isinstance(node, Measured)}
    reading = _reading(solution)
    if reading is None or not any(curve.is_measured for curve in curves):
        return 0.0
    target = reading(graph)
    moved = (reading(_replaced(graph, curve, curve.shifted(1.0))) for curve in curves)
    return math.hypot(*(value - target for value in moved))


def _reading(solution: Solution) -> Callable[[Graph], float] | None:
    """The number of a network that its solution has a target for."""
    targets = solution.targets
    if "mu0" in targets:
        c_map = solution.c_map
        return lambda graph: max_c_value(graph, lambda c: float(c_map(c)))
    if "mu1" in targets:
        return lambda graph: max_slope(graph, targets["C'(1)"])
    if "mu2" in targets:
        return lambda graph: max_curvature(graph, targets["C''(1)"])
    return None


def _replaced(graph: Graph, before: PartMap, after: PartMap) -> Graph:
    nodes = (
        replace(node, curve=after) if isinstance(node, Measured) and node.curve == before else node
        for node in graph.nodes
    )
    return Graph(nodes)


def approximations(graph: Graph) -> list[str]:
    """Where the predicted points are approximations, in words."""
    activations, sums = without_mixing(graph), dependent_sums(graph)
    products = (graph.nodes[i] for i in sorted(graph.live))
    return [
        *(f"{n.rough} at {n.origin}" for n in products if isinstance(n, Product) and n.rough),
        *(f"activation of unweighted input at {graph.nodes[i].origin}" for i in activations),
        *(f"sum of dependent terms at {graph.nodes[i].origin}" for i in sums),
    ]
