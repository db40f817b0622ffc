r"""How to find the q and c values of nodes to which the usual maps do not apply.

The maps of an activation hold for normal inputs, which a layer with many weights produces. A
depthwise convolution does not: up to signs, it passes on what it reads. So the next activation sees
$\pm\sigma_w \hat\phi(u)$ of normal $u$, and its q and c values are those of the functions
$\hat\phi(\pm\sigma_w \hat\phi(u))$, each on half of the channels. A concatenation does not mix
channels either, and the terms of a sum are not independent if they have parts in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from scipy.optimize import brentq

from .activations import Activation, Array, transform
from .graph import Affine, Concat, Fixed, Graph, Node, Nonlinearity, Sum
from .maps import c_map, q_map, tabulated_c_map
from .network import Point
from .rescale import combine
from .solution import Solution

_MOST_GROUPS = 512  # beyond, channels that no weights mix are treated as normal
_GRID = np.linspace(-12.0, 12.0, 481)  # to search for the kinks of a composition


class CachedMaps:
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
class ChannelGroup:
    """A share of the channels of a node: `function` of the normal numbers at the node `source`."""

    share: float
    source: int
    function: Activation | None  # None: the identity


@dataclass(frozen=True)
class GroupRule:
    """The point of an activation that acts on `groups` of channels, each a function of a node."""

    groups: tuple[ChannelGroup, ...]
    maps: CachedMaps

    def __call__(self, points: Sequence[Point]) -> Point:
        known = [self.maps.point(g.function, points[g.source]) for g in self.groups if g.function]
        return _blend([group.share for group in self.groups], known)


@dataclass(frozen=True)
class PartRule:
    """The point of a sum that is, in all, the sum of these nodes with these weights."""

    parts: Mapping[int, float]

    def __call__(self, points: Sequence[Point]) -> Point:
        shares = [part**2 for part in self.parts.values()]
        return _blend(shares, [points[source] for source in self.parts])


Rules = Mapping[int, GroupRule | PartRule]


def find_rules(graph: Graph, solution: Solution) -> Rules:
    """Rules for the points of nodes to which the usual maps do not apply.

    These are activations of channels that no weights have mixed, or of concatenations, on whose
    parts they act one by one; fixed functions; and sums of terms with parts in common. A sum that
    has activations among its terms, and is read by another activation, has no rule: its point is an
    approximation.
    """
    return _RuleFinder(graph, CachedMaps(solution.shaped), solution.sigma_w).rules


class _RuleFinder:
    def __init__(self, graph: Graph, maps: CachedMaps, sigma_w: float) -> None:
        self.rules: dict[int, GroupRule | PartRule] = {}
        self._maps, self._sigma_w = maps, sigma_w
        self._groups: list[list[ChannelGroup]] = []
        combinations: list[dict[int, float]] = []  # each node as a sum of others
        for index, node in enumerate(graph.nodes):
            groups, normal = self._groups_of(node), [ChannelGroup(1.0, index, None)]
            self._groups.append(groups if 0 < len(groups) <= _MOST_GROUPS else normal)
            combinations.append({index: 1.0})
            if isinstance(node, Nonlinearity):
                if self._groups[node.input] != [ChannelGroup(1.0, node.input, None)]:
                    self.rules[index] = GroupRule(tuple(groups), maps)
            elif isinstance(node, Fixed):
                self.rules[index] = GroupRule(tuple(groups), maps)
            elif isinstance(node, Sum):
                parts = [combinations[i] for i in node.inputs]
                combinations[index] = combine(zip(parts, node.weights, strict=True))
                if len(combinations[index]) < sum(map(len, parts)):
                    self.rules[index] = PartRule(combinations[index])

    def _groups_of(self, node: Node) -> list[ChannelGroup]:
        """The groups of a node's channels; none if they are normal."""
        match node:
            case Nonlinearity(i):
                phi, compose = self._maps.phi, self._maps.compose
                return [
                    replace(group, function=compose(group.function) if group.function else phi)
                    for group in self._groups[i]
                ]
            case Fixed(i):
                outer = node.function
                return [
                    replace(group, function=composition(outer, inner) if inner else outer)
                    for group in self._groups[i]
                    for inner in [group.function]
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

    def _halves(self, group: ChannelGroup) -> Iterator[ChannelGroup]:
        if group.function is None:  # ± normal numbers are normal numbers
            yield group
            return
        for sigma in (self._sigma_w, -self._sigma_w):
            signed = transform(group.function, output_scale=sigma)
            yield replace(group, share=group.share / 2.0, function=signed)


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
