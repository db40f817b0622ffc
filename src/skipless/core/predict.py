r"""The q and c values that a shaped network has, node by node.

The maps of an activation hold for normal inputs, which a layer with many weights produces. A
depthwise convolution does not: up to signs, it passes on what it reads. So the next activation sees
$\pm\sigma_w \hat\phi(u)$ of normal $u$, and its q and c values are those of the functions
$\hat\phi(\pm\sigma_w \hat\phi(u))$, each on half of the channels. A concatenation does not mix
channels either, and the terms of a sum are not independent if they have parts in common.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from scipy.optimize import brentq

from .activations import Activation, Array, transform
from .graph import Affine, Concat, Graph, Node, Nonlinearity, Sum, inputs_of
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
        combinations: list[dict[int, float]] = []  # each node as a sum of others
        for index, node in enumerate(graph.nodes):
            groups, normal = self._groups_of(node), [_ChannelGroup(1.0, index, None)]
            self._groups.append(groups if 0 < len(groups) <= _MOST_GROUPS else normal)
            combinations.append({index: 1.0})
            if isinstance(node, Nonlinearity):
                if self._groups[node.input] != [_ChannelGroup(1.0, node.input, None)]:
                    self.rules[index] = partial(self._by_group, groups)
            elif isinstance(node, Sum):
                parts = [combinations[i] for i in node.inputs]
                combinations[index] = combine(zip(parts, node.weights, strict=True))
                if len(combinations[index]) < sum(map(len, parts)):
                    self.rules[index] = partial(_by_part, combinations[index])

    def _groups_of(self, node: Node) -> list[_ChannelGroup]:
        """The groups of a node's channels; none if they are normal."""
        match node:
            case Nonlinearity(i):
                phi, compose = self._maps.phi, self._maps.compose
                return [
                    replace(group, function=compose(group.function) if group.function else phi)
                    for group in self._groups[i]
                ]
            case Affine(i) if not node.mixes and any(g.function for g in self._groups[i]):
                return [half for group in self._groups[i] for half in self._halves(group)]
            case Concat(inputs, widths):
                return [
                    replace(group, share=group.share * (n / sum(widths)))
                    for i, n in zip(inputs, widths, strict=True)
                    for group in self._groups[i]
                ]
            case Sum((i,), (1.0,)):
                return self._groups[i]
            case _:
                return []

    def _halves(self, group: _ChannelGroup) -> Iterator[_ChannelGroup]:
        if group.function is None:  # ± normal numbers are normal numbers
            yield group
            return
        for sigma in (self._sigma_w, -self._sigma_w):
            signed = transform(group.function, output_scale=sigma)
            yield replace(group, share=group.share / 2.0, function=signed)

    def _by_group(self, groups: Sequence[_ChannelGroup], points: Sequence[Point]) -> Point:
        known = [self._maps.point(g.function, points[g.source]) for g in groups if g.function]
        return _blend([group.share for group in groups], known)


def _by_part(parts: Mapping[int, float], points: Sequence[Point]) -> Point:
    return _blend([part**2 for part in parts.values()], [points[source] for source in parts])


def _blend(shares: Sequence[float], points: Sequence[Point]) -> Point:
    qs = [share * point.q for share, point in zip(shares, points, strict=True)]
    return Point(sum(qs), sum(q * p.c for q, p in zip(qs, points, strict=True)) / sum(qs))


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
