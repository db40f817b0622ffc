r"""Global maps of a network: one fold over its graph, and the maximum over its subnetworks.

A *subnetwork* of f (appendix B.1) is what lies between a node v, its input, and a node b, its
output: all nodes on paths from v to b, b among them and v not, provided that they form a network
with that single input and that single output. They read only v and each other, and of them only b
is read from outside; v may be read by others too. A residual branch is a subnetwork; the blocks
before it followed by the branch are none, for the shortcut reads what lies inside ("a residual
branch … won't compose with any subnetwork to form a larger one", appendix B.2). Nodes that do not
lead to the output are no part of f.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from .graph import Activation, Affine, Concat, Graph, Input, Sum
from .program import Value, evaluate, fold_program, maximum_program, mean_of

Function = Callable[[float], float]


def fold(graph: Graph, r: Callable[[Value], Value], x: Value) -> Value:
    r"""Carry `x` from input to output, applying `r` at every activation: U_{f,r}(x), appendix B.4.

    Affine layers pass their input on. Sums and concatenations average their inputs with weights
    `w_i² q_i / Σ w_j² q_j` and `width_i q_i / Σ width_j q_j`, where the q values are those under
    Q(q) = q; for normalised sums these are the paper's `w_i²`.

    One fold, three readings:

    | reading              | `x` | `r`               |                     |
    |----------------------|-----|-------------------|---------------------|
    | value `C_f(c)`       | `c` | `C`               |                     |
    | slope `C_f'(1)`      | `1` | `s -> C'(1) * s`  |                     |
    | curvature `C_f''(1)` | `0` | `k -> C''(1) + k` | where `C'(1) = 1`   |

    `x` may also be an array, if `r` takes arrays. The curvature of ten blocks is
    `L (1 - w²) C''(1)` with L = 30 activations (appendix B.5):

    >>> round(fold(Graph.residual(10, shortcut_weight=0.8), lambda k: 1.0 + k, 0.0), 12)
    10.8
    """
    return evaluate(fold_program(graph), r, x)


def maximum(graph: Graph, r: Function, x: float) -> float:
    r"""Largest U_{g,r}(x) over all subnetworks g of `graph`, for a non-decreasing `r`.

    $$M_{f,r}(x) = \max_{g \subseteq f} U_{g,r}(x)$$

    of appendix B.2, with subnetworks as defined at the top of this module. Unlike the argument
    there, it does not need `r(x) >= x`. Where `r` decreases, the result is undefined. The cost is
    about one call of `r` per activation; blocks nested k deep multiply it by up to k.

    In a nearly linear residual network the maximum is a branch, of three activations:

    >>> maximum(Graph.residual(10, shortcut_weight=0.99), lambda k: 1.0 + k, 0.0)
    3.0
    """
    return evaluate(maximum_program(graph), r, x)


def max_c_value(graph: Graph, c_map: Function) -> float:
    """Maximal c value μ⁰ = M_{f,C}(0) of appendix B.1, for a C map that does not decrease.

    >>> max_c_value(Graph.chain(3), lambda c: (1.0 + c) / 2.0)
    0.875
    """
    return maximum(graph, c_map, 0.0)


def max_slope(graph: Graph, slope: float) -> float:
    """Maximal slope μ¹ of appendix B.1, where every activation has C'(1) = `slope` >= 0.

    >>> max_slope(Graph.chain(3), 2.0)
    8.0
    """
    return maximum(graph, lambda s: slope * s, 1.0)


def max_curvature(graph: Graph, curvature: float) -> float:
    """Maximal curvature μ² of appendix B.1, where C'(1) = 1 and C''(1) = `curvature`.

    >>> max_curvature(Graph.chain(4), 0.25)
    1.0
    """
    return maximum(graph, lambda k: curvature + k, 0.0)


@dataclass(frozen=True, slots=True)
class Point:
    """The q value of either input, and the c value of the pair, at one node."""

    q: float
    c: float


ORTHOGONAL = Point(q=1.0, c=0.0)


def propagate(
    graph: Graph,
    q_map: Function,
    c_map: Callable[[float, float], float],
    start: Point = ORTHOGONAL,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    rules: Mapping[int, Callable[[Sequence[Point]], Point]] | None = None,
) -> tuple[Point, ...]:
    r"""The q and c value at every node, for two inputs of equal q (section 2.3).

    | node       | q                   | c                                       |
    |------------|---------------------|-----------------------------------------|
    | Affine     | `σ_w² q + σ_b²`     | `(σ_w² q c + σ_b²) / (σ_w² q + σ_b²)`   |
    | Activation | `q_map(q)`          | `c_map(c, q)`                           |
    | Sum        | `Σ w_i² q_i`        | `Σ w_i² q_i c_i / Σ w_i² q_i`           |
    | Concat     | `Σ n_i q_i / Σ n_i` | `Σ n_i q_i c_i / Σ n_i q_i`             |

    where the `n_i` are widths. Nodes that have `rules` of their own find their point by them, from
    all the points before.

    >>> g = Graph.chain(1)
    >>> propagate(g, q_map=lambda q: q / 2, c_map=lambda c, q: c, start=Point(1.0, 0.5))[-1]
    Point(q=0.5, c=0.5)
    """
    points: list[Point] = []
    for index, node in enumerate(graph.nodes):
        match node:
            case _ if rules and index in rules:
                point = rules[index](points)
            case Input():
                point = start
            case Affine(i):
                q = sigma_w**2 * points[i].q
                point = _mixture([q, sigma_b**2], [points[i].c, 1.0])
            case Activation(i):
                q = q_map(points[i].q)
                point = Point(q, c_map(points[i].c, points[i].q) if q else math.nan)
            case Sum(inputs, weights):
                parts = [w * w * points[i].q for w, i in zip(weights, inputs, strict=True)]
                point = _mixture(parts, [points[i].c for i in inputs])
            case Concat(inputs, widths):
                channels = sum(widths)
                parts = [n / channels * points[i].q for n, i in zip(widths, inputs, strict=True)]
                point = _mixture(parts, [points[i].c for i in inputs])
            case _:
                assert_never(node)
        if not 0.0 < point.q < math.inf:
            raise ValueError(
                f"c values need 0 < q < inf; found q = {point.q:g} at node {index} "
                f"({type(node).__name__}{', ' if node.origin else ''}{node.origin}). "
                "Scale φ so that Q(1) = 1, and normalise the sums."
            )
        points.append(point)
    return tuple(points)


def _mixture(parts: Sequence[float], cs: Sequence[float]) -> Point:
    """The point of a sum of uncorrelated terms whose q values are `parts`."""
    q = sum(parts)
    return Point(q, mean_of([part / q for part in parts], cs) if q else math.nan)
