r"""What activations make of numbers that no weights have mixed.

The maps of an activation are for normal numbers, which is what a layer of many weights gives. A
depthwise convolution gives none: it takes the outputs of the activation before it, up to signs. So
what the next activation sees is $\pm\sigma_w \hat\phi(u)$ of normal $u$, and its q and c values are
those of the functions $\hat\phi(\pm\sigma_w \hat\phi(u))$, half of the channels each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.optimize import brentq

from .activations import Activation, Function
from .graph import Activation as ActivationNode
from .graph import Affine, Graph, inputs_of
from .maps import c_map, q_map
from .network import Point

Rule = Callable[[Sequence[Point]], Point]

_MOST_FUNCTIONS = 8  # which three depthwise convolutions make of one
_GRID = np.linspace(-12.0, 12.0, 481)  # where kinks of a composition are looked for


def unmixed(graph: Graph) -> list[int]:
    """The activations that read what no weights have mixed since the input or an activation.

    Their maps, and so the targets that were solved for, are approximations.

    >>> unmixed(Graph.chain(3))
    []
    """
    raw: set[int] = set()
    found: list[int] = []
    for index, node in enumerate(graph.nodes):
        read_raw = not raw.isdisjoint(inputs_of(node))
        if isinstance(node, ActivationNode):
            if read_raw and index in graph.live:
                found.append(index)
            raw.add(index)
        elif index == 0 or (read_raw and not (isinstance(node, Affine) and node.mixes)):
            raw.add(index)
    return found


def rules_behind_depthwise(graph: Graph, phi: Activation, sigma_w: float) -> Mapping[int, Rule]:
    """For activations behind others with at most depthwise convolutions between, their points.

    Others that are unmixed, such as those behind sums of activations, have no rule.
    """
    # A node's numbers are functions, in equal parts, of the normal numbers at another node.
    functions: dict[int, tuple[int, list[Activation]]] = {}
    rules: dict[int, Rule] = {}
    for index, node in enumerate(graph.nodes):
        if isinstance(node, ActivationNode):
            if node.input not in functions:
                functions[index] = (node.input, [phi])
                continue
            source, inner = functions[node.input]
            outer = [composition(phi, f) for f in inner]
            rules[index] = _rule(source, outer)
            functions[index] = (source, outer)
        elif isinstance(node, Affine) and not node.mixes and node.input in functions:
            source, inner = functions[node.input]
            if 2 * len(inner) <= _MOST_FUNCTIONS:
                functions[index] = (source, [times(f, s * sigma_w) for f in inner for s in (1, -1)])
    return rules


def _rule(source: int, functions: Sequence[Activation]) -> Rule:
    def point(points: Sequence[Point]) -> Point:
        q, c = points[source].q, points[source].c
        qs = [q_map(f, q) for f in functions]
        # Half of the channels of a plain ReLU may be dead, and have no c value.
        products = [
            own * float(c_map(f, c, q)) for f, own in zip(functions, qs, strict=True) if own
        ]
        return Point(sum(qs) / len(qs), sum(products) / sum(qs))

    return point


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
