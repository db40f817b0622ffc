r"""predict(graph, solution): the q and c values that a shaped network has, layer by layer.

What activations make of numbers that no weights have mixed.

The maps of an activation are for normal numbers, which is what a layer of many weights gives. A
depthwise convolution gives none: it takes the outputs of the activation before it, up to signs. So
what the next activation sees is $\pm\sigma_w \hat\phi(u)$ of normal $u$, and its q and c values are
those of the functions $\hat\phi(\pm\sigma_w \hat\phi(u))$, half of the channels each. Nor does a
concatenation mix; and a sum whose terms have parts in common is not one of independent terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from scipy.optimize import brentq

from .activations import Activation, Function
from .graph import Affine, Concat, Graph, Nonlinearity, Sum, inputs_of
from .maps import c_map, q_map, tabulated_c_map
from .network import ORTHOGONAL, Point, propagate
from .rescale import ancestors, combine
from .solution import Solution, require_solution

Rule = Callable[[Sequence[Point]], Point]

_MOST_PARTS = 512  # beyond, what is not mixed is taken for normal
_GRID = np.linspace(-12.0, 12.0, 481)  # where kinks of a composition are looked for


def without_mixing(graph: Graph) -> list[int]:
    """The activations that read what no weights have mixed since the input or an activation.

    Their maps, and so the targets that were solved for, are approximations.

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
    they have in common are known exactly, and do not count.
    """
    before = ancestors(graph)
    sources: list[frozenset[int]] = []
    found: list[int] = []
    for index, node in enumerate(graph.nodes):
        own = {index}
        if isinstance(node, Sum):
            own = set[int]()
            for i in node.inputs:
                new, old = sources[i] - own, own - sources[i]
                if any(not _independent(graph, before, a, b) for a in new for b in old):
                    found.append(index)
                own |= sources[i]
        sources.append(frozenset(own))
    return [index for index in dict.fromkeys(found) if index in graph.live]


def approximations(graph: Graph) -> list[str]:
    """The places where the predicted points are approximations, in words."""
    return [
        *(
            f"activation of unweighted input at {graph.nodes[i].origin}"
            for i in without_mixing(graph)
        ),
        *(f"sum of dependent terms at {graph.nodes[i].origin}" for i in dependent_sums(graph)),
    ]


def _independent(graph: Graph, before: Sequence[int], a: int, b: int) -> bool:
    return any(
        isinstance(graph.nodes[one], Affine) and not before[other] >> one & 1
        for one, other in ((a, b), (b, a))
    )


def rules(graph: Graph, phi: Activation, sigma_w: float) -> Mapping[int, Rule]:
    """How to find the points of nodes for which the usual maps are not exact.

    These are activations of what was not mixed, or of concatenations, whose parts they act on one
    by one; and sums whose terms have parts in common. Sums with activations among their terms, read
    by another activation, have no rule: their points are approximations.
    """
    laws: dict[int, list[Part]] = {}
    combinations: dict[int, dict[int, float]] = {}
    point = _CachedMaps(phi)
    found: dict[int, Rule] = {}
    for index, node in enumerate(graph.nodes):
        laws[index], combinations[index] = [Part(1.0, index, None)], {index: 1.0}
        match node:
            case Nonlinearity(i):
                laws[index] = [part.activated(point.compose) for part in laws[i]]
                if laws[i] != [Part(1.0, i, None)]:
                    found[index] = partial(_mixture_of, laws[index], point)
            case Affine(i) if not node.mixes and any(p.function for p in laws[i]):
                if 2 * len(laws[i]) <= _MOST_PARTS:
                    laws[index] = [half for part in laws[i] for half in part.halves(sigma_w)]
            case Concat(inputs, widths):
                shares = [(i, n / sum(widths)) for i, n in zip(inputs, widths, strict=True)]
                parts = [replace(p, share=p.share * n) for i, n in shares for p in laws[i]]
                if len(parts) <= _MOST_PARTS:
                    laws[index] = parts
            case Sum(inputs, weights):
                terms = zip((combinations[i] for i in inputs), weights, strict=True)
                combinations[index] = combine(terms)
                if len(combinations[index]) < sum(len(combinations[i]) for i in inputs):
                    found[index] = partial(_combination_of, combinations[index])
                if weights == (1.0,):
                    laws[index] = laws[inputs[0]]
            case _:
                pass
    return found


@dataclass(frozen=True)
class Part:
    """A share of channels, which are a function of the normal numbers at the node `source`."""

    share: float
    source: int
    function: Activation | None  # the identity, if None

    def activated(self, compose: Callable[[Activation | None], Activation]) -> Part:
        return replace(self, function=compose(self.function))

    def halves(self, factor: float) -> list[Part]:
        """The same times ± `factor`."""
        if self.function is None:  # normal numbers stay what they are
            return [self]
        both = (times(self.function, sign * factor) for sign in (1.0, -1.0))
        return [Part(self.share / 2.0, self.source, f) for f in both]


class _CachedMaps:
    """φ after functions, and the points of such compositions; each is worked out once."""

    def __init__(self, phi: Activation) -> None:
        self.phi = phi
        self.compose = cache(self._composed)
        self._known: dict[tuple[Activation, Point], Point] = {}

    def _composed(self, inner: Activation | None) -> Activation:
        return self.phi if inner is None else composition(self.phi, inner)

    def __call__(self, f: Activation, at: Point) -> Point:
        key = (f, at)
        if key not in self._known:
            q = q_map(f, at.q)
            # Half of the channels of a plain ReLU may be dead, and have no c value.
            self._known[key] = Point(q, float(c_map(f, at.c, at.q)) if q else 0.0)
        return self._known[key]


def _mixture_of(
    parts: Sequence[Part],
    point: Callable[[Activation, Point], Point],
    points: Sequence[Point],
) -> Point:
    known = [point(part.function, points[part.source]) for part in parts if part.function]
    qs = [part.share * p.q for part, p in zip(parts, known, strict=True)]
    return Point(sum(qs), sum(q * p.c for q, p in zip(qs, known, strict=True)) / sum(qs))


def _combination_of(combination: Mapping[int, float], points: Sequence[Point]) -> Point:
    qs = {source: part**2 * points[source].q for source, part in combination.items()}
    return Point(sum(qs.values()), sum(q * points[i].c for i, q in qs.items()) / sum(qs.values()))


def times(f: Activation, factor: float) -> Activation:
    """`factor` · f."""
    scaled: Callable[[Function], Function] = lambda g: lambda x: factor * g(x)
    return Activation(scaled(f.value), scaled(f.slope), scaled(f.curvature), f.kinks)


def composition(outer: Activation, inner: Activation) -> Activation:
    """outer(inner(x)), with its kinks.

    >>> from .activations import leaky_relu
    >>> twice = composition(leaky_relu(0.5), leaky_relu(0.5))
    >>> bool(np.allclose(twice(_GRID), leaky_relu(0.25)(_GRID))), twice.kinks
    (True, (0.0,))
    """
    kinks = {*inner.kinks, *(x for k in outer.kinks for x in _where(inner, k))}

    def slope(x: np.ndarray) -> np.ndarray:
        return outer.slope(inner.value(x)) * inner.slope(x)

    def curvature(x: np.ndarray) -> np.ndarray:
        y = inner.value(x)
        return outer.curvature(y) * inner.slope(x) ** 2 + outer.slope(y) * inner.curvature(x)

    return Activation(lambda x: outer.value(inner.value(x)), slope, curvature, tuple(kinks))


def _where(f: Activation, level: float) -> list[float]:
    """Where f comes to the value `level`, or leaves it, as far as a grid shows."""
    gaps = f(_GRID) - level
    flat = (gaps[1:-1] == 0.0) & (gaps[:-2] == 0.0) & (gaps[2:] == 0.0)
    touches = np.flatnonzero((gaps[1:-1] == 0.0) & ~flat) + 1
    crosses = np.flatnonzero(gaps[:-1] * gaps[1:] < 0.0)
    gap: Callable[[float], float] = lambda x: float(f(x)) - level
    roots = [float(brentq(gap, _GRID[i], _GRID[i + 1], xtol=1e-14)) for i in crosses]
    return [*_GRID[touches].tolist(), *roots]


def predict(graph: Graph, solution: Solution, start: Point = ORTHOGONAL) -> tuple[Point, ...]:
    """The q and c value at every node of `graph`, its activations those of `solution`.

    The pair of inputs has q value 1 and is orthogonal, if nothing else is said. Where the
    usual maps are not exact, as right behind depthwise convolutions, `without_mixing` knows others.

    >>> from .solve import solve
    >>> chain = Graph.chain(50)
    >>> round(predict(chain, solve(chain))[-1].c, 9)
    0.9
    """
    require_solution(solution)
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
