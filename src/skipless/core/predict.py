r"""The q and c values that a shaped network has, node by node.

The maps of an activation hold for normal inputs, which a layer with many weights produces. A
depthwise convolution does not: up to signs, it passes on what it reads. So the next activation sees
$\pm\sigma_w \hat\phi(u)$ of normal $u$, and its q and c values are those of the functions
$\hat\phi(\pm\sigma_w \hat\phi(u))$, each on half of the channels. A concatenation does not mix
channels either, and the terms of a sum are not independent if they have parts in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from scipy.optimize import brentq

from .activations import Activation, Array, Function
from .graph import Affine, Concat, Graph, Nonlinearity, Sum, inputs_of
from .maps import c_map, q_map, tabulated_c_map
from .network import ORTHOGONAL, Point, propagate
from .rescale import ancestors, combine
from .solution import Solution, require_solution

Rule = Callable[[Sequence[Point]], Point]

_MOST_GROUPS = 512  # beyond, channels that no weights mix are treated as normal
_GRID = np.linspace(-12.0, 12.0, 481)  # to search for the kinks of a composition


def predict(graph: Graph, solution: Solution, start: Point = ORTHOGONAL) -> tuple[Point, ...]:
    """The q and c value at every node of `graph`, with the activations of `solution`.

    Where the maps of an activation are not exact, as right behind depthwise convolutions, the maps
    of compositions are used instead; `approximations` lists the nodes for which that fails too.

    Args:
        graph: the network.
        solution: what `solve` returns, for this graph or another one.
        start: q value of either input and c value of the pair, by default q = 1 and c = 0.

    Returns:
        A `Point(q, c)` for each of `graph.nodes`, in their order.

    >>> from .solve import solve
    >>> chain = Graph.chain(50)
    >>> round(predict(chain, solve(chain))[-1].c, 9)
    0.9
    """
    require_solution(solution)
    maps = _CachedMaps(solution.shaped)
    rules = _RuleFinder(graph, maps, solution.sigma_w).rules
    sigmas = solution.sigma_w, solution.sigma_b
    return propagate(graph, maps.q_map, maps.c_map, start, *sigmas, rules)


def without_mixing(graph: Graph) -> list[int]:
    """The activations that read the input or another activation without weights that mix between.

    Their maps, and so the targets of `solve`, are approximations.

    >>> without_mixing(Graph.chain(3))
    []
    """
    raw: set[int] = set()
    found: list[int] = []
    for index, node in enumerate(graph.nodes):
        read_raw = not raw.isdisjoint(inputs_of(node))
        if isinstance(node, Nonlinearity):
            if read_raw and index in graph.live:
                found.append(index)
            raw.add(index)
        elif index == 0 or (read_raw and not (isinstance(node, Affine) and node.mixes)):
            raw.add(index)
    return found


def dependent_sums(graph: Graph) -> list[int]:
    """The sums of terms that are not independent, so that their points are approximations.

    Terms are independent if one of them ends in weights that the other does not contain. Parts that
    they have in common are treated exactly, and do not count.
    """
    before = ancestors(graph)

    def independent(a: int, b: int) -> bool:
        return any(
            isinstance(graph.nodes[one], Affine) and not before[other] >> one & 1
            for one, other in ((a, b), (b, a))
        )

    sources: list[set[int]] = []
    found: dict[int, None] = {}
    for index, node in enumerate(graph.nodes):
        own = {index}
        if isinstance(node, Sum):
            own = set[int]()
            for i in node.inputs:
                new, old = sources[i] - own, own - sources[i]
                if index in graph.live and any(not independent(a, b) for a in new for b in old):
                    found[index] = None
                own |= sources[i]
        sources.append(own)
    return list(found)


def approximations(graph: Graph) -> list[str]:
    """Where the predicted points are approximations, in words."""
    activations, sums = without_mixing(graph), dependent_sums(graph)
    return [
        *(f"activation of unweighted input at {graph.nodes[i].origin}" for i in activations),
        *(f"sum of dependent terms at {graph.nodes[i].origin}" for i in sums),
    ]


class _CachedMaps:
    """The maps of φ, and of compositions φ(f(x)); each is computed once."""

    def __init__(self, phi: Activation) -> None:
        self.phi = phi
        self.q_map = cache(partial(q_map, phi))
        self.compose = cache(partial(composition, phi))
        self.point = cache(_point_after)
        self._table = cache(partial(tabulated_c_map, phi))

    def c_map(self, c: float, q: float) -> float:
        # Rectifiers do not depend on q; other networks mostly hold one q, up to rounding.
        return float(self._table(1.0 if self.phi.degree == 1.0 else float(f"{q:.11g}"))(c))


def _point_after(f: Activation, at: Point) -> Point:
    q = q_map(f, at.q)
    # Half of the channels of a plain ReLU may be dead, and have no c value.
    return Point(q, float(c_map(f, at.c, at.q)) if q else 0.0)


@dataclass(frozen=True)
class _ChannelGroup:
    """A share of the channels of a node: `function` of the normal numbers at the node `source`."""

    share: float
    source: int
    function: Activation | None  # None: the identity


class _RuleFinder:
    """Finds `rules` for the points of nodes to which the usual maps do not apply.

    These are activations of channels that no weights have mixed, or of concatenations, on whose
    parts they act one by one; and sums of terms with parts in common. A sum that has activations
    among its terms, and is read by another activation, has no rule: its point is an approximation.
    """

    def __init__(self, graph: Graph, maps: _CachedMaps, sigma_w: float) -> None:
        self.rules: dict[int, Rule] = {}
        self._maps, self._sigma_w = maps, sigma_w
        self._groups: list[list[_ChannelGroup]] = []
        self._combinations: list[dict[int, float]] = []  # each node as a sum of others
        for index, node in enumerate(graph.nodes):
            self._groups.append([_ChannelGroup(1.0, index, None)])
            self._combinations.append({index: 1.0})
            match node:
                case Nonlinearity(i):
                    self._visit_nonlinearity(index, i)
                case Affine(i) if not node.mixes:
                    self._visit_depthwise(index, i)
                case Concat():
                    self._visit_concat(index, node)
                case Sum():
                    self._visit_sum(index, node)
                case _:
                    pass

    def _visit_nonlinearity(self, index: int, source: int) -> None:
        phi, compose = self._maps.phi, self._maps.compose
        groups = [
            replace(group, function=compose(group.function) if group.function else phi)
            for group in self._groups[source]
        ]
        if self._groups[source] != [_ChannelGroup(1.0, source, None)]:
            self.rules[index] = partial(self._mixture, groups)
        self._groups[index] = groups

    def _visit_depthwise(self, index: int, source: int) -> None:
        groups = self._groups[source]
        if not any(g.function for g in groups) or 2 * len(groups) > _MOST_GROUPS:
            return
        halves: list[_ChannelGroup] = []
        for group in groups:
            if group.function is None:  # ± normal numbers are normal numbers
                halves.append(group)
            else:
                both = (_multiple(group.function, s * self._sigma_w) for s in (1.0, -1.0))
                halves += [replace(group, share=group.share / 2.0, function=f) for f in both]
        self._groups[index] = halves

    def _visit_concat(self, index: int, node: Concat) -> None:
        shares = [n / sum(node.widths) for n in node.widths]
        groups = [
            replace(group, share=group.share * share)
            for i, share in zip(node.inputs, shares, strict=True)
            for group in self._groups[i]
        ]
        if len(groups) <= _MOST_GROUPS:
            self._groups[index] = groups

    def _visit_sum(self, index: int, node: Sum) -> None:
        parts = [self._combinations[i] for i in node.inputs]
        total = combine(zip(parts, node.weights, strict=True))
        if len(total) < sum(map(len, parts)):
            self.rules[index] = partial(_combination, total)
        if node.weights == (1.0,):
            self._groups[index] = self._groups[node.inputs[0]]
        self._combinations[index] = total

    def _mixture(self, groups: Sequence[_ChannelGroup], points: Sequence[Point]) -> Point:
        known = [self._maps.point(g.function, points[g.source]) for g in groups if g.function]
        qs = [group.share * p.q for group, p in zip(groups, known, strict=True)]
        return Point(sum(qs), sum(q * p.c for q, p in zip(qs, known, strict=True)) / sum(qs))


def _combination(parts: Mapping[int, float], points: Sequence[Point]) -> Point:
    qs = {source: part**2 * points[source].q for source, part in parts.items()}
    return Point(sum(qs.values()), sum(q * points[i].c for i, q in qs.items()) / sum(qs.values()))


def _multiple(f: Activation, factor: float) -> Activation:
    scaled: Callable[[Function], Function] = lambda g: lambda x: factor * g(x)
    return Activation(scaled(f.value), scaled(f.slope), scaled(f.curvature), f.kinks)


def composition(outer: Activation, inner: Activation) -> Activation:
    """outer(inner(x)), with its kinks.

    >>> from .activations import leaky_relu
    >>> twice = composition(leaky_relu(0.5), leaky_relu(0.5))
    >>> bool(np.allclose(twice(_GRID), leaky_relu(0.25)(_GRID))), twice.kinks
    (True, (0.0,))
    """
    kinks = {*inner.kinks, *(x for k in outer.kinks for x in _preimages(inner, k))}

    def slope(x: Array) -> Array:
        return outer.slope(inner.value(x)) * inner.slope(x)

    def curvature(x: Array) -> Array:
        y = inner.value(x)
        return outer.curvature(y) * inner.slope(x) ** 2 + outer.slope(y) * inner.curvature(x)

    return Activation(lambda x: outer.value(inner.value(x)), slope, curvature, tuple(kinks))


def _preimages(f: Activation, level: float) -> list[float]:
    """Where f reaches or leaves the value `level`, as far as a grid shows."""
    gaps = f(_GRID) - level
    flat = (gaps[1:-1] == 0.0) & (gaps[:-2] == 0.0) & (gaps[2:] == 0.0)
    touches = np.flatnonzero((gaps[1:-1] == 0.0) & ~flat) + 1
    crosses = np.flatnonzero(gaps[:-1] * gaps[1:] < 0.0)
    gap: Callable[[float], float] = lambda x: float(f(x)) - level
    roots = [float(brentq(gap, _GRID[i], _GRID[i + 1], xtol=1e-14)) for i in crosses]
    return [*_GRID[touches].tolist(), *roots]
